"""nats-py on JetStream with a stream in files. It has no call that sends many or reads without acknowledging."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from typing import Any

from bench.clients.load import AWAITED, ITERATE, TOPIC, Load, awaited_sends
from bench.clients.stopwatch import Figure, Stopwatch

NAME = "nats-py"
CALLS = {AWAITED: "`js.publish`", ITERATE: "`fetch`, `ack`"}
FETCH = 1000


def library() -> Any:
    """Imported by name: the comparison is the only thing here that needs it."""
    return importlib.import_module("nats")


async def figures(addr: str, broker_pid: int, load: Load, rows: frozenset[str]) -> AsyncIterator[Figure]:
    if not rows & {AWAITED, ITERATE}:
        return
    connection = await library().connect(f"nats://{addr}")
    try:
        stream = connection.jetstream(timeout=30)
        await stream.add_stream(name=TOPIC, subjects=[TOPIC])
        figure = await awaited_sends(NAME, broker_pid, load, lambda body: stream.publish(TOPIC, body))
        yield figure
        if ITERATE in rows:
            yield await _fetch_and_ack(stream, broker_pid, figure.messages)
    finally:
        await connection.close()


async def _fetch_and_ack(stream: Any, broker_pid: int, stored: int) -> Figure:
    count = size = 0
    subscription = await stream.pull_subscribe(TOPIC, durable="bench-iterate")
    watch = Stopwatch(NAME, ITERATE, broker_pid)
    while count < stored:
        for message in await subscription.fetch(FETCH, timeout=10):
            size += len(message.data)
            await message.ack()
            count += 1
    return watch.stop(count)
