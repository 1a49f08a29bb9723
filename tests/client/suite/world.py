"""What every scenario gets: a cluster to connect to, names of its own, and ways to wait for messages."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orbitmq

# Both brokers get these: checks of transactions that do not take minutes, and SQL filters.
SETTINGS: dict[str, str | int] = {
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 1000,
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": 64 << 20,
}
QUEUES = 4
LIMIT_S = 30.0


@dataclass
class World:
    """A cluster whose broker is this project's or Java's: no scenario may need to know which."""

    namesrv: str
    directory: Path
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def name(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"

    def connect(self, **options: Any) -> orbitmq.Client:
        return orbitmq.connect(self.namesrv, timeout=10, **options)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[orbitmq.Client]:
        async with self.connect() as mq:
            yield mq

    async def topic(self, mq: orbitmq.Client, *, queues: int = QUEUES) -> str:
        """A topic that is there, with a route, when this returns."""
        name = self.name("topic")
        await mq.admin.create_topic(name, queues=queues)

        async def known() -> bool:
            try:
                route = await mq.admin.route(name)
            except orbitmq.NotFound:
                return False
            return len(list(route.read_queues())) == queues

        await until(known)
        return name


async def until(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]], limit_s: float = LIMIT_S
) -> None:
    async with asyncio.timeout(limit_s):
        while True:
            found = condition()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            await asyncio.sleep(0.02)


async def take(inbox: orbitmq.Consumer, count: int, limit_s: float = LIMIT_S) -> list[orbitmq.Message]:
    """The next messages, acknowledged."""
    taken: list[orbitmq.Message] = []
    async with asyncio.timeout(limit_s):
        async for msg in inbox:
            async with msg:
                taken.append(msg)
            if len(taken) == count:
                break
    return taken


async def nothing_comes(inbox: orbitmq.Consumer, quiet_s: float = 0.5) -> None:
    try:
        async with asyncio.timeout(quiet_s):
            msg = await anext(aiter(inbox))
    except TimeoutError:
        return
    raise AssertionError(f"{msg!r} with body {msg.body!r} came although nothing should")


def bodies(messages: list[orbitmq.Message]) -> list[bytes]:
    return sorted(message.body for message in messages)
