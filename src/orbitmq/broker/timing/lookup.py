"""Finding waiting messages: one by its id, or all of them in the order of delivery."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker.timing.levels import LevelProgress, lane_of
from orbitmq.broker.timing.records import Waiting, read_waiting
from orbitmq.store.consume_queue import UNIT, ConsumeQueue
from orbitmq.wire.errors import WireError
from orbitmq.wire.topics import SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from orbitmq.broker.timing.engine import Engine
    from orbitmq.store.message_store import MessageStore

_FOREVER_MS: Final = (1 << 63) - 1
_CANDIDATES: Final = 64
_NEARBY_MS: Final = 1_000
_NEARBY: Final = 10_000


class State(Enum):
    WAITING = "waiting"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"


class Spot(NamedTuple):
    """A place in the order of delivery; `source` is 0 for timers, else the level."""

    due_ms: int
    source: int
    queue_offset: int


class Found(NamedTuple):
    spot: Spot
    position: int
    waiting: Waiting
    state: State


class Lookup:
    def __init__(self, store: MessageStore, engine: Engine) -> None:
        self._store = store
        self._engine = engine

    # --- by id ----------------------------------------------------------------------------------------------

    def targets(self, topic: str, key: str) -> list[tuple[int, int]]:
        """(log offset, delivery time) of what waits under this id."""
        return [
            (found.position, found.spot.due_ms)
            for found in self.by_id(topic, key)
            if found.state is State.WAITING
        ]

    def by_id(self, topic: str, key: str, around_ms: int | None = None) -> list[Found]:
        """Every record of this id that waits or waited here, by the key index; without it, by the delivery
        time.
        """
        if self._store.index is None:
            return [] if around_ms is None else self._nearby(topic, key, around_ms)
        found: list[Found] = []
        cancelled = False
        for internal in (TIMER_TOPIC, SCHEDULE_TOPIC):
            for position in self._store.query_keys(internal, key, 0, _FOREVER_MS, _CANDIDATES):
                waiting = self.read(position)
                if waiting is None or waiting.message.topic != internal or waiting.real_topic != topic:
                    continue
                if waiting.cancels == key:
                    cancelled = True
                elif waiting.unique_key == key and waiting.cancels is None:
                    one = self._judged(position, waiting)
                    found += [one] if one is not None else []
        if cancelled:
            found = [
                one if one.state is State.WAITING else one._replace(state=State.CANCELLED) for one in found
            ]
        return found

    def _nearby(self, topic: str, key: str, around_ms: int) -> list[Found]:
        found = []
        after = Spot(around_ms - _NEARBY_MS, 0, -1)
        for looked, one in enumerate(self.walk(after)):
            if looked >= _NEARBY or one.spot.due_ms > around_ms + _NEARBY_MS:
                break
            if one.waiting.unique_key == key and one.waiting.real_topic == topic:
                found.append(one)
        return found

    def read(self, position: int) -> Waiting | None:
        record = self._store.read_record(position)
        if record is None:
            return None
        try:
            waiting = read_waiting(record)
        except WireError:
            return None
        return waiting if waiting.message.physical_offset == position else None

    def _judged(self, position: int, waiting: Waiting) -> Found | None:
        """None for the older copies of a rolled timer."""
        message = waiting.message
        engine = self._engine
        if message.topic == TIMER_TOPIC:
            due_ms = waiting.due_ms or 0
            if message.queue_offset < engine.agenda.rolled:
                return None
            source = 0
            done = engine.is_done(due_ms, message.queue_offset)
        else:
            level = self._level(message.queue_id + 1)
            if level is None:
                return None
            source = level.level
            due_ms = message.store_ms + level.delay_ms
            lane = lane_of(self._store.log.read, position, message.size)
            done = message.queue_offset < level.positions[lane]
        state = State.DELIVERED if done else State.WAITING
        if position in engine.cancelled:
            state = State.CANCELLED
        return Found(Spot(due_ms, source, message.queue_offset), position, waiting, state)

    def _level(self, number: int) -> LevelProgress | None:
        levels = self._engine.levels
        return levels[number - 1] if 1 <= number <= len(levels) else None

    # --- in order -------------------------------------------------------------------------------------------

    def page(self, after: Spot, most: int) -> list[tuple[Spot, int, int]]:
        """The next places (spot, log offset, record size) behind a spot, whatever lies there."""
        key = (after.due_ms, after.queue_offset if after.source == 0 else _FOREVER_MS - 1)
        found = [
            (Spot(due, 0, queue_offset), position, size)
            for due, queue_offset, position, size in self._engine.agenda.after(key, most)
        ]
        for level in self._engine.levels:
            queue = self._engine.level_queue(level)
            if queue is not None:
                found += self._in_level(level, queue, after, most)
        return sorted(found)[:most]

    def _in_level(
        self, level: LevelProgress, queue: ConsumeQueue, after: Spot, most: int
    ) -> list[tuple[Spot, int, int]]:
        low = high = max(level.offset, queue.min_offset)
        high = queue.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = queue.unit(middle)
            if unit is not None and Spot(unit[2], level.level, middle) <= after:
                low = middle + 1
            else:
                high = middle
        found: list[tuple[Spot, int, int]] = []
        while low < queue.max_offset and len(found) < most:
            units = queue.read_units(low, most)
            if not units:
                break
            for position, size, due_ms in UNIT.iter_unpack(units):
                if self._still_waits(level, low, position, size):
                    found.append((Spot(due_ms, level.level, low), position, size))
                low += 1
        return found[:most]

    def _still_waits(self, level: LevelProgress, offset: int, position: int, size: int) -> bool:
        users, retries = level.positions
        if users == retries:
            return offset >= users
        return offset >= level.positions[lane_of(self._store.log.read, position, size)]

    def walk(self, after: Spot, most: int = 256) -> Iterator[Found]:
        """Waiting messages in the order of delivery."""
        while True:
            page = self.page(after, most)
            for spot, position, _ in page:
                after = spot
                waiting = self.read(position)
                if waiting is not None and position not in self._engine.cancelled:
                    yield Found(spot, position, waiting, State.WAITING)
            if len(page) < most:
                return
