"""This project's asyncio client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orbitmq
from bench.clients.load import AWAITED, ITERATE, PAGES, QUEUES, STREAM, TOPIC, Load, awaited_sends, bodies
from bench.clients.stopwatch import Figure, Stopwatch

NAME = "orbitmq"
CALLS = {
    STREAM: "`send_many`",
    AWAITED: "`send`",
    ITERATE: "`async for`, `async with msg`",
    PAGES: "`reader.read`",
}


async def figures(addr: str, broker_pid: int, load: Load, rows: frozenset[str]) -> AsyncIterator[Figure]:
    async with orbitmq.connect(addr, timeout=30) as mq:
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        producer = mq.producer("bench")
        stored = await _fill(producer, load.warm, load)
        if rows & {STREAM, ITERATE, PAGES}:
            watch = Stopwatch(NAME, STREAM, broker_pid)
            stored += await _fill(producer, load.stream, load)
            yield watch.stop(load.stream)
        if AWAITED in rows:
            figure = await awaited_sends(NAME, broker_pid, load, lambda body: producer.send(TOPIC, body))
            stored += figure.messages + load.warm // 64 * 64
            yield figure
        if ITERATE in rows:
            yield await _iterate(mq, broker_pid, stored)
        if PAGES in rows:
            yield await _pages(mq, broker_pid, stored, load.chunk)


async def _fill(producer: orbitmq.Producer, count: int, load: Load) -> int:
    for _ in range(count // load.chunk):
        receipts = await producer.send_many(TOPIC, bodies(load.chunk))
        assert len(receipts) == load.chunk
    return count // load.chunk * load.chunk


async def _iterate(mq: orbitmq.Client, broker_pid: int, stored: int) -> Figure:
    count = size = 0
    watch = Stopwatch(NAME, ITERATE, broker_pid)
    async with mq.consumer("bench-iterate", TOPIC, start="first") as inbox:
        async for msg in inbox:
            async with msg:
                if not count:
                    watch = Stopwatch(NAME, ITERATE, broker_pid)
                size += len(msg.body)
            count += 1
            if count == stored:
                break
        await inbox.commit()
        return watch.stop(count)


async def _pages(mq: orbitmq.Client, broker_pid: int, stored: int, page: int) -> Figure:
    count = size = 0
    async with mq.reader(TOPIC, start="earliest") as reader:
        watch = Stopwatch(NAME, PAGES, broker_pid)
        while count < stored:
            messages = await reader.read(max_messages=page, max_wait=10)
            assert messages, f"{count} of {stored} messages were read"
            count += len(messages)
            for message in messages:
                size += len(message.body)
        return watch.stop(count)
