"""From the timer topic's queue to the agenda: every record once, in the order of the queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orbitmq.broker.timing.agenda import Agenda
from orbitmq.broker.timing.cancelled import Cancelled
from orbitmq.broker.timing.checkpoint import Progress
from orbitmq.broker.timing.keeper import Keeper
from orbitmq.broker.timing.quick import due_of
from orbitmq.broker.timing.records import Waiting, read_waiting
from orbitmq.store.consume_queue import UNIT, ConsumeQueue
from orbitmq.wire.message import RecordProblem
from orbitmq.wire.topics import TIMER_TOPIC

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore

log = logging.getLogger("orbitmq.broker")

_UNITS: Final = 64


class Indexer:
    def __init__(
        self,
        store: MessageStore,
        agenda: Agenda,
        keeper: Keeper,
        cancelled: Cancelled,
        find_target: Callable[[str, str], list[tuple[int, int]]],
        progress: Progress,
    ) -> None:
        self._store = store
        self._agenda = agenda
        self._keeper = keeper
        self._cancelled = cancelled
        self._find_target = find_target
        # What was delivered before this start; only timers that are read again have to be compared with it.
        self._before = progress
        self.next = keeper.scan_from
        self.log_end = 0
        """Where the last record read ends in the log."""

    @property
    def queue(self) -> ConsumeQueue | None:
        return self._store.find_queue(TIMER_TOPIC, 0)

    @property
    def is_behind(self) -> bool:
        queue = self.queue
        return queue is not None and self.next < queue.max_offset

    @property
    def caught_up(self) -> bool:
        """Whether everything that the last process knew is known again."""
        return self.next >= self._before.indexed or not self.is_behind

    def was_done(self, due_ms: int, queue_offset: int) -> bool:
        """Whether it was delivered before this start."""
        return self._before.is_done(due_ms, queue_offset)

    def advance(self, out_of_time: Callable[[], bool]) -> None:
        queue = self.queue
        if queue is None:
            return
        self.next = max(self.next, queue.min_offset)
        while self.next < queue.max_offset:
            units = queue.read_units(self.next, _UNITS)
            if not units:
                self.next = min(queue.next_file_offset(self.next), queue.max_offset)
                continue
            for position, size, _ in UNIT.iter_unpack(units):
                self._take(position, size)
                self.next += 1
            if out_of_time():
                return

    def _take(self, position: int, size: int) -> None:
        record = self._store.log.read(position, size)
        quick_ms = due_of(record, self.next)
        if quick_ms is not None:
            self.log_end = position + size
            self._add(quick_ms, position, size)
            return
        try:
            waiting = read_waiting(record)
            due_ms = waiting.due_ms
            if waiting.message.queue_offset != self.next or waiting.message.topic != TIMER_TOPIC:
                raise RecordProblem("another record lies there")
            if due_ms is None:
                raise RecordProblem("it has no delivery time")
        except RecordProblem as problem:
            if position >= self._store.log.start:
                log.error("offset %d of the timer queue is left out: %s", self.next, problem)
            return
        self.log_end = position + size
        if waiting.cancels is not None:
            self._cancel(waiting, waiting.cancels, due_ms)
            return
        if waiting.rolled_from is not None:
            self._agenda.rolled = max(self._agenda.rolled, waiting.rolled_from + 1)
        self._add(due_ms, position, size)

    def _add(self, due_ms: int, position: int, size: int) -> None:
        if self.next < self._agenda.rolled or self._before.is_done(due_ms, self.next):
            return
        if not self._keeper.in_a_run(due_ms, self.next):
            self._agenda.add(due_ms, self.next, position, size)

    def _cancel(self, waiting: Waiting, key: str, due_ms: int) -> None:
        if waiting.cancels_at is not None:
            targets = [(waiting.cancels_at, due_ms)]
        else:
            targets = self._find_target(waiting.real_topic, key)
        for position, target_due_ms in targets:
            if (target_due_ms, 0) > self._before.delivered or self.next >= self._before.indexed:
                self._cancelled.add(position, target_due_ms)
