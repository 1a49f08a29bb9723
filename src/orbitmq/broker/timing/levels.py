"""One delay level: how far its queue in the schedule topic has been delivered.

The queue is in order of delivery, so two positions are all there is. Retries of consumers and delays of users
share the queue, by the format; when more is due than one step takes, each of the two goes on at its own pace,
so that neither has to wait for the other's backlog.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orbitmq.store.consume_queue import UNIT, ConsumeQueue

USERS: Final = 0
RETRIES: Final = 1
LOOK_AHEAD: Final = 16
"""How many times more units than it may deliver a lane looks at in one step."""

_RETRY_MARK: Final = b"REAL_TOPIC\x01%RETRY%"
_TAIL_BYTES: Final = 1024

Place = tuple[int, int]
"""(log offset, record size)"""
Positions = tuple[int, int]
"""The next queue offset of users' messages and of retries."""
Read = Callable[[int, int], bytes]


def lane_of(read: Read, position: int, size: int) -> int:
    """Looks only at the end of the record, where the properties are. All that matters is that the answer
    stays the same.
    """
    tail = min(size, _TAIL_BYTES)
    return RETRIES if _RETRY_MARK in read(position + size - tail, tail) else USERS


class LevelProgress:
    def __init__(self, level: int, delay_ms: int, positions: Positions = (0, 0)) -> None:
        self.level = level
        self.delay_ms = delay_ms
        self.positions = positions
        self._first = USERS
        self._head: tuple[int, int] = (-1, 0)

    def is_due(self, deliver_ms: int, now_ms: int) -> bool:
        """Also when it lies further ahead than the level allows: the clock or the level was changed since."""
        return deliver_ms <= now_ms or deliver_ms > now_ms + self.delay_ms

    @property
    def offset(self) -> int:
        """Everything before is delivered."""
        return min(self.positions)

    def clamp(self, queue: ConsumeQueue) -> None:
        """A queue whose beginning was cleaned, or whose end was lost, moves the positions with it."""
        users, retries = (min(max(p, queue.min_offset), queue.max_offset) for p in self.positions)
        self.positions = (users, retries)

    def next_ms(self, queue: ConsumeQueue, now_ms: int) -> int | None:
        """When the next message is due, None when none waits."""
        offset = self.offset
        if offset >= queue.max_offset:
            return None
        if self._head[0] != offset:
            unit = queue.unit(offset)
            if unit is None:
                return now_ms
            self._head = (offset, unit[2])
        due = self._head[1]
        return now_ms if self.is_due(due, now_ms) else due

    def plan(self, queue: ConsumeQueue, read: Read, now_ms: int, most: int) -> tuple[list[Place], Positions]:
        """What to deliver now, and the positions after that. Nothing changes before `positions` is set."""
        users, retries = self.positions
        if users == retries:
            places, end = self._together(queue, users, now_ms, most)
            if len(places) < most or self._nothing_due(queue, end, now_ms):
                return places, (end, end)
        self._first = 1 - self._first
        planned = [users, retries]
        places = []
        for lane in (self._first, 1 - self._first):
            found, planned[lane] = self._alone(queue, read, lane, planned[lane], now_ms, max(1, most // 2))
            places += found
        return places, (planned[USERS], planned[RETRIES])

    def _together(self, queue: ConsumeQueue, offset: int, now_ms: int, most: int) -> tuple[list[Place], int]:
        places: list[Place] = []
        for position, size, due in self._units(queue, offset, most):
            if not self.is_due(due, now_ms):
                break
            places.append((position, size))
        return places, self._skip_damage(queue, offset, len(places))

    def _alone(
        self, queue: ConsumeQueue, read: Read, lane: int, offset: int, now_ms: int, most: int
    ) -> tuple[list[Place], int]:
        places: list[Place] = []
        looked = 0
        for position, size, due in self._units(queue, offset, most * LOOK_AHEAD):
            if len(places) >= most or not self.is_due(due, now_ms):
                break
            looked += 1
            if lane_of(read, position, size) == lane:
                places.append((position, size))
        return places, self._skip_damage(queue, offset, looked)

    def _nothing_due(self, queue: ConsumeQueue, offset: int, now_ms: int) -> bool:
        unit = queue.unit(offset) if offset < queue.max_offset else None
        return unit is None or not self.is_due(unit[2], now_ms)

    @staticmethod
    def _units(queue: ConsumeQueue, offset: int, most: int) -> list[tuple[int, int, int]]:
        data = queue.read_units(offset, most)
        return list(UNIT.iter_unpack(data[: len(data) - len(data) % UNIT.size]))

    @staticmethod
    def _skip_damage(queue: ConsumeQueue, offset: int, read: int) -> int:
        """A stretch of the queue that cannot be read is passed over, as consumers pass over it."""
        if read == 0 and queue.min_offset <= offset < queue.max_offset and not queue.read_units(offset, 1):
            return min(queue.next_file_offset(offset), queue.max_offset)
        return offset + read
