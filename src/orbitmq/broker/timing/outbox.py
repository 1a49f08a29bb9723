"""Deliveries of one step: staged one by one, written with one commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from orbitmq.broker.timing.cancelled import Cancelled
from orbitmq.broker.timing.levels import Place
from orbitmq.broker.timing.records import delivered, read_waiting
from orbitmq.wire.errors import WireError

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore

log = logging.getLogger("orbitmq.broker")

MOST_BYTES: Final = 2 << 20
MOST_MESSAGES: Final = 1024


class Outbox:
    def __init__(
        self, store: MessageStore, cancelled: Cancelled, stats: Callable[[str, int, int], None]
    ) -> None:
        self._store = store
        self._cancelled = cancelled
        self._stats = stats
        self._counts: dict[str, tuple[int, int]] = {}
        self._skipped: list[int] = []
        self._messages = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes >= MOST_BYTES or self._messages >= MOST_MESSAGES

    def add(self, places: Sequence[Place], now_ms: int) -> None:
        """Stages what can be delivered. What cannot is reported and left out: it never will be."""
        store = self._store
        for position, size in places:
            if position in self._cancelled:
                self._skipped.append(position)
                continue
            try:
                message = delivered(read_waiting(store.log.read(position, size)), now_ms)
            except WireError as problem:
                self._report(position, problem)
                continue
            try:
                store.stage_inner(message)
            except OSError as error:
                store.abandon_staged(error)
                raise
            count, total = self._counts.get(message.topic, (0, 0))
            self._counts[message.topic] = (count + 1, total + size)
            self._messages += 1
            self._bytes += size

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
