"""Deliveries of one step: staged one by one, written with one commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from orbitmq.broker.timing.cancelled import Cancelled
from orbitmq.broker.timing.levels import Place
from orbitmq.broker.timing.quick import Delivery, delivery
from orbitmq.broker.timing.records import delivered, read_waiting, real_queue
from orbitmq.wire.errors import WireError

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore

log = logging.getLogger("orbitmq.broker")

MOST_BYTES: Final = 2 << 20
MOST_MESSAGES: Final = 1024
MOST_TARGETS: Final = 10_000


class Outbox:
    def __init__(
        self, store: MessageStore, cancelled: Cancelled, stats: Callable[[str, int, int], None]
    ) -> None:
        self._store = store
        self._cancelled = cancelled
        self._stats = stats
        self._counts: dict[str, tuple[int, int]] = {}
        self._targets: dict[tuple[bytes, bytes], tuple[str, int]] = {}
        self._skipped: list[int] = []
        self._messages = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes >= MOST_BYTES or self._messages >= MOST_MESSAGES

    def add(self, places: Sequence[Place], now_ms: int) -> None:
        """Stages what can be delivered. What cannot is reported and left out: it never will be."""
        store = self._store
        read = store.log.read
        try:
            for position, size in places:
                if position in self._cancelled:
                    self._skipped.append(position)
                    continue
                record = read(position, size)
                common = delivery(record, now_ms)
                if common is None:
                    topic = self._add_other(position, record, now_ms)
                else:
                    topic = self._add_common(position, common)
                if topic is not None:
                    count, total = self._counts.get(topic, (0, 0))
                    self._counts[topic] = (count + 1, total + size)
                    self._messages += 1
                    self._bytes += size
        except OSError as error:
            store.abandon_staged(error)
            raise

    def _add_common(self, position: int, common: Delivery) -> str | None:
        target = common.target
        place = self._targets.get(target)
        if place is None:
            try:
                place = real_queue(*target)
            except WireError as problem:
                self._report(position, problem)
                return None
            if len(self._targets) >= MOST_TARGETS:
                self._targets.clear()
            self._targets[target] = place
        self._store.log.stage(
            self._store.queue(*place),
            common.body,
            common.properties,
            common.sys_flag,
            common.flag,
            common.born_ms,
            common.born_host,
            common.reconsume_times,
            0,
            common.tags_code,
            common.unique_key,
            common.keys,
        )
        return place[0]

    def _add_other(self, position: int, record: bytes, now_ms: int) -> str | None:
        try:
            message = delivered(read_waiting(record), now_ms)
        except WireError as problem:
            self._report(position, problem)
            return None
        self._store.stage_inner(message)
        return message.topic

    def _report(self, position: int, problem: WireError) -> None:
        if position < self._store.log.start:
            log.error("a waiting message at log offset %d was cleaned before its time: it is lost", position)
        else:
            log.error("the waiting message at log offset %d is not delivered: %s", position, problem)

    def send(self) -> int:
        """Writes what was staged; how many messages they were. OSError: none of them."""
        if self._messages:
            self._store.commit_staged()
        for topic, (count, total) in self._counts.items():
            self._stats(topic, count, total)
        for position in self._skipped:
            self._cancelled.discard(position)
        handled = self._messages + len(self._skipped)
        self.clear()
        return handled

    def drop(self) -> None:
        """Nothing of it happened."""
        self._store.log.roll_back()
        self.clear()

    def clear(self) -> None:
        self._counts = {}
        self._skipped = []
        self._messages = self._bytes = 0
