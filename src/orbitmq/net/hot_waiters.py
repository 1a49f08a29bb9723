"""Those who wait for answers to sends: thousands at a time, one timer for all of them.

Their opaques come from the upper half of the range, so that an answer shows by its number that it belongs here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from orbitmq.wire.answer_json import Answer

FIRST_OPAQUE: Final = 1 << 30
LAST_OPAQUE: Final = (1 << 31) - 1
# Deadlines this close together are looked at in one go.
COALESCE_S: Final = 0.005
_NEVER: Final = float("inf")

Waiter = tuple["asyncio.Future[Answer]", float, float]
"""The future, its deadline on the loop's clock, and the timeout that was asked for."""


class HotWaiters:
    __slots__ = ("_expired", "_loop", "_opaque", "_timer", "due", "waiting")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, expired: Callable[[asyncio.Future[Answer], float], None]
    ) -> None:
        self.waiting: dict[int, Waiter] = {}
        self.due = _NEVER
        self._loop = loop
        self._expired = expired
        self._opaque = FIRST_OPAQUE - 1
        self._timer: asyncio.TimerHandle | None = None

    def next_opaque(self) -> int:
        self._opaque = opaque = self._opaque + 1 if self._opaque < LAST_OPAQUE else FIRST_OPAQUE
        return opaque

    def arm(self, deadline: float) -> None:
        """The next look at the deadlines is at the earliest of them: called when one is earlier than `due`."""
        if self._timer is not None:
            self._timer.cancel()
        self.due = deadline
        self._timer = self._loop.call_at(deadline, self._sweep)

    def resolve(self, answer: Answer) -> None:
        waiter = self.waiting.pop(answer.opaque, None)
        # No entry: the answer came after its timeout. Done: the caller was cancelled.
        if waiter is not None and not waiter[0].done():
            waiter[0].set_result(answer)

    def close(self) -> list[asyncio.Future[Answer]]:
        """Gives those who still wait, to be told why, and forgets everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left = [waiter[0] for waiter in self.waiting.values() if not waiter[0].done()]
        self.waiting.clear()
        return left

    def _sweep(self) -> None:
        self._timer = None
        now = self._loop.time() + COALESCE_S
        earliest = _NEVER
        late: list[int] = []
        for opaque, (_, deadline, _) in self.waiting.items():
            if deadline <= now:
                late.append(opaque)
            elif deadline < earliest:
                earliest = deadline
        for opaque in late:
            answer, _, timeout_s = self.waiting.pop(opaque)
            if not answer.done():
                self._expired(answer, timeout_s)
        self.due = _NEVER
        if earliest is not _NEVER:
            self.arm(earliest)
