"""Look into a store without a broker: what its queues hold, and what lies at an offset of the log."""

from __future__ import annotations

import os
from dataclasses import dataclass

from orbitmq.store.consume_queue import UNIT_BYTES
from orbitmq.store.disk import Disk, StrPath
from orbitmq.store.errors import StoreError
from orbitmq.store.log_scan import FileBytes, Stop, read_record, resync, scan_segment
from orbitmq.store.store_files import COMMIT_LOG, LogReader, StoreFiles, segment_path, unmap
from orbitmq.store.verify import find_sizes
from orbitmq.store.verify_queues import FILLER, QueueUnits
from orbitmq.store.verify_report import QueueSummary, StoreSizes
from orbitmq.wire.errors import WireError
from orbitmq.wire.message import Message, decode_record
from orbitmq.wire.numeric import np

_UNIT_DTYPE = [("offset", ">i8"), ("size", ">i4"), ("code", ">i8")]


@dataclass(frozen=True, slots=True)
class InspectedRecord:
    """What lies at an offset; `start` and `message` are of the record that covers it, if it can be read."""

    asked: int
    file: str
    start: int | None
    message: Message | None
    in_queue: bool | None
    """Does the queue's unit point here? None when there is no record, or no queue for it."""
    note: str


def summarize_store(
    path: StrPath, sizes: StoreSizes | None = None, *, disk: Disk | None = None
) -> list[QueueSummary]:
    """Every queue: offsets, bytes of its records and the store times of the first and the last one.

    Reads queue files and two records of each queue, so it is quick on any store.
    """
    files = _open(path, disk)
    try:
        found = find_sizes(files, sizes or StoreSizes())
        if found.consume_queue is None or found.commit_log is None:
            return []
        log = LogReader(files, found.commit_log)
        bases = files.bases(COMMIT_LOG)
        log_start = bases[0] if bases else 0
        return [
            _summary(files, log, QueueUnits(files, topic, queue_id, found.consume_queue), log_start)
            for topic, queue_id in files.queue_directories()
        ]
    finally:
        files.close()


def _open(path: StrPath, disk: Disk | None) -> StoreFiles:
    files = StoreFiles(disk or Disk(), os.fspath(path))
    if not files.disk.is_dir(files.root):
        raise StoreError(f"{files.root} is no directory", "give the storePathRootDir of a broker")
    return files


def _summary(files: StoreFiles, log: LogReader, units: QueueUnits, log_start: int) -> QueueSummary:
    summary = QueueSummary(units.topic, units.queue_id, min_offset=units.end, max_offset=units.end)
    for base in units.bases:
        data = files.read(segment_path(units.directory, base))
        rows = np.frombuffer(data, dtype=_UNIT_DTYPE, count=len(data) // UNIT_BYTES)
        rows = rows[: max(units.end - base // UNIT_BYTES, 0)]
        present = (rows["size"] > 0) & (rows["size"] != FILLER[1]) & (rows["offset"] >= log_start)
        places = np.flatnonzero(present)
        if len(places):
            summary.min_offset = min(summary.min_offset, base // UNIT_BYTES + int(places[0]))
            summary.records += len(places)
            summary.record_bytes += int(rows["size"][present].sum())
    if summary.records:
        first = log.record(units.unit(summary.min_offset)[0])
        last = log.record(units.unit(summary.max_offset - 1)[0])
        summary.first_ms = first.store_ms if first is not None else None
        summary.last_ms = last.store_ms if last is not None else None
    return summary


def inspect_record(
    path: StrPath, offset: int, sizes: StoreSizes | None = None, *, disk: Disk | None = None
) -> InspectedRecord:
    """The record at an offset of the log, or the one around it, or why there is none."""
    files = _open(path, disk)
    try:
        found = find_sizes(files, sizes or StoreSizes())
        file_bytes = found.commit_log or 0
        base = offset - offset % file_bytes if file_bytes else 0
        if not file_bytes or offset < 0 or base not in files.bases(COMMIT_LOG):
            note = "no file of the log holds this offset: it is too old and was deleted, or was never written"
            return InspectedRecord(offset, COMMIT_LOG, None, None, None, note)
        name = segment_path(COMMIT_LOG, base)
        buf = files.map(name)
        try:
            start, note = _covering(buf, base, offset - base)
            # A damaged body is no reason to keep what can still be read of the record from its owner.
            message = decode_record(buf, start, check_crc=False) if start is not None else None
        except WireError as error:
            start, message, note = None, None, str(error)
        finally:
            unmap(buf)
        in_queue = _in_queue(files, message, found) if message is not None else None
        return InspectedRecord(offset, name, None if start is None else base + start, message, in_queue, note)
    finally:
        files.close()


def _covering(buf: FileBytes, base: int, position: int) -> tuple[int | None, str]:
    """Where the record begins that covers a position, and what to say about it."""
    if read_record(buf, base, position) is not None:
        return position, "a record begins here"
    pos = 0
    while True:
        scan = scan_segment(buf, base, pos, check_crc=False)
        for record in scan:
            start = record.offset - base
            if start <= position < start + record.size:
                note = "the record that begins here is damaged" if start == position else "inside this record"
                return start, note
        if scan.stop is Stop.BLANK:
            return None, "behind the last record of its file, which ends with a blank marker"
        behind = resync(buf, base, scan.pos)
        if behind is None or position < behind:
            if scan.stop is Stop.ZEROS and behind is None:
                return None, f"nothing is written here: the log ends at {base + scan.pos}"
            note = f"damaged from {base + scan.pos} on: {scan.problem or 'it reads as zeros'}"
            return None, note if behind is None else f"{note}; the next record is at {base + behind}"
        pos = behind


def _in_queue(files: StoreFiles, message: Message, sizes: StoreSizes) -> bool | None:
    key = (message.topic, message.queue_id)
    if sizes.consume_queue is None or key not in set(files.queue_directories()):
        return None
    units = QueueUnits(files, *key, sizes.consume_queue)
    return units.unit(message.queue_offset)[:2] == (message.physical_offset, message.size)
