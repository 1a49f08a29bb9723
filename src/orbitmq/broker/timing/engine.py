"""Delivering what is due, a few milliseconds at a time: the meeting place of index, levels, checkpoint and
rolling.

No event loop here: `step` is called with the time, does a bounded piece of work and says whether there is
more.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from orbitmq.broker.delays import DelayOffsets
from orbitmq.broker.timing.agenda import Agenda
from orbitmq.broker.timing.cancelled import Cancelled
from orbitmq.broker.timing.checkpoint import CheckpointFile, Progress
from orbitmq.broker.timing.indexer import Indexer
from orbitmq.broker.timing.keeper import FLUSH_EVERY, Keeper
from orbitmq.broker.timing.levels import LevelProgress, Place
from orbitmq.broker.timing.lookup import Lookup
from orbitmq.broker.timing.outbox import Outbox
from orbitmq.broker.timing.rolling import Roller
from orbitmq.broker.timing.runs import LAST_QUEUE_OFFSET, Entry, Key
from orbitmq.store.consume_queue import ConsumeQueue
from orbitmq.store.flush import Runner
from orbitmq.wire.topics import SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore

log = logging.getLogger("orbitmq.broker")

DIRECTORY: Final = "timers"
POLL_MS: Final = 250
"""How soon messages are noticed that came without a word: a level's shortest delay is four times that."""
SOURCE_BATCH: Final = 64
UNFLUSHED_BYTES: Final = 8 << 20
"""Deliveries wait when so much of the log is not on the device yet."""
_REFUSED_MS: Final = 200
_CONGESTED_MS: Final = 3
_NOTE_MS: Final = 5_000
_SYNC_MS: Final = 1_000
_PURGE_MS: Final = 60_000

Stats = Callable[[str, int, int], None]


