"""From the log to the places where messages are found: queue units at once, key index in slices.

The append path hands over columns (queue, unit) and (prefix, key, offset, time) instead of having the log parsed again.
Queue units go to their files immediately, so consumers see a message as soon as it may be seen. Index rows are
collected: hashing hundreds together costs a tenth of hashing each, and a query drains what is pending first.
"""

from __future__ import annotations

from collections.abc import Callable

from orbitmq.store.consume_queue import ConsumeQueue
from orbitmq.store.key_index import IndexService

Units = list[tuple[ConsumeQueue, bytes]]
Rows = list[tuple[bytes, bytes, int, int]]

DRAIN_ROWS = 2048


class Dispatcher:
    __slots__ = ("_dirty", "_index", "arrived", "rows")

    def __init__(self, index: IndexService | None, arrived: Callable[[ConsumeQueue], None]) -> None:
        self._index = index
        self._dirty: list[ConsumeQueue] = []
        self.rows: Rows = []
        self.arrived = arrived

    def dispatch(self, units: Units, rows: Rows) -> None:
        """Raises OSError when a queue file cannot be written; the units stay pending and `retry` brings them in."""
        dirty = self._dirty
        for queue, unit in units:
            queue.push(unit)
            if not queue.dirty:
                queue.dirty = True
                dirty.append(queue)
        if self._index is not None:
            self.rows += rows
        self._drain_queues()
        if len(self.rows) >= DRAIN_ROWS:
            self.drain_index()

    def _drain_queues(self) -> None:
        dirty = self._dirty
        while dirty:
            queue = dirty[-1]
            queue.drain()
            queue.dirty = False
            dirty.pop()
            if queue.waiters:
                self.arrived(queue)

    def retry(self) -> None:
        """Another try at what an earlier failure left behind."""
        if self._dirty:
            self._drain_queues()

    @property
    def behind(self) -> bool:
        return bool(self._dirty)

    def drain_index(self) -> None:
        """After a failure the rows stay: adding again what is already in does no harm."""
        if self.rows and self._index is not None:
            self._index.add_rows(self.rows)
            self.rows = []
