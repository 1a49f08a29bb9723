"""Taking over another broker's log byte for byte: what a slave does instead of appending.

The bytes hold absolute offsets and come in order, but not cut at records. What is whole is dispatched as if it had been
appended here; a torn end after a crash is cut off by recovery, and the master sends it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from orbitmq.store.consume_queue import UNIT, ConsumeQueue
from orbitmq.store.errors import StoreError
from orbitmq.store.log_scan import ScannedRecord, scan_segment
from orbitmq.store.staged import Staged
from orbitmq.wire.message import BLANK_MAGIC

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore

log = logging.getLogger("orbitmq.store")

_FRONT = Struct(">iI")  # size and magic


class OutOfSequence(StoreError):
    """The bytes do not go on where this log ends."""


class LogFollower:
    def __init__(
        self, store: MessageStore, on_new_queue: Callable[[str, int], None] = lambda topic, queue: None
    ) -> None:
        self._store = store
        self._on_new_queue = on_new_queue
        self._dispatched = store.log.position

    @property
    def position(self) -> int:
        """How far the log has come here; the last record may not be whole."""
        return self._store.log.position

    @property
    def confirmed(self) -> int:
        """Up to where this store answers for the log: written, and on the device where acks mean that."""
        store = self._store
        return store.durability.offset if store.settings.sync_flush else store.log.position

    def take(self, offset: int, data: bytes) -> None:
        """OutOfSequence or OSError: nothing of it was taken over, or only a beginning that `position` counts."""
        store = self._store
        if not self.position and offset:
            self._begin_at(offset)
        if offset != self.position:
            raise OutOfSequence(
                f"the master sends its log from {offset} on, this one ends at {self.position}"
            )
        try:
            store.log.append_raw(data)
        finally:
            self._dispatch()

    def _begin_at(self, offset: int) -> None:
        """A new slave need not have what the master has cleaned."""
        if offset % self._store.log.series.segment_bytes:
            raise OutOfSequence(
                f"the master's log begins at {offset}, which is no border of files of "
                f"{self._store.log.series.segment_bytes} bytes here; give mappedFileSizeCommitLog the master's value"
            )
        self._store.log.series.destroy()
        self._store.log.start_at(offset)
        self._store.durability.offset = self._dispatched = offset

    def _dispatch(self) -> None:
        store = self._store
        series = store.log.series
        while True:
            start = self._dispatched
            base = start - start % series.segment_bytes
            end, blank = self._whole_end(start, base)
            if end > start:
                staged = Staged()
                scan = scan_segment(series.map(base), base, start - base, end - base)
                for record in scan:
                    self._stage(record, staged)
                self._dispatched = base + scan.pos
                if staged.units or staged.index:
                    store.log.store_ms = store.log.committed_ms = staged.store_ms
                    store.publish(staged)
                if self._dispatched != end:
                    raise StoreError(
                        f"the master's log is damaged at {self._dispatched}: {scan.problem or 'zeros'}; run "
                        "`orbitmq store verify` on the master's store"
                    )
            if not blank:
                return
            self._dispatched = base + series.segment_bytes

    def _whole_end(self, start: int, base: int) -> tuple[int, bool]:
        """Where the last record that is here completely ends, and whether the rest of that file is blank."""
        log_end = self.position
        segment_end = base + self._store.log.series.segment_bytes
        available = min(log_end, segment_end)
        if start >= available:
            return start, False
        buf = self._store.log.series.map(base)
        at = start
        while available - at >= _FRONT.size:
            size, magic = _FRONT.unpack_from(buf, at - base)
            if magic == BLANK_MAGIC:
                return at, log_end >= segment_end
            if size <= 0 or at + size > available:
                # A size of nonsense is found by the scan; one that only is not complete yet waits.
                return (at, False) if size > 0 else (available, False)
            at += size
        return at, False

    def _stage(self, record: ScannedRecord, staged: Staged) -> None:
        store = self._store
        staged.store_ms = record.store_ms
        if record.is_queued and record.offset >= store.mark.deleted_topics.get(record.topic, 0):
            queue = store.find_queue(record.topic, record.queue_id)
            if queue is None:
                queue = store.queue(record.topic, record.queue_id)
                self._on_new_queue(record.topic, record.queue_id)
            queue.begin_at(record.queue_offset)
            if record.queue_offset == queue.next_offset:
                unit = UNIT.pack(record.offset, record.size, record.unit_code(store.settings.delay_levels_ms))
                staged.add_units(queue, unit)
                queue.next_offset += 1
            elif record.queue_offset > queue.next_offset:
                self._report_gap(queue, record)
        if record.is_indexed and store.index is not None:
            for prefix, key, offset, _ in record.index_rows:
                staged.add_key(prefix, key, offset)

    @staticmethod
    def _report_gap(queue: ConsumeQueue, record: ScannedRecord) -> None:
        log.error(
            "%s queue %d ends at %d here and goes on at %d in the master's log; the message is not shown: stop this "
            "slave, remove its consumequeue directory and start it again to rebuild it",
            queue.topic,
            queue.queue_id,
            queue.next_offset,
            record.queue_offset,
        )
