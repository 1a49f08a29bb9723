"""The open transactions of a broker, pure: what was stored comes in as events, what to do goes out as steps.

A half message that is asked for is written again behind all others, so that the broker's progress through the
half topic can move on; a transaction therefore has several offsets over time. Producers may name an old one.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

REMEMBERED_ENDS: Final = 100_000
REMEMBERED_MOVES: Final = 50_000
REMEMBERED_GIVEN_UP: Final = 10_000
CARRY_DISTANCE: Final = 1000
"""A half message that has to wait is taken along once this many came after it, and twice as many as are open: a start
reads no more."""

V = TypeVar("V")


class Outcome(Enum):
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    ENDED = "ended"
    """Known from an op message only, which does not tell how."""


@dataclass(slots=True)
class Half:
    queue_offset: int
    log_offset: int
    group: str
    since_ms: int
    """From when on its age counts: its birth, or when it was stored if its producer's clock is ahead."""
    immunity_ms: int | None = None
    """The time its producer wants before the first question; None is the broker's own."""
    checks: int = 0
    first_offset: int | None = None
    """Where it was first, if the record says so (TRAN_PREPARED_QUEUE_OFFSET)."""
    identity: int = 0
    """Equal for all records of one message."""
    body_bytes: int = 0


class Rules(NamedTuple):
    timeout_ms: int
    max_checks: int
    keep_ms: int
    carry_distance: int = CARRY_DISTANCE


class Step(Enum):
    WAIT = "wait"
    CHECK = "check"
    CARRY = "carry"
    GIVE_UP = "give up"


class Recent(Generic[V]):
    """A dictionary that forgets what was put first when it grows too large."""

    __slots__ = ("_limit", "_order", "_values")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order: deque[int] = deque()
        self._values: dict[int, V] = {}

    def put(self, key: int, value: V) -> None:
        if key not in self._values:
            self._order.append(key)
            if len(self._order) > self._limit:
                self._values.pop(self._order.popleft(), None)
        self._values[key] = value

    def get(self, key: int) -> V | None:
        return self._values.get(key)

    def forget(self, key: int) -> None:
        self._values.pop(key, None)

    def values(self) -> list[V]:
        return list(self._values.values())

    def __len__(self) -> int:
        return len(self._values)


