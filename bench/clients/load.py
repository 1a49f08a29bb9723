"""What is measured, the same for every client: how many messages, of what size, and in which rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.clients.stopwatch import Figure, Stopwatch

STREAM = "stream"
AWAITED = "awaited"
ITERATE = "iterate"
PAGES = "pages"
ROWS = (STREAM, AWAITED, ITERATE, PAGES)

TITLES = {
    STREAM: "sends without waiting for each",
    AWAITED: "awaited sends, 64 at a time",
    ITERATE: "consuming with acknowledgement",
    PAGES: "reading pages",
}
BODY_BYTES = 128
QUEUES = 8
TOPIC = "bench-clients"
TASKS = 64


@dataclass(frozen=True, slots=True)
class Load:
    """`stream` messages are sent first; the two reading rows read all that the sending rows left."""

    stream: int = 600_000
    awaited: int = 120_000
    warm: int = 20_000
    chunk: int = 10_000
    """Bodies given to one `send_many`, messages asked for in one page."""


QUICK = Load(stream=200_000, awaited=40_000)


def bodies(count: int) -> list[bytes]:
    return [b"%0128d" % number for number in range(count)]


async def awaited_sends(
    client: str, broker_pid: int, load: Load, send: Callable[[bytes], Awaitable[object]]
) -> Figure:
    """Tasks that each send a message, wait until it is stored, and send the next."""
    body = b"x" * BODY_BYTES
    latencies: list[float] = []

    async def sender(count: int) -> None:
        clock = time.perf_counter
        for _ in range(count):
            began = clock()
            await send(body)
            latencies.append(clock() - began)

    async def all_senders(count: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(sender(count // TASKS))

    await all_senders(load.warm)
    latencies.clear()
    watch = Stopwatch(client, AWAITED, broker_pid)
    await all_senders(load.awaited)
    return watch.stop(len(latencies), latencies)
