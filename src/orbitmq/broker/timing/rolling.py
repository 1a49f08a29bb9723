"""Before a log file goes: the waiting messages in it are written anew at the end of the log.

The cleaner asks whether a file may go; the answer is no until everything in it that waits lies further on and
is on the device. Timers are rolled in the order of their queue, so one offset says which of them are
elsewhere now. Messages of levels become timers, since a level's queue only has room for messages stored now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orbitmq.broker.timing.levels import LevelProgress, lane_of
from orbitmq.broker.timing.records import Waiting, as_timer, rolled
from orbitmq.store.cleaner import DISK_FULL
from orbitmq.store.consume_queue import UNIT

if TYPE_CHECKING:
    from orbitmq.broker.timing.engine import Engine

log = logging.getLogger("orbitmq.broker")

_UNITS: Final = 64
_MOST_BYTES: Final = 2 << 20


class Roller:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._goal = 0
        self._written_end = 0
        self._asked = False
        self.on_done: Callable[[], None] = lambda: None

    @property
    def is_needed(self) -> bool:
        return self._asked

    def may_go(self, log_end: int) -> bool:
        """Whether the log up to here can be deleted; if not, work on it begins and `on_done` tells when to
        ask again.
        """
        if self._first_waiting() >= log_end and self._is_safe:
            return True
        self._goal = max(self._goal, log_end)
        self._asked = True
        return False

    @property
    def _is_safe(self) -> bool:
        return self._written_end <= self._engine.store.durability.offset

    def _first_waiting(self) -> int:
        """The first log offset whose record may still be needed."""
        engine = self._engine
        places = []
        queue = engine.indexer.queue
        if queue is not None:
            unit = queue.unit(max(engine.agenda.rolled, queue.min_offset))
            places += [unit[0]] if unit is not None else []
        for level in engine.levels:
            level_queue = engine.level_queue(level)
            unit = (
                level_queue.unit(max(level.offset, level_queue.min_offset))
                if level_queue is not None
                else None
            )
            places += [unit[0]] if unit is not None else []
        return min(places, default=1 << 62)

    def step(self, now_ms: int, out_of_time: Callable[[], bool]) -> bool:
        """Rolls some of them. Whether to go on at once."""
        store = self._engine.store
        if self._first_waiting() >= self._goal:
            if self._is_safe:
                self._asked = False
                self.on_done()
            elif not store.settings.sync_flush:
                store.durability.kick()
            return False
        # Room on the disk is made by rolling, so a full disk is no reason to wait; a broken one is.
        if store.refusal and not store.refusal.startswith(DISK_FULL):
            return False
        if not self._engine.is_clean or not self._engine.indexer.caught_up:
            return False
        try:
            while self._roll_some() and not out_of_time():
                continue
        except OSError as error:
            store.abandon_staged(error)
            log.warning("waiting messages of an old log file could not be written anew yet: %s", error)
            return False
        return True

    def _roll_some(self) -> bool:
        """One commit. False when nothing is left to do, or nothing can be done now."""
        before = self._engine.agenda.rolled
        timers_end = self._stage_timers()
        positions = self._stage_levels()
        if timers_end == before and not positions:
            return False
        store = self._engine.store
        if store.log.staged.units:
            self._written_end = store.commit_staged()
        for level, offset in positions.items():
            level.positions = (max(level.positions[0], offset), max(level.positions[1], offset))
        self._engine.agenda.rolled = timers_end
        self._engine.moved()
        return True

    def _stage_timers(self) -> int:
        """Returns the queue offset up to which all are elsewhere."""
        engine = self._engine
        queue = engine.indexer.queue
        if queue is None:
            return engine.agenda.rolled
        offset = max(engine.agenda.rolled, queue.min_offset)
        count = min(_UNITS, engine.indexer.next - offset)
        for position, _, _ in UNIT.iter_unpack(queue.read_units(offset, count) if count > 0 else b""):
            if position >= self._goal:
                break
            waiting = self._needed(position)
            due_ms = waiting.due_ms if waiting is not None else None
            if waiting is not None and due_ms is not None and (due_ms, offset) > engine.delivered:
                engine.store.stage_inner(rolled(waiting))
            offset += 1
        return offset

    def _stage_levels(self) -> dict[LevelProgress, int]:
        engine = self._engine
        moved: dict[LevelProgress, int] = {}
        for level in engine.levels:
            queue = engine.level_queue(level)
            if queue is None:
                continue
            offset = max(level.offset, queue.min_offset)
            for position, size, due_ms in UNIT.iter_unpack(queue.read_units(offset, _UNITS)):
                if position >= self._goal:
                    break
                lane = lane_of(engine.store.log.read, position, size)
                waiting = self._needed(position) if offset >= level.positions[lane] else None
                if waiting is not None:
                    engine.store.stage_inner(as_timer(waiting, due_ms))
                offset += 1
                moved[level] = offset
        return moved

    def _needed(self, position: int) -> Waiting | None:
        """What lies there, unless nobody wants it any more."""
        engine = self._engine
        if position in engine.cancelled:
            return None
        waiting = engine.lookup.read(position)
        if waiting is None:
            log.error("the waiting message at log offset %d cannot be read and is lost", position)
            return None
        return None if waiting.cancels is not None else waiting