class Engine:
    def __init__(
        self,
        store: MessageStore,
        offsets: DelayOffsets,
        runner: Runner,
        stats: Stats = lambda topic, count, size: None,
        *,
        agenda: Agenda | None = None,
        flush_every: int = FLUSH_EVERY,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._runner = runner
        directory = os.path.join(store.settings.root, DIRECTORY)
        store.disk.makedirs(directory)
        self._file = CheckpointFile(store.disk, os.path.join(directory, "checkpoint"))
        self._progress = self._file.load(store.log.position)
        self.cancelled = Cancelled()
        self.agenda = agenda or Agenda()
        self.keeper = Keeper(store.disk, directory, runner, self.agenda, self.cancelled.to_bytes, flush_every)
        queue = store.find_queue(TIMER_TOPIC, 0)
        queue_end = queue.max_offset if queue is not None else 0
        if self._progress.indexed > queue_end:
            log.error("the timer queue is shorter than its checkpoint says: timers may be delivered twice")
            self._progress = Progress(levels=self._progress.levels)
        self.cancelled.load(self.keeper.load(queue_end, self._progress), store.log.position)
        self.delivered: Key = self._progress.delivered
        self.levels = [
            self._level(number, delay) for number, delay in enumerate(store.settings.delay_levels_ms, 1)
        ]
        self.lookup = Lookup(store, self)
        self.indexer = Indexer(
            store, self.agenda, self.keeper, self.cancelled, self.lookup.targets, self._progress
        )
        self.outbox = Outbox(store, self.cancelled, stats)
        self.roller = Roller(self)
        self._unflushed: deque[Progress] = deque()
        self._noted = self._progress
        self._noted_ms = 0
        self._has_moved = False
        self._turn = 0
        self._last_sync_ms = 0
        self._last_purge_ms = 0

    @property
    def store(self) -> MessageStore:
        return self._store

    def _level(self, number: int, delay_ms: int) -> LevelProgress:
        """The checkpoint is fresher than delayOffset.json, unless another broker used the directory since."""
        offset = self._offsets.get(number)
        users, retries = self._progress.levels.get(str(number), (0, 0))
        level = LevelProgress(number, delay_ms, (max(users, offset), max(retries, offset)))
        queue = self.level_queue(level)
        if queue is None:
            level.positions = (0, 0)
        else:
            level.clamp(queue)
        return level

    def level_queue(self, level: LevelProgress) -> ConsumeQueue | None:
        return self._store.find_queue(SCHEDULE_TOPIC, level.level - 1)

    # --- one step -------------------------------------------------------------------------------------------

    def step(self, now_ms: int, out_of_time: Callable[[], bool]) -> bool:
        """Whether there is more to do at once."""
        self.indexer.advance(out_of_time)
        more = self.indexer.is_behind
        if not self._store.refusal and not self._congested:
            more = self._deliver(now_ms, out_of_time) or more
        if self.roller.is_needed:
            more = self.roller.step(now_ms, out_of_time) or more
        self.save(now_ms)
        return more

    @property
    def _congested(self) -> bool:
        store = self._store
        return store.settings.sync_flush and store.log.position - store.durability.offset > UNFLUSHED_BYTES

    def _deliver(self, now_ms: int, out_of_time: Callable[[], bool]) -> bool:
        """Timers and levels take turns, so that a backlog of one does not hold up the others."""
        taken: list[Entry] = []
        planned: dict[LevelProgress, tuple[int, int]] = {}
        more = True
        try:
            while more and not out_of_time() and not self.outbox.is_full:
                more = False
                for source in self._sources(now_ms):
                    if out_of_time() or self.outbox.is_full:
                        more = True
                        break
                    if source is None:
                        entries = self.agenda.take_due(now_ms, SOURCE_BATCH)
                        taken += entries
                        places: list[Place] = [(position, size) for _, _, position, size in entries]
                        more = more or bool(entries)
                    else:
                        places, went_on = self._plan(source, planned, now_ms)
                        more = more or went_on
                    self.outbox.add(places, now_ms)
            self.outbox.send()
        except BaseException as error:
            self.outbox.drop()
            self.agenda.put_back(taken)
            if not isinstance(error, OSError):
                raise
            log.warning("waiting messages could not be delivered, they are tried again: %s", error)
            return False
        for level, positions in planned.items():
            level.positions = positions
        if taken or planned:
            self.moved()
        self._advance(now_ms, taken)
        return more

    def moved(self) -> None:
        """Something was delivered or written anew: worth a note at once."""
        self._has_moved = True

    def _sources(self, now_ms: int) -> list[LevelProgress | None]:
        """None stands for the timers. Most levels have nothing to deliver most of the time."""
        sources: list[LevelProgress | None] = [None]
        for level in self.levels:
            queue = self.level_queue(level)
            due = level.next_ms(queue, now_ms) if queue is not None else None
            if due is not None and due <= now_ms:
                sources.append(level)
        self._turn = (self._turn + 1) % len(sources)
        return sources[self._turn :] + sources[: self._turn]

    def _plan(
        self, level: LevelProgress, planned: dict[LevelProgress, tuple[int, int]], now_ms: int
    ) -> tuple[list[Place], bool]:
        """What a level delivers now, and whether it went on in its queue at all."""
        queue = self.level_queue(level)
        if queue is None:
            return [], False
        before = level.positions
        level.positions = planned.get(level, before)
        level.clamp(queue)
        try:
            due = level.next_ms(queue, now_ms)
            if due is None or due > now_ms:
                return [], False
            places, planned[level] = level.plan(queue, self._store.log.read, now_ms, SOURCE_BATCH)
            return places, planned[level] != level.positions
        finally:
            level.positions = before

    def _advance(self, now_ms: int, taken: list[Entry]) -> None:
        """Up to where everything is delivered; unchanged while an older timer that came late is still
        waiting.
        """
        reached = max([self.delivered, *(entry[:2] for entry in taken)])
        head = self.agenda.head(now_ms)
        if head is None or head[0] > now_ms:
            reached = max(reached, (now_ms, LAST_QUEUE_OFFSET))
        if head is None or head > reached:
            self.delivered = reached

    def is_done(self, due_ms: int, queue_offset: int) -> bool:
        """Whether a timer was delivered, now or before the last start."""
        if queue_offset < self.indexer.next:
            return (due_ms, queue_offset) <= self.delivered
        return self.indexer.was_done(due_ms, queue_offset)

    @property
    def is_clean(self) -> bool:
        """Whether `delivered` says exactly which timers wait."""
        first = self.agenda.first
        return first is None or first > self.delivered

    # --- remembering ----------------------------------------------------------------------------------------

    def progress(self) -> Progress:
        return Progress(
            self._file.next_number(),
            log_end=self._store.log.position,
            delivered=self.delivered,
            indexed=self.indexer.next,
            rolled=self.agenda.rolled,
            levels={str(level.level): level.positions for level in self.levels if any(level.positions)},
        )

    def save(self, now_ms: int) -> None:
        """Notes how far delivery has come: at once, and again when the log with the deliveries is on the
        device.
        """
        if (self._has_moved or self._is_stale(now_ms)) and self.indexer.caught_up and self.is_clean:
            self._has_moved = False
            self._noted, self._noted_ms = self.progress(), now_ms
            self._write(self._noted, durable=False)
            self._unflushed.append(self._noted)
        self._settle()
        self._maintain(now_ms)

    def _is_stale(self, now_ms: int) -> bool:
        """That time passed without a delivery lets a start skip more, if there is anything to skip."""
        if now_ms - self._noted_ms < _NOTE_MS:
            return False
        return self._noted.indexed != self.indexer.next or bool(self.keeper.marks or self.agenda.runs)

    def _settle(self) -> None:
        settled: Progress | None = None
        while self._unflushed and self._unflushed[0].log_end <= self._store.durability.offset:
            settled = self._unflushed.popleft()
        if settled is not None:
            self._progress = settled
            self._write(settled, durable=True)
            for number, positions in settled.levels.items():
                self._offsets.put(int(number), min(positions))

    def _write(self, state: Progress, *, durable: bool) -> None:
        try:
            self._file.write(state, durable=durable)
        except OSError as error:
            log.warning("the checkpoint of the timers could not be written: %s", error)

    def _maintain(self, now_ms: int) -> None:
        durable_end = self._store.durability.offset
        self.keeper.tick(now_ms, self.indexer.next, self.indexer.log_end, durable_end, self._progress)
        if self._file.dirty and now_ms - self._last_sync_ms >= _SYNC_MS:
            self._last_sync_ms = now_ms
            self._runner.submit(self._file.sync, self._synced)
        if len(self.cancelled) and now_ms - self._last_purge_ms >= _PURGE_MS:
            self._last_purge_ms = now_ms
            self.cancelled.forget_before(self._settled_ms(now_ms), self._store.log.start)

    @staticmethod
    def _synced(error: BaseException | None) -> None:
        if error is not None:
            log.warning("the checkpoint of the timers could not be brought to the device: %s", error)

    def _settled_ms(self, now_ms: int) -> int:
        times = [self.delivered[0]]
        for level in self.levels:
            queue = self.level_queue(level)
            unit = queue.unit(level.offset) if queue is not None else None
            if unit is not None:
                times.append(unit[2])
        return min(times)

    # --- what the clockwork asks ----------------------------------------------------------------------------

    def next_ms(self, now_ms: int) -> int:
        """When `step` has something to do again."""
        if self._store.refusal:
            return now_ms + _REFUSED_MS
        if self._congested:
            return now_ms + _CONGESTED_MS
        return max(now_ms + 1, min([now_ms + POLL_MS, *self._due_times(now_ms)]))

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the first of the messages indexed so far is due, None when none waits."""
        return min(self._due_times(now_ms), default=None)

    def _due_times(self, now_ms: int) -> Iterator[int]:
        timer = self.agenda.next_ms(now_ms)
        if timer is not None:
            yield timer
        for level in self.levels:
            queue = self.level_queue(level)
            due = level.next_ms(queue, now_ms) if queue is not None else None
            if due is not None:
                yield due

    def close(self) -> None:
        """The log is brought to the device first, so that the last deliveries are not repeated."""
        store = self._store
        if store.fault is None:
            for base in store.log.series.bases[-2:]:
                store.disk.fdatasync(store.log.series.fd(base))
            if self.indexer.caught_up and self.is_clean:
                state = self.progress()
                self._write(state, durable=True)
                for level in self.levels:
                    if level.offset:
                        self._offsets.put(level.level, level.offset)
        self._runner.close()
        self._file.sync()
        self._file.close()
