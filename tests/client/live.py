"""What the client's live tests share: a bounded run and everything that a topic holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from orbitmq.client.client import Client
from orbitmq.client.reader import offsets_at, read_range
from orbitmq.wire.message import Message

SMALL: dict[str, Any] = {"mappedFileSizeCommitLog": 16 << 20, "flushDiskType": "ASYNC_FLUSH"}


def run(work: Callable[[], Coroutine[Any, Any, None]], *, limit_s: float = 20.0) -> None:
    """Runs a test's coroutine and sees to it that it leaves no task behind."""

    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await work()
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"

    asyncio.run(bounded())


async def stored(mq: Client, topic: str) -> list[Message]:
    """All messages of a topic, queue by queue. A topic that was just made reaches the name server a little later."""
    while (route := await mq.cluster.find_route(topic, refresh=True)) is None:
        await asyncio.sleep(0.01)
    start = await offsets_at(mq.cluster, route, "first")
    end = await offsets_at(mq.cluster, route, "last")
    return [message async for message in read_range(mq.cluster, route, start, end)]


async def bodies(mq: Client, topic: str) -> list[bytes]:
    return sorted([message.decoded_body() for message in await stored(mq, topic)])


async def until_stored(mq: Client, topic: str, count: int) -> list[bytes]:
    """Waits for messages that arrive later, and a moment longer to see one too many."""
    while len(await stored(mq, topic)) < count:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    return await bodies(mq, topic)
