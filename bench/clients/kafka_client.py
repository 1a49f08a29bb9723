"""aiokafka, with its defaults: acknowledged by the leader, checksums verified, progress committed by itself."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from typing import Any

from bench.clients.load import AWAITED, ITERATE, PAGES, STREAM, TOPIC, Load, awaited_sends, bodies
from bench.clients.stopwatch import Figure, Stopwatch

NAME = "aiokafka"
CALLS = {STREAM: "`send`, `flush`", AWAITED: "`send_and_wait`", ITERATE: "`async for`", PAGES: "`getmany`"}


def library() -> Any:
    """Imported by name: the comparison is the only thing here that needs it."""
    return importlib.import_module("aiokafka")


async def figures(addr: str, broker_pid: int, load: Load, rows: frozenset[str]) -> AsyncIterator[Figure]:
    producer = library().AIOKafkaProducer(bootstrap_servers=addr)
    await producer.start()
    try:
        stored = await _fill(producer, load.warm, load)
        if rows & {STREAM, ITERATE, PAGES}:
            watch = Stopwatch(NAME, STREAM, broker_pid)
            stored += await _fill(producer, load.stream, load)
            yield watch.stop(load.stream)
        if AWAITED in rows:
            figure = await awaited_sends(
                NAME, broker_pid, load, lambda body: producer.send_and_wait(TOPIC, body)
            )
            stored += figure.messages + load.warm // 64 * 64
            yield figure
    finally:
        await producer.stop()
    if ITERATE in rows:
        yield await _iterate(addr, broker_pid, stored)
    if PAGES in rows:
        yield await _pages(addr, broker_pid, stored, load.chunk)


async def _fill(producer: Any, count: int, load: Load) -> int:
    for _ in range(count // load.chunk):
        for body in bodies(load.chunk):
            await producer.send(TOPIC, body)
    await producer.flush()
    return count // load.chunk * load.chunk


async def _iterate(addr: str, broker_pid: int, stored: int) -> Figure:
    count = size = 0
    consumer = library().AIOKafkaConsumer(
        TOPIC, bootstrap_servers=addr, group_id="bench-iterate", auto_offset_reset="earliest"
    )
    watch = Stopwatch(NAME, ITERATE, broker_pid)
    await consumer.start()
    try:
        async for message in consumer:
            if not count:
                watch = Stopwatch(NAME, ITERATE, broker_pid)
            size += len(message.value)
            count += 1
            if count == stored:
                break
        await consumer.commit()
        return watch.stop(count)
    finally:
        await consumer.stop()


async def _pages(addr: str, broker_pid: int, stored: int, page: int) -> Figure:
    count = size = 0
    consumer = library().AIOKafkaConsumer(TOPIC, bootstrap_servers=addr, auto_offset_reset="earliest")
    await consumer.start()
    try:
        watch = Stopwatch(NAME, PAGES, broker_pid)
        while count < stored:
            found = await consumer.getmany(timeout_ms=10_000, max_records=page)
            assert found, f"{count} of {stored} messages were read"
            for messages in found.values():
                count += len(messages)
                for message in messages:
                    size += len(message.value)
        return watch.stop(count)
    finally:
        await consumer.stop()
