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


def _nobody_waits(queue: ConsumeQueue, alone: bool) -> None:
    return


def _nothing_arrived() -> None:
    return


class Dispatcher:
    __slots__ = ("_buffered", "_index", "_pending", "_pending_keys", "all_arrived", "arrived")

    def __init__(self, index: IndexService | None) -> None:
        self._index = index
        self._buffered: set[ConsumeQueue] = set()
        self._pending: list[tuple[Keys | Hashes, int, int]] = []
        self._pending_keys = 0
        self.arrived: Callable[[ConsumeQueue, bool], None] = _nobody_waits
        """Told of queues that grew while somebody waited for that, and whether it is the only one."""
        self.all_arrived: Callable[[], None] = _nothing_arrived
        """Told when all that became visible at once has been told of."""

    def dispatch(self, staged: Staged, alone: bool = False) -> None:
        """Raises OSError when a full buffer cannot be written; everything is visible all the same.

        `alone`: nothing else becomes visible together with this.
        """
        full: list[ConsumeQueue] = []
        alone = alone and len(staged.units) == 1
        for queue, units in staged.units.items():
            if queue.append(units) >= WRITE_BYTES:
                full.append(queue)
            self._buffered.add(queue)
            if queue.waiters:
                self.arrived(queue, alone)
        if self._index is not None:
            for chunk in staged.index:
                count = len(chunk.hashes) // 4 if isinstance(chunk, Hashes) else len(chunk.keys)
                self._pending.append((chunk, staged.store_ms, count))
                self._pending_keys += count
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
            chunks, times, counts = zip(*group, strict=True)
            if is_hashed:
                self._index.add_hashes(
                    b"".join([chunk.hashes for chunk in chunks]),
                    b"".join([chunk.offsets for chunk in chunks]),
                    np.repeat(times, counts),
                )
            else:
                self._index.add_keys(
                    [prefix for chunk in chunks for prefix in chunk.prefixes],
                    [key for chunk in chunks for key in chunk.keys],
                    [offset for chunk in chunks for offset in chunk.offsets],
                    [store_ms for store_ms, count in zip(times, counts, strict=True) for _ in range(count)],
                )
        self._pending = []
        self._pending_keys = 0