class Ledger:
    """Offsets are those of the half topic's queue, op offsets those of the op topic's."""

    def __init__(self) -> None:
        self.open: dict[int, Half] = {}
        self.next_half = 0
        self.next_op = 0
        self._moved: Recent[int] = Recent(REMEMBERED_MOVES)
        self._ended: Recent[Outcome] = Recent(REMEMBERED_ENDS)
        self._given_up: Recent[Half] = Recent(REMEMBERED_GIVEN_UP)
        self._ops: deque[tuple[int, int]] = deque()

    def stored(self, half: Half) -> None:
        """A half message is in the log. They come in the order of their offsets."""
        self.open[half.queue_offset] = half
        self.next_half = max(self.next_half, half.queue_offset + 1)

    def moved(self, old_offset: int, half: Half) -> None:
        """The half message at the old offset was written again."""
        self.open.pop(old_offset, None)
        self._moved.put(old_offset, half.queue_offset)
        self.stored(half)

    def ended(self, offset: int, outcome: Outcome, op_offset: int | None = None) -> None:
        """The transaction with this offset, now or earlier, is over; `op_offset` is where that is written."""
        if op_offset is not None:
            self._ops.append((op_offset, offset))
            self.next_op = max(self.next_op, op_offset + 1)
        while True:
            self.open.pop(offset, None)
            if self._ended.get(offset) in (None, Outcome.ENDED):
                self._ended.put(offset, outcome)
            newer = self._moved.get(offset)
            if newer is None:
                return
            offset = newer

    def gave_up(self, offset: int) -> None:
        """Asked for too often or too old: put aside for people. Its producer may still end it."""
        half = self.open.pop(offset, None)
        if half is not None:
            self._given_up.put(offset, half)

    def not_stored(self, offset: int) -> None:
        """A half message that was told to be stored is not in the log."""
        self.open.pop(offset, None)

    def not_ended(self, offset: int, half: Half, op_offset: int) -> None:
        """An op that was told to be stored is not in the log: its transaction is open as before."""
        for ended in (offset, half.queue_offset):
            self._ended.forget(ended)
        self._ops = deque(op for op in self._ops if op != (op_offset, offset))
        self.open[half.queue_offset] = half
        self.open = dict(sorted(self.open.items()))

    def lost(self, offset: int) -> None:
        """Its record cannot be read any more."""
        self.open.pop(offset, None)

    def find(self, offset: int) -> Half | Outcome | None:
        """The transaction that has or had this offset: open or given up, ended, or None if not known."""
        while True:
            outcome = self._ended.get(offset)
            if outcome is not None:
                return outcome
            newer = self._moved.get(offset)
            if newer is None:
                return self.open.get(offset) or self._given_up.get(offset)
            offset = newer

    def moved_before(self, identity: int) -> Half | Outcome | None:
        """For an offset from before the last start: its message, if it was written again."""
        standing = self.same_message(identity)
        if isinstance(standing, Half) and not standing.checks and standing.first_offset is None:
            return None
        return standing

    def same_message(self, identity: int) -> Half | Outcome | None:
        """The transaction of this message, if one is open or was put aside. Looks at all of them."""
        for half in self.open.values():
            if half.identity == identity:
                return half
        for half in reversed(self._given_up.values()):
            if half.identity == identity:
                return self.find(half.queue_offset)
        return None

    def progress(self) -> tuple[int, int]:
        """(half, op): before the first all is settled; before the second no op is needed after a start."""
        half = next(iter(self.open), self.next_half)
        ops = self._ops
        while ops and ops[0][1] < half:
            ops.popleft()
        return half, ops[0][0] if ops else self.next_op


class Round:
    """One walk over the transactions that are open when it begins; each of them is looked at once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._offsets = deque(ledger.open)
        self._end = ledger.next_half
        self._open = len(ledger.open)

    @property
    def done(self) -> bool:
        return not self._offsets

    def steps(
        self,
        now_ms: int,
        rules: Rules,
        online: Callable[[str], bool],
        limit: int,
        most_bytes: int = sys.maxsize,
    ) -> list[tuple[Step, Half]]:
        """The next things to do, at most `limit`, and none after those that hold so many bytes.

        Those that wait are passed over, but not without end.
        """
        # To take them along spares a start what has ended between them. Where most are open there is nothing to spare,
        # and all of them would be written again with every round.
        rules = rules._replace(carry_distance=max(rules.carry_distance, 2 * self._open))
        found: list[tuple[Step, Half]] = []
        looked_at = taken_bytes = 0
        while self._offsets and len(found) < limit and taken_bytes < most_bytes and looked_at < limit * 20:
            looked_at += 1
            half = self._ledger.open.get(self._offsets.popleft())
            if half is None:
                continue
            step = decide(half, now_ms, rules, self._end - half.queue_offset, online)
            if step is not Step.WAIT:
                found.append((step, half))
                taken_bytes += half.body_bytes
        return found


def decide(half: Half, now_ms: int, rules: Rules, newer: int, online: Callable[[str], bool]) -> Step:
    """What happens to an open transaction that has `newer - 1` others behind it."""
    if is_over(half, now_ms, rules):
        return Step.GIVE_UP
    age_ms = now_ms - half.since_ms
    immunity_ms = rules.timeout_ms if half.immunity_ms is None else half.immunity_ms
    if age_ms >= immunity_ms and online(half.group):
        return Step.CHECK
    if half.immunity_ms is None and age_ms < immunity_ms:
        return Step.WAIT
    return Step.CARRY if newer > rules.carry_distance else Step.WAIT


def is_over(half: Half, now_ms: int, rules: Rules) -> bool:
    """Whether nobody is going to be asked any more."""
    return half.checks >= rules.max_checks or now_ms - half.since_ms > rules.keep_ms
