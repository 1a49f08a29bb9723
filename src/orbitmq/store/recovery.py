"""Opening a store: find the end of the log, and make queues and index agree with it.

The log is the truth. From a safe place on, every record is checked and its unit compared with the queue's file, which
is corrected where it differs. A torn tail is cut off and zeroed. A bad stretch with sound records behind it is damage, not a
tail: it is reported and stepped over, and what lies behind stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orbitmq.store.consume_queue import UNIT
from orbitmq.store.log_scan import ScannedRecord, SegmentScan, Stop, read_record, resync, scan_segment
from orbitmq.wire.topics import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore

log = logging.getLogger("orbitmq.store")

RECHECK_BYTES = 16 << 20
"""Even after an orderly stop so much of the end is read again: that is where damage is most likely and cheapest to mend."""
_INDEX_SLICE = 4096


@dataclass(slots=True)
class Damage:
    start: int
    end: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    clean: bool
    scanned_from: int = 0
    log_end: int = 0
    last_store_ms: int = 0
    records: int = 0
    corrected_units: int = 0
    cut_units: int = 0
    cut_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)
    dropped_index_files: list[str] = field(default_factory=list)

    def write_to_log(self) -> None:
        if not self.clean:
            log.warning(
                "the broker was not stopped in good order: %d records from log offset %d on were checked again, the log "
                "ends at %d",
                self.records,
                self.scanned_from,
                self.log_end,
            )
        for damage in self.damage:
            log.error(
                "the commit log is damaged from offset %d to %d (%s): messages in there are lost, those behind it are "
                "kept; run `orbitmq store verify` for what they were, and restore them from a slave or a copy",
                damage.start,
                damage.end,
                damage.reason,
            )
        if self.cut_bytes:
            log.warning("%d bytes of an unfinished write at the end of the log were cut off", self.cut_bytes)
        if self.corrected_units or self.cut_units:
            log.log(
                logging.WARNING if self.clean else logging.INFO,
                "consume queues: %d units written anew from the log, %d that pointed past its end removed",
                self.corrected_units,
                self.cut_units,
            )


def recover(store: MessageStore, clean: bool, is_live: Callable[[str], bool]) -> RecoveryReport:
    report = RecoveryReport(clean, last_store_ms=store.checkpoint.physic_ms)
    covered = 0
    if store.index is not None:
        covered = store.index.load(not clean, store.checkpoint.index_ms)
        report.dropped_index_files = list(store.index.dropped)
    series = store.log.series
    if not series.bases:
        for queue in list(store.all_queues()):
            store.delete_topic(queue.topic)
        return report
    start = _start(store, clean)
    if not clean or report.dropped_index_files:
        start = min(start, max(covered, series.start))
    report.scanned_from = start
    _Rescan(store, report, is_live).run(start)
    for queue in store.all_queues():
        report.cut_units += queue.cut_from_log_offset(report.log_end)
        if series.start:
            queue.raise_minimum(series.start)
    report.write_to_log()
    return report


def _start(store: MessageStore, clean: bool) -> int:
    """Where a sound record begins, not behind what was on the device when the broker stopped."""
    series = store.log.series
    safe = store.mark.safe_offset
    if clean and safe >= 0:
        safe = max(series.start, safe - RECHECK_BYTES)
    if series.start <= safe < series.end:
        found = _record_at_or_after(store, safe)
        # After a crash only the very place that was noted counts: anything later would skip records.
        if found is not None and (clean or found == safe):
            return found
    if clean:
        return series.bases[max(0, len(series.bases) - 3)]
    limit_ms = store.checkpoint.safe_ms()
    for base in reversed(series.bases):
        first = read_record(series.map(base), base, 0)
        if first is not None and 0 < first.store_ms <= limit_ms:
            return base
    return series.bases[0]


def _record_at_or_after(store: MessageStore, offset: int) -> int | None:
    series = store.log.series
    base = offset - offset % series.segment_bytes
    if offset == base:
        return base
    buf = series.map(base)
    scan = SegmentScan(buf, base, offset - base, len(buf), True)
    if next(iter(scan), None) is not None or scan.stop is not Stop.BAD:
        return offset
    found = resync(buf, base, offset - base, series.data_end(base))
    return None if found is None else base + found


class _Rescan:
    """One walk over the end of the log."""

    def __init__(self, store: MessageStore, report: RecoveryReport, is_live: Callable[[str], bool]) -> None:
        self._store = store
        self._report = report
        self._is_live = is_live
        self._rows: list[tuple[bytes, bytes, int, int]] = []
        self._next: dict[tuple[str, int], int] = {}
        self._live: dict[str, bool] = {}

    def run(self, start: int) -> None:
        series = self._store.log.series
        report = self._report
        position = start
        while position < series.end:
            base = position - position % series.segment_bytes
            scan = scan_segment(series.map(base), base, position - base)
            for record in scan:
                self._take(record)
            position = base + scan.pos
            if scan.stop in (Stop.BLANK, Stop.END):
                position = base + series.segment_bytes
                continue
            behind = self._sound_record_behind(base, scan.pos)
            if behind is None:
                break
            reason = scan.problem or "it reads as zeros"
            report.damage.append(Damage(position, behind, reason))
            position = behind
        self._flush_rows()
        self._cut(position)

    def _sound_record_behind(self, base: int, pos: int) -> int | None:
        """The next record that belongs to this log; not one left over from before an earlier cut."""
        series = self._store.log.series
        found = resync(series.map(base), base, pos, series.data_end(base))
        candidates = [base + found] if found is not None else []
        candidates += [later for later in series.bases if later > base]
        for offset in candidates:
            home = offset - offset % series.segment_bytes
            record = read_record(series.map(home), home, offset - home)
            if record is None:
                if (
                    offset == candidates[0] and found is not None
                ):  # a blank marker: the file ends in good order
                    return offset
                continue
            known = self._next.get((record.topic, record.queue_id), 0)
            if record.store_ms >= self._report.last_store_ms and record.queue_offset >= known:
                return offset
            return None
        return None

    def _take(self, record: ScannedRecord) -> None:
        report = self._report
        report.records += 1
        report.last_store_ms = max(report.last_store_ms, record.store_ms)
        if record.is_queued and self._belongs(record):
            queue = self._store.queue(record.topic, record.queue_id)
            tags_code = record.tags_code if record.topic != SCHEDULE_TOPIC else self._delivery_ms(record)
            unit = UNIT.pack(record.offset, record.size, tags_code)
            if record.queue_offset >= queue.min_offset or not queue.max_offset:
                report.corrected_units += queue.put_at(record.queue_offset, unit)
            self._next[record.topic, record.queue_id] = record.queue_offset + 1
        if self._store.index is not None:
            self._rows += record.index_rows
            if len(self._rows) >= _INDEX_SLICE:
                self._flush_rows()

    def _belongs(self, record: ScannedRecord) -> bool:
        """Deleted topics stay deleted, also the old messages of one that was made again since."""
        live = self._live.get(record.topic)
        if live is None:
            live = self._live[record.topic] = self._is_live(record.topic)
        return live and record.offset >= self._store.mark.deleted_topics.get(record.topic, 0)

    def _delivery_ms(self, record: ScannedRecord) -> int:
        """Queues of the schedule topic carry the delivery time where others carry the tag's hash."""
        level_text = record.delay_level
        if level_text is None:
            return record.tags_code
        levels = self._store.settings.delay_levels_ms
        level = int(level_text) if level_text.isdigit() else 0
        return record.store_ms + (levels[level - 1] if 1 <= level <= len(levels) else 1000)

    def _flush_rows(self) -> None:
        if self._store.index is not None and self._rows:
            self._store.index.add_rows(self._rows)
            self._rows = []

    def _cut(self, end: int) -> None:
        """Nothing may lie behind the end: the recovery of the next crash would take it for messages."""
        series = self._store.log.series
        self._report.log_end = end
        base = series.base_of(end)
        if base is None:
            return
        leftover = base + series.filled_bytes(base) - end
        later = [b for b in series.bases if b > base and series.filled_bytes(b)]
        if leftover > 0 or later:
            self._report.cut_bytes = max(0, leftover) + sum(series.filled_bytes(b) for b in later)
            series.truncate_from(end)
