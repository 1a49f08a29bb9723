"""Ordered consumption: of every queue one message at a time, the next one only when it is done.

A message that fails keeps its place: the queue stands still for a moment and the same message comes again. Nothing is
handed out without the broker's lock, so two members never work on one queue at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Self

from orbitmq.client.core import back_off
from orbitmq.client.holding import Holding, Shared
from orbitmq.client.message import DONE, Message
from orbitmq.wire.fastjson import MessageQueue

log = logging.getLogger("orbitmq.consumer")

# The event loop gets a turn after so many messages, whatever the handlers do.
TURN: Final = 128


class OrderedHolding(Holding):
    """An owned queue with at most one message in hand."""

    def __init__(self, queue: MessageQueue, start: int, shared: Shared) -> None:
        super().__init__(queue, start, shared)
        self.waiting: deque[tuple[bytes, int]] = deque()
        self.again: Message | None = None
        self.busy = False
        self.in_turn = False
        self._max_retries = shared.max_retries

    def next_message(self, now: float) -> Message | None:
        """The next message, unless one is in hand, the lock has run out, or there is none."""
        if self.busy or self.dropped or now >= self.locked_until:
            return None
        if self.again is not None:
            msg, self.again = self.again, None
        elif self.waiting:
            buf, start = self.waiting.popleft()
            msg = self.message(buf, start, self.queue.brokerName, self)
        else:
            return None
        self.busy = True
        return msg

    def finish(self, msg: Message) -> None:
        super().finish(msg)
        self.busy = False
        if self.waiting:
            self._line.offer(self)  # type: ignore[attr-defined]

    def retry(self, msg: Message, after_s: float | None, reason: str) -> Awaitable[None]:
        if self._max_retries is not None and msg.reconsume_times >= self._max_retries:
            log.warning("%r failed %d times and is put aside", msg, msg.reconsume_times + 1)
            return self.bury(msg, reason)
        self._tally.failed += 1
        self._later(msg, back_off.ordered_pause_s(after_s))
        return DONE

    def nudge(self) -> None:
        if self.waiting or self.again is not None:
            self._line.offer(self)  # type: ignore[attr-defined]


class OrderedInbox:
    """Gives messages of all queues that are free, queues in turn. Any number of tasks may iterate."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.closed = False
        self._clock = clock
        self._turns: deque[OrderedHolding] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._failure: Exception | None = None
        self._given = 0

    def put(self, holding: Holding, buf: bytes, starts: list[int]) -> None:
        assert isinstance(holding, OrderedHolding)
        holding.waiting.extend((buf, start) for start in starts)
        self.offer(holding)

    def put_back(self, msg: Message) -> None:
        """A message that comes again before the rest of its queue."""
        holding = msg.origin
        assert isinstance(holding, OrderedHolding)
        holding.again = msg
        holding.busy = False
        self.offer(holding)

    def purge(self, holding: Holding) -> int:
        assert isinstance(holding, OrderedHolding)
        count = len(holding.waiting) + (holding.again is not None)
        holding.waiting.clear()
        holding.again = None
        return count

    def offer(self, holding: OrderedHolding) -> None:
        """A queue may have something to give: it gets a turn."""
        if not holding.in_turn and not holding.busy and not holding.dropped:
            holding.in_turn = True
            self._turns.append(holding)
            self._wake()

    def close(self, failure: Exception | None = None) -> None:
        """Ends the iteration for everybody, with the error if there is one."""
        self.closed = True
        self._failure = failure
        for _ in range(len(self._waiters)):
            self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        self._given += 1
        if self._given % TURN == 0:
            await asyncio.sleep(0)
        while not self.closed:
            while self._turns:
                holding = self._turns.popleft()
                holding.in_turn = False
                msg = holding.next_message(self._clock())
                if msg is not None:
                    return msg
            await self._wait()
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake()  # the turn that woke this task is for another one now
            raise

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
