"""Many requests under way at once without a task for each: for work that is long lists of small requests.

    pipe = Pipe(cluster, at_once=512, done=note)
    for number, command in enumerate(commands):
        await pipe.put(addr, command)
    await pipe.finish()

Requests to one server go out in the order of `put`, many with one write, on the connection that everything uses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError, Unreachable, from_remoting
from orbitmq.net.errors import RemotingError
from orbitmq.wire.answer_json import Answer
from orbitmq.wire.command import Command, encode

if TYPE_CHECKING:
    from orbitmq.net.channel import Channel

Done = Callable[[int, Answer | OrbitMQError], None]
"""Takes the number of the request, counted from 0, and its answer, whatever its code, or why there is none."""


class Pipe:
    def __init__(self, cluster: Cluster, *, at_once: int, done: Done, timeout_s: float | None = None) -> None:
        self._cluster = cluster
        self._at_once = at_once
        self._done = done
        self._timeout_s = timeout_s or cluster.timeout_s
        self._channels: dict[str, Channel] = {}
        self._waiting: deque[tuple[int, asyncio.Future[Answer]]] = deque()
        self._count = 0
        self._lost: dict[str, OrbitMQError] = {}

    async def put(self, addr: str, command: Command) -> None:
        """Sends when there is room. Failures are told to `done`, never raised."""
        number = self._count
        self._count += 1
        while len(self._waiting) >= self._at_once:
            await self._take()
        try:
            channel = await self._channel(addr)
            command.opaque = channel.next_opaque()
            deadline = asyncio.get_running_loop().time() + self._timeout_s
            future = channel.submit(command.opaque, encode(command), deadline, self._timeout_s)
        except RemotingError as error:
            self._done(number, from_remoting(error))
        except OrbitMQError as error:
            self._done(number, error)
        else:
            self._waiting.append((number, future))

    async def _channel(self, addr: str) -> Channel:
        """A connection with room in its buffer. One that failed is not tried again for every request behind it."""
        if (known := self._lost.get(addr)) is not None:
            raise known
        channel = self._channels.get(addr)
        if channel is not None and channel.writable and not channel.closed:
            return channel
        try:
            if channel is None or channel.closed:
                channel = self._channels[addr] = await self._cluster.channel(addr)
            if not channel.writable:
                async with asyncio.timeout(self._timeout_s):
                    await channel.drain()
        except TimeoutError:
            self._lost[addr] = Unreachable(
                f"{addr} took nothing within {self._timeout_s:g} s",
                hint="it is overloaded or frozen, or something between drops packets",
            )
            raise self._lost[addr] from None
        except OrbitMQError as error:
            self._lost[addr] = error
            raise
        return channel

    async def finish(self) -> None:
        """Returns when every request has been answered or has failed."""
        while self._waiting:
            await self._take()

    async def _take(self) -> None:
        number, future = self._waiting.popleft()
        try:
            outcome: Answer | OrbitMQError = await future
        except RemotingError as error:
            outcome = from_remoting(error)
        self._done(number, outcome)
