"""The line in which pulled messages wait for their handlers: an async iterator.

Pages go through it in chunks. Messages are made when a chunk is opened, and the event loop gets a turn between two
chunks: a handler that never waits would otherwise keep heartbeats, locks and commits from running.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from orbitmq.client.core.advice import HandlingTimes
from orbitmq.client.holding import Holding
from orbitmq.client.message import Message

CHUNK: Final = 128
# Asking for the processor's time costs as much as a dozen messages.
MEASURE_ONE_OF: Final = 16


class _Chunk(NamedTuple):
    holding: Holding
    buf: bytes
    starts: list[int]
    """The last one is handed out first."""


class Inbox:
    """Messages in the order of their queues, queues in turn. Any number of tasks may iterate at the same time."""

    def __init__(
        self,
        times: HandlingTimes | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.closed = False
        self._open: list[Message] = []
        self._chunks: deque[_Chunk] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._failure: Exception | None = None
        self._times = times
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._opened = (0, 0.0, 0.0)
        self._chunks_opened = 0

    def __len__(self) -> int:
        return len(self._open) + sum(len(chunk.starts) for chunk in self._chunks)

    def put(self, holding: Holding, buf: bytes, starts: list[int]) -> None:
        """Takes a page: where its wanted records begin, in order."""
        for at in range(0, len(starts), CHUNK):
            self._chunks.append(_Chunk(holding, buf, starts[at : at + CHUNK][::-1]))
        self._wake(len(starts))

    def put_back(self, msg: Message) -> None:
        """A message that has to be handed out once more, before all others."""
        self._open.append(msg)
        self._wake(1)

    def purge(self, holding: Holding) -> int:
        """Takes out what waits of a queue that is given away; tells how many messages that were."""
        before = len(self)
        self._open = [msg for msg in self._open if msg.origin is not holding]
        self._chunks = deque(chunk for chunk in self._chunks if chunk.holding is not holding)
        return before - len(self)

    def close(self, failure: Exception | None = None) -> None:
        """Ends the iteration for everybody, with the error if there is one."""
        self.closed = True
        self._failure = failure
        self._wake(len(self._waiters))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._open and not self.closed:
            return self._open.pop()
        return await self._next()

    async def _next(self) -> Message:
        waited = False
        self._measure()
        while True:
            if self.closed:
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            if self._open:
                return self._open.pop()
            if not self._chunks:
                await self._wait()
                waited = True
            elif not waited:
                await asyncio.sleep(0)
                waited = True
            else:
                self._open_chunk()

    def _open_chunk(self) -> None:
        holding, buf, starts = self._chunks.popleft()
        make, broker = holding.message, holding.queue.brokerName
        self._open = [make(buf, start, broker, holding) for start in starts]
        self._chunks_opened += 1
        if self._times is not None and self._chunks_opened % MEASURE_ONE_OF == 1:
            self._opened = (len(starts), self._clock(), self._cpu_clock())

    def _measure(self) -> None:
        """How long the messages of the last chunk took, for the advice on concurrency."""
        count, wall, cpu = self._opened
        if count and self._times is not None:
            self._opened = (0, 0.0, 0.0)
            self._times.record((self._cpu_clock() - cpu) / count, (self._clock() - wall) / count)

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(1)  # the message that woke this task is for another one now
            raise
        finally:
            if not waiter.done():
                waiter.cancel()

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
