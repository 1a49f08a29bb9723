"""Which slave holds how much of the log, and who waits for it. No input or output: offsets and times come in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from orbitmq.store.durability import Durable, Waiter


class Confirmations:
    """Under double write a message is confirmed when the slave that is furthest has it.

    Without a slave, or with all of them too far behind, nobody is kept waiting: the sender hears so at once.
    """

    def __init__(self, clock: Callable[[], int], timeout_ms: int, most_behind: int) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._most_behind = most_behind
        self._reached: dict[Hashable, int] = {}
        self._waiters: deque[tuple[int, int, Waiter]] = deque()

    @property
    def best(self) -> int:
        return max(self._reached.values(), default=-1)

    @property
    def slaves(self) -> int:
        return len(self._reached)

    def confirmed(self, slave: Hashable, offset: int) -> None:
        """A slave says how far it has come; what it says now counts, also when it is less than before."""
        self._reached[slave] = offset
        best = self.best
        while self._waiters and self._waiters[0][0] <= best:
            self._waiters.popleft()[2](Durable.YES)

    def lost(self, slave: Hashable) -> None:
        """Who waits goes on waiting: it, or another one, may be back in time."""
        self._reached.pop(slave, None)

    def after(self, end: int, waiter: Waiter) -> Waiter:
        def on_device(outcome: Durable) -> None:
            if outcome is Durable.YES:
                self.when(end, waiter)
            else:
                waiter(outcome)

        return on_device

    def when(self, end: int, waiter: Waiter) -> None:
        """Calls the waiter when a slave has everything up to `end`, or none can be waited for, or it takes too long."""
        best = self.best
        if best >= end:
            waiter(Durable.YES)
        elif best < 0 or end - best >= self._most_behind:
            waiter(Durable.NO_COPY)
        else:
            self._waiters.append((end, self._clock() + self._timeout_ms, waiter))

    def expire(self) -> None:
        """Ends come in order, so do the times by which they must have been confirmed."""
        now = self._clock()
        while self._waiters and self._waiters[0][1] <= now:
            self._waiters.popleft()[2](Durable.COPY_TIMEOUT)
