"""The queues this member owns: taking them, giving them away, saving how far they are.

Giving away is done in this order: no more pulls, nothing more to handlers, what they have is finished (within the
deadline), the offset is committed, the lock is given back. Taking is the mirror of it: the lock first, then the offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from orbitmq.client.errors import OrbitMQError
from orbitmq.client.holding import Holding
from orbitmq.client.locking import EXPIRES_S, VALID_S, Locks
from orbitmq.client.offset_store import OffsetStore
from orbitmq.client.scope import Scope
from orbitmq.wire.fastjson import MessageQueue

log = logging.getLogger("orbitmq.consumer")

RETRY_AFTER_S: Final = 1.0
LOCK_FIRST_PAUSE_S: Final = 0.02
LOCK_LONGEST_PAUSE_S: Final = 0.5
# The other side notices a change a little later than this one.
PATIENCE_S: Final = 2.0
HISTORY: Final = 64


@dataclass(slots=True)
class Rebalance:
    """One change of the owned queues, and how long nobody worked on those that moved."""

    taken: list[MessageQueue] = field(default_factory=list)
    left: list[MessageQueue] = field(default_factory=list)
    kept: int = 0
    pause_s: float = 0.0
    """The longest time, over all moved queues, from noticing the change to going on (or to having let go)."""
    unfinished: int = 0
    """Messages that were still in hand when the deadline for giving away was over: they come twice."""


class _Change:
    """A rebalance under way: reported when its last move is done."""

    def __init__(self, noticed: float, kept: int, moves: int) -> None:
        self.report = Rebalance(kept=kept)
        self.noticed = noticed
        self.moves = moves


@dataclass(frozen=True, slots=True)
class Rules:
    """How this member takes and gives."""

    ordered: bool
    handover_s: float
    retry_after_s: float = RETRY_AFTER_S


class Assignments:
    """Owned queues by name. Every move is a task of the scope; `apply` only starts them."""

    def __init__(
        self,
        scope: Scope,
        store: OffsetStore,
        locks: Locks | None,
        rules: Rules,
        *,
        make: Callable[[MessageQueue, int], Holding],
        first_offset: Callable[[MessageQueue], Awaitable[int]],
        go_on: Callable[[Holding], None],
        moved: Callable[[], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self.holdings: dict[MessageQueue, Holding] = {}
        self.history: deque[Rebalance] = deque(maxlen=HISTORY)
        self._scope = scope
        self._store = store
        self._locks = locks
        self._rules = rules
        self._make = make
        self._first_offset = first_offset
        self._go_on = go_on
        self._moved = moved
        self._clock_ms = clock_ms
        self._moves: dict[MessageQueue, asyncio.Task[None]] = {}
        # One save at a time: an older offset must not arrive after a newer one.
        self._saving = asyncio.Lock()
        self._replaced: dict[MessageQueue, float] = {}
        self._now = asyncio.get_running_loop().time

    # --- changing what is owned -------------------------------------------------------------------------------

    def apply(
        self, wanted: Collection[MessageQueue], noticed: float, *, from_others: Collection[MessageQueue] = ()
    ) -> None:
        """Starts to take and to give away what differs. Queues that stay are not touched at all.

        `from_others` are queues that a living member is about to give away: those are waited for.
        """
        target = set(wanted)
        for queue, task in list(self._moves.items()):
            if queue not in target and queue not in self.holdings:
                task.cancel()  # being taken, and not wanted any more
        held = {queue for queue, holding in self.holdings.items() if not holding.dropped}
        leaving = sorted(held - target)
        taking = sorted(queue for queue in target - self.holdings.keys() if queue not in self._moves)
        if not leaving and not taking:
            return
        change = _Change(noticed, len(held & target), len(leaving) + len(taking))
        for queue in leaving:
            self._start(queue, change, partial(self._leave, queue, change))
        for queue in taking:
            self._start(queue, change, partial(self._take, queue, change, queue in from_others))

    def replace(self, holding: Holding, offset: int) -> None:
        """Goes on with a queue at another offset: everything pulled of it before is forgotten."""
        queue = holding.queue
        if self.holdings.get(queue) is not holding or holding.dropped:
            return

        async def work() -> None:
            holding.drop()
            now = self._now()
            if now - self._replaced.get(queue, -VALID_S) < self._rules.retry_after_s:
                # A broker that refuses every offset must not be asked in a tight circle.
                await asyncio.sleep(self._rules.retry_after_s)
            self._replaced[queue] = now
            await holding.settle(self._rules.handover_s)
            holding.replaced = True
            async with self._saving:
                await self._store.save({queue: offset})
            fresh = self._make(queue, offset)
            fresh.committed = offset
            fresh.locked_until, fresh.lock_taken_ms = holding.locked_until, holding.lock_taken_ms
            self.holdings[queue] = fresh
            self._go_on(fresh)

        self._start(queue, _Change(self._now(), 0, 0), work)

    async def leave_all(self, deadline_s: float, *, returns_only: bool) -> None:
        """Gives everything away, at the end.

        `returns_only`: nobody will settle what is still in hand, so only what is on its way back is waited for.
        """
        for task in list(self._moves.values()):
            task.cancel()
        await asyncio.gather(*self._moves.values(), return_exceptions=True)
        holdings = list(self.holdings.values())
        for holding in holdings:
            holding.drop()
        await asyncio.gather(*(holding.settle(deadline_s, returns_only=returns_only) for holding in holdings))
        if left := sum(holding.in_hand for holding in holdings):
            log.info("%d messages were handed out and not settled: they come again", left)
        await self.commit()
        if self._locks is not None:
            await self._locks.give(self.holdings)
        self.holdings.clear()

    def _start(self, queue: MessageQueue, change: _Change, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            finally:
                if self._moves.get(queue) is asyncio.current_task():
                    del self._moves[queue]
                self._note(change)

        self._moves[queue] = self._scope.spawn(run(), name=f"move-{queue.topic}-{queue.queue_id}")

    def _note(self, change: _Change) -> None:
        change.moves -= 1
        if change.moves == 0:
            report = change.report
            self.history.append(report)
            log.info(
                "queues: %d taken, %d given away, %d kept; nobody worked on those that moved for %.3f s at most",
                len(report.taken),
                len(report.left),
                report.kept,
                report.pause_s,
            )
        self._moved()

    async def _leave(self, queue: MessageQueue, change: _Change) -> None:
        holding = self.holdings[queue]
        started = self._now()
        holding.drop()
        deadline_s = self._rules.handover_s
        if self._rules.ordered:
            # Until the lock ends by itself nobody else works on the queue, so there is time.
            deadline_s = max(deadline_s, holding.locked_until - VALID_S + EXPIRES_S - started)
        if not await holding.settle(deadline_s):
            change.report.unfinished += holding.in_hand
            log.warning(
                "%r is given away with %d messages unfinished after %g s: they come twice",
                holding,
                holding.in_hand,
                deadline_s,
            )
        await self._commit([holding])
        if self._locks is not None:
            await self._locks.give([queue])
        if self.holdings.get(queue) is holding:
            del self.holdings[queue]
        change.report.left.append(queue)
        change.report.pause_s = max(change.report.pause_s, self._now() - started)

    async def _take(self, queue: MessageQueue, change: _Change, from_other: bool) -> None:
        lock_taken = await self._lock(queue, from_other)
        try:
            offset, known = await self._start_offset(queue)
        except asyncio.CancelledError:
            if lock_taken is not None and self._locks is not None:
                await self._locks.give([queue])  # not wanted any more: whoever gets it need not wait
            raise
        holding = self._make(queue, offset)
        if known and offset:
            # Brokers say 0 also to a group that they hold no offset of; until one is saved it cannot be reset there.
            holding.committed = offset
        if lock_taken is not None:
            self._note_lock(holding, lock_taken)
        self.holdings[queue] = holding
        self._go_on(holding)
        change.report.taken.append(queue)
        change.report.pause_s = max(change.report.pause_s, self._now() - change.noticed)

    async def _lock(self, queue: MessageQueue, from_other: bool) -> float | None:
        """When the lock was taken; None when it is not needed and not to be had."""
        if self._locks is None:
            return None
        deadline = self._now() + (self._rules.handover_s + PATIENCE_S if from_other else 0.0)
        pause_s = LOCK_FIRST_PAUSE_S
        while True:
            asked = self._now()
            if await self._locks.take([queue]):
                return asked
            if not self._rules.ordered and self._now() >= deadline:
                return None
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LOCK_LONGEST_PAUSE_S)

    async def _start_offset(self, queue: MessageQueue) -> tuple[int, bool]:
        """Where to begin, and whether that is what the store says. Asked until there is an answer."""
        told = False
        while True:
            try:
                stored = await self._store.load(queue)
                return (await self._first_offset(queue), False) if stored is None else (stored, True)
            except OrbitMQError as error:
                if not told:
                    told = True
                    log.warning(
                        "queue %d of topic '%s' on %s is not started yet: %s",
                        queue.queue_id,
                        queue.topic,
                        queue.broker_name,
                        error,
                    )
                await asyncio.sleep(self._rules.retry_after_s)

    # --- keeping it -------------------------------------------------------------------------------------------

    async def renew_locks(self) -> None:
        """Renews the locks of everything owned, also of what is being given away."""
        if self._locks is None or not self.holdings:
            return
        asked = self._now()
        renewed = await self._locks.take(list(self.holdings))
        for queue, holding in list(self.holdings.items()):
            if queue in renewed:
                self._note_lock(holding, asked)
                holding.nudge()
            elif self._rules.ordered and not holding.dropped:
                log.warning("the lock of %r is not renewed; it rests until it is", holding)

    def _note_lock(self, holding: Holding, taken: float) -> None:
        holding.locked_until = taken + VALID_S
        holding.lock_taken_ms = self._clock_ms()

    async def commit(self) -> None:
        """Saves whatever moved since the last time."""
        await self._commit(list(self.holdings.values()))

    async def _commit(self, holdings: list[Holding]) -> None:
        async with self._saving:
            due = {
                holding: offset
                for holding in holdings
                if holding.committed != (offset := holding.unfinished.commit_offset) and not holding.replaced
            }
            if not due:
                return
            saved = await self._store.save({holding.queue: offset for holding, offset in due.items()})
            for holding, offset in due.items():
                if holding.queue in saved:
                    holding.committed = offset
