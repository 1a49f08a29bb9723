"""Taking over another broker's log byte for byte: what a slave does instead of appending.

The bytes hold absolute offsets and come in order, but not cut at records. Only whole records are written: no checksum
covers all of a record, so half of one at the end of the log could pass for a message at the next start. What is written
is dispatched as if it had been appended here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from orbitmq.accel import follow, whole_records
from orbitmq.store.consume_queue import UNIT, ConsumeQueue
from orbitmq.store.errors import StoreError
from orbitmq.store.log_scan import ScannedRecord, scan_segment
from orbitmq.store.staged import Hashes, Staged
from orbitmq.wire.message import BLANK_MAGIC, MESSAGE_MAGIC, MESSAGE_MAGIC_V2
from orbitmq.wire.topics import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore

log = logging.getLogger("orbitmq.store")

_FRONT = Struct(">iI")  # size and magic
_NO_GATE = (1 << 63) - 1
_MOST_QUEUES = 4096


KnownTopic = tuple[tuple[ConsumeQueue | None, ...], bytes, int, str]
"""What the accelerator must know of a topic: its queues by number, how records name it, the hash of its key prefix."""


class OutOfSequence(StoreError):
    """The bytes do not go on where this log ends."""


def _damaged(offset: int, problem: str) -> StoreError:
    return StoreError(
        f"the master's log is damaged at {offset}: {problem}",
        "run `orbitmq store verify` on the master's store",
    )


def answers_for(store: MessageStore) -> int:
    """Up to where a store answers for the log: written, and on the device where acks mean that."""
    return store.durability.offset if store.settings.sync_flush else store.log.position


class LogFollower:
    """With `gated`, records are shown to consumers only as far as the master says that they will stay."""

    def __init__(
        self,
        store: MessageStore,
        on_new_queue: Callable[[str, int], None] = lambda topic, queue: None,
        *,
        gated: bool = False,
    ) -> None:
        self._store = store
        self._on_new_queue = on_new_queue
        self._dispatched = store.log.position
        self._rest = b""
        self._topics: dict[bytes, KnownTopic] = {}
        self._removals = store.removals
        self.gate = store.log.position if gated else _NO_GATE

    @property
    def start(self) -> int:
        return self._store.log.start

    @property
    def position(self) -> int:
        """Where the master goes on; the last record that came may not be whole, and not be written yet."""
        return self._store.log.position + len(self._rest)

    @property
    def confirmed(self) -> int:
        return answers_for(self._store)

    def begin(self) -> int:
        """Over a new connection. Where it has to begin: half a record is asked for again."""
        self._rest = b""
        return self._store.log.position

    def take(self, offset: int, data: bytes) -> None:
        """OutOfSequence, StoreError or OSError: of the rest, if any, nothing is written, and one has to begin anew."""
        store = self._store
        if not self.position and offset:
            self._begin_at(offset)
        if offset != self.position:
            raise OutOfSequence(
                f"the master sends its log from {offset} on, this one ends at {self.position}"
            )
        data, self._rest = self._rest + data, b""
        whole, sound = self._whole_bytes(data)
        if whole:
            try:
                store.log.append_raw(data[:whole])
            finally:
                self._dispatch()
        if not sound:
            raise _damaged(store.log.position, "no record begins there")
        self._rest = data[whole:]
        if store.settings.sync_flush and self.gate < store.log.position:
            # The gate opens when all have it on their devices; what is not shown yet must get there, too.
            store.durability.kick()

    def open_to(self, offset: int) -> None:
        """The master says that no election takes away what lies before; it never takes that back."""
        if offset > self.gate:
            self.gate = offset
            self._dispatch()

    def _whole_bytes(self, data: bytes) -> tuple[int, bool]:
        """How much of the data is whole records and blank ends of files, and whether a record may follow there."""
        start, segment_bytes = self._store.log.position, self._store.log.series.segment_bytes
        if whole_records is not None:
            return whole_records(data, start, segment_bytes)
        at = 0
        while len(data) - at >= _FRONT.size:
            size, magic = _FRONT.unpack_from(data, at)
            left_in_file = segment_bytes - (start + at) % segment_bytes
            if magic == BLANK_MAGIC:
                size = left_in_file
            elif not 0 < size <= left_in_file or magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
                return at, False
            if at + size > len(data):
                break
            at += size
        return at, True

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
            self._follow_plain()
            start = self._dispatched
            base = start - start % series.segment_bytes
            end, blank = self._whole_end(start, base)
            if end > start:
                staged = Staged()
                scan = scan_segment(series.map(base), base, start - base, end - base)
                for record in scan:
                    # The key index keeps one time for all that is staged together.
                    if record.store_ms != staged.store_ms:
                        self._publish(staged, record.offset)
                        staged = Staged()
                    self._stage(record, staged)
                self._dispatched = base + scan.pos
                self._publish(staged, self._dispatched)
                if self._dispatched != end:
                    raise _damaged(self._dispatched, scan.problem or "zeros")
            if blank:
                self._dispatched = base + series.segment_bytes
            elif end == start:
                store.held_from = self._dispatched if self._dispatched < store.log.position else None
                return

    def _follow_plain(self) -> None:
        """Moves on over records that need nothing but their place in a known queue, with the accelerator."""
        if follow is None:
            return
        store = self._store
        if self._removals != store.removals:
            self._removals = store.removals
            self._topics.clear()
        series, shown = store.log.series, min(store.log.position, self.gate)
        while self._dispatched < shown:
            base = self._dispatched - self._dispatched % series.segment_bytes
            end = min(shown - base, series.segment_bytes)
            taken = follow(series.map(base), base, self._dispatched - base, end, self._topics)
            if taken is None:
                return
            pos, store_ms, found, hashes, offsets = taken
            staged = Staged(store_ms=store_ms)
            staged.take(found)
            if hashes and store.index is not None:
                staged.index.append(Hashes(hashes, offsets))
            self._dispatched = base + pos
            self._publish(staged, self._dispatched)

    def _know(self, queue: ConsumeQueue) -> None:
        """The next record of this queue may be plain. Not that of a delayed message, whose unit carries its time."""
        name = queue.topic_part[1:]
        known = self._topics.get(name)
        if queue.queue_id < 0:  # by damage, or a fault of the master: followed in the way that knows all
            return
        if known is not None and queue.queue_id < len(known[0]) and known[0][queue.queue_id] is queue:
            return
        topic, store = queue.topic, self._store
        if topic == SCHEDULE_TOPIC or topic in store.mark.deleted_topics:
            return
        queues = store.queues_of(topic)
        count = min(max(queues, default=-1) + 1, _MOST_QUEUES)
        by_number = tuple(queues.get(number) for number in range(count))
        self._topics[name] = (by_number, queue.topic_part, queue.prefix_hash, topic)

    def _publish(self, staged: Staged, end: int) -> None:
        if staged.units or staged.index:
            self._store.log.store_ms = self._store.log.committed_ms = staged.store_ms
            self._store.publish(staged, end)

    def _whole_end(self, start: int, base: int) -> tuple[int, bool]:
        """Where the last record that is here, and may be shown, ends; and whether the rest of that file is blank.

        With the accelerator, one at a time: what comes behind it may be plain again.
        """
        log_end = min(self._store.log.position, self.gate)
        segment_end = base + self._store.log.series.segment_bytes
        available = min(log_end, segment_end)
        if start >= available:
            return start, False
        buf = self._store.log.series.map(base)
        at = start
        while available - at >= _FRONT.size and (follow is None or at == start):
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
                self._know(queue)
            elif record.queue_offset > queue.next_offset:
                self._report_gap(queue, record)
            elif record.queue_offset == 0:
                self._begin_topic_anew(record, staged)
                return
        if record.is_indexed and store.index is not None:
            for prefix, key, offset, _ in record.index_rows:
                staged.add_key(prefix, key, offset)

    def _begin_topic_anew(self, record: ScannedRecord, staged: Staged) -> None:
        """The log only goes forward: a queue that begins again is one of a topic that was deleted and made again."""
        store = self._store
        log.info("topic %s was deleted and made again at the master", record.topic)
        for queue in [queue for queue in staged.units if queue.topic == record.topic]:
            del staged.units[queue]
        store.delete_topic(record.topic, record.offset)
        self._stage(record, staged)

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
