"""Opening a store: find the end of the log, and make queues and index agree with it.

The log is the truth. From a safe place on, every record is checked and its unit compared with the queue's file, which
is corrected where it differs. A torn tail is cut off and zeroed. A bad stretch with sound records behind it, or one
that was on the device before, is damage, not a tail: it is reported and stepped over, and what lies behind stays.
A queue that turns out to be shorter than it was is made anew from the whole log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orbitmq.store.consume_queue import ConsumeQueue
from orbitmq.store.log_scan import SegmentScan, Stop, read_record
from orbitmq.store.mark import QueueEnds
from orbitmq.store.recovery_report import RecoveryReport
from orbitmq.store.rescan import NeedsWholeLog, Rescan

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore

RECHECK_BYTES = 16 << 20
"""Even after an orderly stop so much of the end is read again: damage is most likely there, and cheap to mend."""
_DAY_MS = 86_400_000


def recover(store: MessageStore, clean: bool, is_known: Callable[[str], bool]) -> RecoveryReport:
    """`is_known`: whether a topic has settings. Queues of one that has none are not made anew, except after a crash."""
    covered, dropped = 0, []
    if store.index is not None:
        covered = store.index.load(not clean, store.checkpoint.index_ms)
        dropped = list(store.index.dropped)
    series = store.log.series
    if not series.bases:
        for queue in list(store.all_queues()):
            store.delete_topic(queue.topic)
        return RecoveryReport(clean, dropped_index_files=dropped)
    start = tail_from = _start(store, clean)
    if not clean or dropped:
        start = min(start, _record_or_file_start(store, max(covered, series.start)))
    why = "recovery.json is damaged" if store.mark.damaged else _shorter_queue(store)
    if not why:
        try:
            return _walk(store, RecoveryReport(clean), start, tail_from, is_known, dropped)
        except NeedsWholeLog as hole:
            why = str(hole)
    return _walk(store, RecoveryReport(clean, why_whole=why), series.start, tail_from, is_known, dropped)


def _walk(
    store: MessageStore,
    report: RecoveryReport,
    start: int,
    tail_from: int,
    is_known: Callable[[str], bool],
    dropped: list[str],
) -> RecoveryReport:
    report.scanned_from = start
    report.dropped_index_files = dropped
    if store.checkpoint.physic_ms < store.clock() + _DAY_MS:  # a later one is damage
        report.last_store_ms = store.checkpoint.physic_ms
    whole = start <= store.log.series.start
    rescan = Rescan(store, report, whole, tail_from, is_known)
    rescan.run(start)
    for queue in store.all_queues():
        _trim(store, report, rescan, queue, whole)
        if store.log.series.start:
            queue.raise_minimum(store.log.series.start)
    if store.index is not None:
        store.index.cut(report.log_end)
    report.write_to_log()
    return report


def _trim(
    store: MessageStore, report: RecoveryReport, rescan: Rescan, queue: ConsumeQueue, whole: bool
) -> None:
    """Units at the end of a queue must stand for messages: garbage there would shift all that come."""
    noted = _known_ends(store).get(queue.topic, {}).get(queue.queue_id, 0)
    known = max(rescan.confirmed_end(queue), noted)
    cut = queue.cut_from_log_offset(report.log_end, known)
    end = queue.max_offset
    while end > known and not _stands_for_its_record(store, report, queue, end - 1):
        if not known and not whole:
            raise NeedsWholeLog(
                f"the last unit of {queue.topic} queue {queue.queue_id} is not that of its message"
            )
        end -= 1
    if end < queue.max_offset:
        cut += queue.max_offset - end
        queue.cut(end)
    queue.checked_from = min(queue.checked_from, queue.max_offset)
    report.cut_units += cut


def _stands_for_its_record(store: MessageStore, report: RecoveryReport, queue: ConsumeQueue, at: int) -> bool:
    unit = queue.unit(at)
    if unit is None or unit[1] <= 0:
        return False
    series = store.log.series
    if unit[0] < series.start or any(damage.start <= unit[0] < damage.end for damage in report.damage):
        return True  # its record is gone, its place is not free
    base = series.base_of(unit[0])
    record = (
        read_record(series.map(base), base, unit[0] - base, check_crc=False) if base is not None else None
    )
    if record is None:
        return False
    return (record.topic, record.queue_id, record.queue_offset) == (queue.topic, queue.queue_id, at)


def _known_ends(store: MessageStore) -> QueueEnds:
    """How long queues were when this broker last noted it; nothing when another one was here since."""
    mark = store.mark
    return mark.queue_ends if mark.checkpoint_ms == store.checkpoint.physic_ms else {}


def _shorter_queue(store: MessageStore) -> str:
    """Names a queue whose file ends before the place that the broker noted for it, if there is one."""
    for topic, ends in _known_ends(store).items():
        for queue_id, end in ends.items():
            queue = store.find_queue(topic, queue_id)
            reached = queue.max_offset if queue is not None else 0
            if reached < end:
                return f"{topic} queue {queue_id} ends at {reached} and had {end} messages"
    return ""


def _start(store: MessageStore, clean: bool) -> int:
    """Where a sound record begins, not behind what was on the device when the broker stopped."""
    series = store.log.series
    safe = store.mark.safe_offset
    if series.start <= safe <= series.end:
        if clean:
            return _border_before(store, max(series.start, safe - RECHECK_BYTES))
        # After a crash only the very place that was noted counts: anything later would skip records.
        if _is_border(store, safe):
            return safe
    if clean:
        return series.bases[max(0, len(series.bases) - 3)]
    limit_ms = store.checkpoint.safe_ms()
    if limit_ms > store.clock() + _DAY_MS:
        return series.start
    for base in reversed(series.bases):
        first = read_record(series.map(base), base, 0)
        if first is not None and 0 < first.store_ms <= limit_ms:
            return base
    return series.bases[0]


def _border_before(store: MessageStore, offset: int) -> int:
    """The last place known to begin a record: a noted one, or the start of the file."""
    series = store.log.series
    base = series.base_of(offset)
    noted = store.mark.border_before(offset)
    if noted is not None and noted >= max(base or 0, series.start) and _is_border(store, noted):
        return noted
    return offset if base is None else base


def _is_border(store: MessageStore, offset: int) -> bool:
    """Whether a record begins here, or could: nothing, or nothing more, was written."""
    series = store.log.series
    base = series.base_of(offset)
    if base is None or offset == base:
        return True
    buf = series.map(base)
    scan = SegmentScan(buf, base, offset - base, len(buf), True)
    return next(iter(scan), None) is not None or scan.stop is not Stop.BAD


def _record_or_file_start(store: MessageStore, offset: int) -> int:
    """The index's own idea of how far it came is worth following only to where a record begins."""
    series = store.log.series
    base = series.base_of(offset)
    if base is None:
        return series.start if offset < series.start else series.end
    return offset if read_record(series.map(base), base, offset - base) is not None else base
