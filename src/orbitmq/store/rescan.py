"""One walk over the log: every record is checked, its unit compared with its queue's file, its keys indexed.

The log is the truth, but no checksum covers a record's head. A queue offset that cannot be right (a hole that no damage
explains, a place that another record has) is taken for damage too, not followed: one flipped bit would
otherwise send a queue to an offset in the billions, or hide a sound message behind a broken one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orbitmq.store.consume_queue import UNIT, ConsumeQueue
from orbitmq.store.log_scan import ScannedRecord, Stop, read_record, resync, scan_segment
from orbitmq.store.recovery_report import Damage, RecoveryReport
from orbitmq.wire.message import FIXED_BYTES

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore

_INDEX_SLICE = 4096
_MOST_QUEUE_ID = 1 << 20
_DAY_MS = 86_400_000
_PAGE_BYTES = 4096


class NeedsWholeLog(Exception):
    """A queue lost units of messages that lie before the part of the log that was read."""


class Rescan:
    """`whole`: the walk begins at the log's first record, so a hole in a queue cannot be filled by reading more.

    Records from `tail_from` on may belong to topics that the broker made and had not saved when it died.
    """

    def __init__(
        self,
        store: MessageStore,
        report: RecoveryReport,
        whole: bool,
        tail_from: int,
        is_known: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._series = store.log.series
        self._report = report
        self._whole = whole
        self._tail_from = tail_from
        self._is_known = is_known
        self._rows: list[tuple[bytes, bytes, int, int]] = []
        self._next: dict[tuple[str, int], int] = {}
        self._checked: dict[ConsumeQueue, int] = {}
        self._skipped: set[tuple[str, int]] = set()
        self._damaged_bytes = 0
        # The record that the index knows last, and how many of its keys: those are not added again.
        index = store.index
        self._indexed = (index.last()[1], index.last_rows()) if index is not None else (-1, 0)
        self._last_ms = 0
        self._latest_believable_ms = store.clock() + _DAY_MS
        # Up to there all was on the device. Behind it, after a crash of our own, a bad place is an unfinished write.
        flushed = store.flush_note.load() if not report.clean else None
        self._is_own = flushed is not None and flushed.is_of(store.checkpoint.physic_ms)
        self._flushed_to = max(store.mark.safe_offset, flushed.offset if flushed and self._is_own else -1)

    def run(self, start: int) -> None:
        series = self._series
        position = start
        while position < series.end:
            base = position - position % series.segment_bytes
            scan = scan_segment(series.map(base), base, position - base)
            for record in scan:
                if record.offset >= self._flushed_to and self._is_own and _lacks_a_page(record):
                    scan.pos, scan.stop = record.offset - base, Stop.BAD
                    break
                self._take(record)
            position = base + scan.pos
            if scan.stop in (Stop.BLANK, Stop.END):
                position = base + series.segment_bytes
                continue
            behind = self._sound_place_behind(position)
            if behind is None:
                break
            self._damage(position, behind, scan.problem or "it reads as zeros")
            position = behind
        # What was once on the device is never cut off: its queue offsets have been given, perhaps even consumed.
        known_end = self._known_end(position)
        if position < known_end:
            self._damage(position, known_end, "no sound record is left there")
            position = known_end
        self._flush_rows()
        self._cut(position)
        self._name_tail_topics()
        for queue in self._store.all_queues():
            queue.checked_from = self._checked.get(queue, queue.max_offset)

    def confirmed_end(self, queue: ConsumeQueue) -> int:
        """Up to where this walk saw the queue's messages, 0 when it saw none."""
        return self._next.get((queue.topic, queue.queue_id), 0)

    def _damage(self, start: int, end: int, reason: str) -> None:
        self._report.damage.append(Damage(start, end, reason))
        self._damaged_bytes += end - start
        # A unit in front of the damage may point into it: only what comes behind needs no look at each read.
        self._checked.clear()

    # --- over bad stretches -----------------------------------------------------------------------------------

    def _sound_place_behind(self, position: int) -> int | None:
        """The next record or blank marker that belongs to this log, not one left over from before an earlier cut."""
        series = self._series
        base = position - position % series.segment_bytes
        found = resync(series.map(base), base, position - base, series.data_end(base))
        if found is not None:
            return self._if_of_this_log(base + found)
        for later in [b for b in series.bases if b > base]:
            buf = series.map(later)
            if read_record(buf, later, 0) is not None:
                return self._if_of_this_log(later)
            found = resync(buf, later, 0, series.data_end(later))
            if found is not None:
                return self._if_of_this_log(later + found)
        return None

    def _if_of_this_log(self, offset: int) -> int | None:
        if offset <= self._flushed_to:
            return offset
        if self._is_own:
            return None  # of writes under way, a power cut may leave any page
        base = offset - offset % self._series.segment_bytes
        record = read_record(self._series.map(base), base, offset - base)
        if record is None:  # a blank marker: the file ends in good order
            return offset
        known = self._next.get((record.topic, record.queue_id), 0)
        return offset if record.store_ms >= self._last_ms and record.queue_offset >= known else None

    def _known_end(self, position: int) -> int:
        """How far the log reached for sure: as was noted, or, after another broker's orderly stop, as queues say."""
        series = self._series
        if self._flushed_to >= 0:
            return min(self._flushed_to, series.end)
        base = series.base_of(position)
        if not self._report.clean or base is None:
            return position
        written = max(b + series.filled_bytes(b) for b in series.bases if b >= base)
        ends = [queue.end_in_log for queue in self._store.all_queues()]
        return max([end for end in ends if end <= written], default=position)

    def _cut(self, end: int) -> None:
        """Nothing may lie behind the end: the recovery of the next crash would take it for messages."""
        series = self._series
        self._report.log_end = end
        base = series.base_of(end)
        if base is None:
            return
        leftover = base + series.filled_bytes(base) - end
        later = [b for b in series.bases if b > base and series.filled_bytes(b)]
        if leftover > 0 or later:
            self._report.cut_bytes = max(0, leftover) + sum(series.filled_bytes(b) for b in later)
            series.truncate_from(end)

    # --- records ----------------------------------------------------------------------------------------------

    def _take(self, record: ScannedRecord) -> None:
        report = self._report
        report.records += 1
        self._last_ms = record.store_ms
        if report.last_store_ms < record.store_ms <= self._latest_believable_ms:
            report.last_store_ms = record.store_ms
        if record.is_queued and self._belongs(record):
            problem = self._place(record)
            if problem:
                self._damage(record.offset, record.offset + record.size, problem)
                return
        if self._store.index is not None:
            rows = record.index_rows
            self._rows += rows if record.offset != self._indexed[0] else rows[self._indexed[1] :]
            if len(self._rows) >= _INDEX_SLICE:
                self._flush_rows()

    def _belongs(self, record: ScannedRecord) -> bool:
        """Messages of a topic that was deleted stay deleted, also when it was made again since."""
        return record.offset >= self._store.mark.deleted_topics.get(record.topic, 0)

    def _place(self, record: ScannedRecord) -> str:
        """Sees to it that the record's unit is in its queue. What is wrong with the record when it cannot be."""
        at = record.queue_offset
        name = (record.topic, record.queue_id)
        if not 0 <= record.queue_id < _MOST_QUEUE_ID or at < 0:
            return f"it names queue {record.queue_id} and queue offset {at}"
        queue = self._store.find_queue(*name) or self._new_queue(record)
        if queue is None:
            return ""
        unit = UNIT.pack(record.offset, record.size, record.unit_code(self._store.settings.delay_levels_ms))
        end = queue.max_offset
        if at > end and not self._hole_is_explained(queue, at):
            if not self._whole:
                raise NeedsWholeLog(
                    f"{record.topic} queue {record.queue_id} ends at {end} and goes on at {at}"
                )
            return f"it names queue offset {at}, where the queue had come to {end}"
        if at < queue.min_offset:
            return ""  # its unit went with an old queue file
        if at < end and queue.stored_unit(at) != unit:
            holder = self._holder(queue, at, record)
            if holder is not None:
                # The later of two is that of a topic deleted and made anew; an earlier one came by it honestly.
                return (
                    ""
                    if holder > record.offset
                    else f"it names queue offset {at}, the place of another record"
                )
        self._report.corrected_units += queue.put_at(at, unit)
        self._next[name] = at + 1
        self._checked.setdefault(queue, at)
        return ""

    def _new_queue(self, record: ScannedRecord) -> ConsumeQueue | None:
        """A queue without a file: new when the broker died, lost since, or of a topic deleted by another broker."""
        name = (record.topic, record.queue_id)
        if name in self._skipped:
            return None
        fresh = not self._report.clean and record.offset >= self._tail_from
        if not fresh and not self._is_known(record.topic):
            self._skipped.add(name)
            return None
        return self._store.queue(*name)

    def _hole_is_explained(self, queue: ConsumeQueue, at: int) -> bool:
        """Records that damage took with it leave a hole; so do those of log files cleaned before a crash took their
        units with it. Neither can have been more than there was room for."""
        gone = self._damaged_bytes
        if self._whole:
            gone += max(0, self._series.start - queue.end_in_log)
        return at - queue.max_offset <= gone // FIXED_BYTES

    def _holder(self, queue: ConsumeQueue, at: int, record: ScannedRecord) -> int | None:
        """Log offset of another sound record that claims this place and that the queue names for it."""
        unit = queue.unit(at)
        if unit is None or unit[0] == record.offset:
            return None
        base = self._series.base_of(unit[0])
        if base is None:
            return None
        other = read_record(self._series.map(base), base, unit[0] - base)
        if other is None or (other.topic, other.queue_id, other.queue_offset) != (
            queue.topic,
            queue.queue_id,
            at,
        ):
            return None
        return other.offset if other.size == unit[1] and self._belongs(other) else None

    def _flush_rows(self) -> None:
        if self._store.index is not None and self._rows:
            self._store.index.add_rows(self._rows)
            self._rows = []

    def _name_tail_topics(self) -> None:
        if self._report.clean:
            return
        for topic, queue_id in self._next:
            unit = self._store.queue(topic, queue_id).unit(self._next[topic, queue_id] - 1)
            if unit is not None and unit[0] >= self._tail_from:
                known = self._report.tail_topics.get(topic, 0)
                self._report.tail_topics[topic] = max(known, queue_id + 1)


def _lacks_a_page(record: ScannedRecord) -> bool:
    """No checksum covers the properties: part of them may not have reached the device before the power went."""
    properties = record.properties
    end = record.offset + record.size
    start = end - len(properties)
    for page in range(-(-start // _PAGE_BYTES) * _PAGE_BYTES, end, _PAGE_BYTES):
        part = properties[page - start : page - start + _PAGE_BYTES]
        if not any(part):
            return True
    return False
