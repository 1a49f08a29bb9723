"""From the log to the places where messages are found: queue units at once, files and key index in slices.

The append path hands over columns instead of having the log parsed again. Units become visible immediately and are
written to their files a little later, many at a time; index keys are collected, since hashing hundreds together costs
a tenth of hashing each, and a query drains what is pending first. What a crash loses of this is in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from orbitmq.store.consume_queue import ConsumeQueue
from orbitmq.store.key_index import IndexService
from orbitmq.store.staged import Hashes, Keys, Staged
from orbitmq.wire.numeric import np

INDEX_SLICE = 2048
WRITE_BYTES = 1 << 16


def _nobody_waits(queue: ConsumeQueue) -> None:
    return


def _nothing_arrived() -> None:
    return


class Dispatcher:
    __slots__ = ("_buffered", "_index", "_pending", "_pending_keys", "all_arrived", "arrived")

    def __init__(self, index: IndexService | None) -> None:
        self._index = index
        self._buffered: set[ConsumeQueue] = set()
        self._pending: list[tuple[Keys | Hashes, int]] = []
        self._pending_keys = 0
        self.arrived: Callable[[ConsumeQueue], None] = _nobody_waits
        """Told of queues that grew while somebody waited for that."""
        self.all_arrived: Callable[[], None] = _nothing_arrived
        """Told when all that became visible at once has been told of."""

    def dispatch(self, staged: Staged) -> None:
        """Raises OSError when a full buffer cannot be written; everything is visible all the same."""
        full: list[ConsumeQueue] = []
        for queue, units in staged.units.items():
            queue.append(units)
            self._buffered.add(queue)
            if queue.buffered_bytes >= WRITE_BYTES:
                full.append(queue)
            if queue.waiters:
                self.arrived(queue)
        if self._index is not None:
            for chunk in staged.index:
                self._pending.append((chunk, staged.store_ms))
                self._pending_keys += len(chunk)
            if self._pending_keys >= INDEX_SLICE:
                self.drain_index()
        for queue in full:
            queue.write_out()
            self._buffered.discard(queue)

    def write_out(self) -> None:
        """Brings what is only in memory to the files; what fails stays for the next time."""
        while self._buffered:
            queue = next(iter(self._buffered))
            queue.write_out()
            self._buffered.discard(queue)
        self.drain_index()

    def forget(self, queue: ConsumeQueue) -> None:
        """The queue was deleted."""
        self._buffered.discard(queue)

    @property
    def behind(self) -> bool:
        return bool(self._buffered or self._pending)

    def drain_index(self) -> None:
        """After a failure the keys stay: adding again what is already in does no harm."""
        if not self._pending or self._index is None:
            return
        for is_hashed, group in groupby(self._pending, lambda item: isinstance(item[0], Hashes)):
            chunks = list(group)
            if is_hashed:
                self._index.add_hashes(
                    b"".join(chunk.hashes for chunk, _ in chunks if isinstance(chunk, Hashes)),
                    b"".join(chunk.offsets for chunk, _ in chunks if isinstance(chunk, Hashes)),
                    np.repeat([store_ms for _, store_ms in chunks], [len(chunk) for chunk, _ in chunks]),
                )
            else:
                plain = [chunk for chunk, _ in chunks if isinstance(chunk, Keys)]
                self._index.add_keys(
                    [prefix for chunk in plain for prefix in chunk.prefixes],
                    [key for chunk in plain for key in chunk.keys],
                    [offset for chunk in plain for offset in chunk.offsets],
                    [store_ms for chunk, store_ms in chunks for _ in range(len(chunk))],
                )
        self._pending = []
        self._pending_keys = 0
