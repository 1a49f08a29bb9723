"""The queues of a store directory as they can be read without its broker: what their files say, and what only the log
knows yet.

A running broker writes queue units some moments after the log, and one that was killed never wrote its last ones. So
the log is scanned behind the last unit, and the records found there are added to their queues. Nothing is changed.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from orbitmq.spark.errors import SourceError
from orbitmq.store.disk import Disk
from orbitmq.store.file_lock import is_held
from orbitmq.store.log_scan import FileBytes, ScannedRecord, Stop, resync, scan_segment
from orbitmq.store.store_files import COMMIT_LOG, CONSUME_QUEUE, LogReader, StoreFiles, segment_path, unmap
from orbitmq.store.verify import find_sizes
from orbitmq.store.verify_report import StoreSizes
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.topics import LMQ_PREFIX

if TYPE_CHECKING:
    import numpy.typing as npt

log = logging.getLogger("orbitmq.spark")

UNIT = Struct(">qiq")
UNIT_DTYPE: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
FILLER_SIZE: Final = 0x7FFFFFFF
# After a crash the last units of one queue can be missing while another queue's are there.
UNSURE_TAIL_BYTES: Final = 16 << 20

QueueName = tuple[str, int]


class LateUnit(NamedTuple):
    """A record that the queue's files do not know yet."""

    number: int
    """Its offset in the queue."""
    offset: int
    size: int
    tags_code: int


@dataclass
class StoreQueue:
    """One queue: offsets `first` up to before `end`, of which those from `file_end` on have no unit in a file."""

    topic: str
    queue_id: int
    first: int
    file_end: int
    late: list[LateUnit] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.late[-1].number + 1 if self.late else self.file_end


@dataclass
class StoreView:
    """A store at one moment. `damage` says in words what could not be read."""

    queues: dict[QueueName, StoreQueue]
    log_file_bytes: int
    queue_file_bytes: int
    log_end: int
    clean: bool
    """Stopped in good order: queues and log agree."""
    live: bool
    """A broker is running on it: nothing written can be torn."""
    damage: list[str]


def open_files(path: str) -> StoreFiles:
    files = StoreFiles(Disk(), os.path.expanduser(path))
    if not files.exists(COMMIT_LOG):
        raise SourceError(
            f"{path} holds no store: there is no {COMMIT_LOG} in it",
            hint="give the storePathRootDir of a broker, or a copy of it",
        )
    return files


def view_store(path: str, log_file_bytes: int | None = None) -> StoreView:
    """All queues of a store, live, stopped or copied."""
    files = open_files(path)
    try:
        sizes = find_sizes(files, StoreSizes(commit_log=log_file_bytes, index_slots=1, index_entries=1))
        bases = files.bases(COMMIT_LOG)
        log_bytes = sizes.commit_log or 1 << 30
        queue_bytes = sizes.consume_queue or 300_000 * UNIT.size
        clean, live = not files.exists("abort"), is_held(files.path("lock"))
        view = StoreView({}, log_bytes, queue_bytes, 0, clean, live, [])
        reached = log_start = bases[0] if bases else 0
        for topic, queue_id in files.queue_directories():
            queue, last = _queue_from_files(files, topic, queue_id, queue_bytes, log_start)
            if queue is not None:
                view.queues[topic, queue_id] = queue
                reached = max(reached, last)
        _scan_tail(files, view, bases, reached)
        return view
    finally:
        files.close()


def _queue_from_files(
    files: StoreFiles, topic: str, queue_id: int, file_bytes: int, log_start: int
) -> tuple[StoreQueue | None, int]:
    """The queue as its files tell it, and the end of the last record it points at."""
    directory = f"{CONSUME_QUEUE}/{topic}/{queue_id}"
    bases = files.bases(directory)
    end = last = 0
    for base in reversed(bases):
        units = read_units(files, directory, base, file_bytes)
        valid = (units["offset"] >= 0) & (units["size"] > 0)
        count = len(valid) if valid.all() else int(np.argmin(valid))
        if count or base == bases[0]:
            end = base // UNIT.size + count
            real = np.flatnonzero(units["size"][:count] != FILLER_SIZE)
            last = int(units["offset"][real[-1]] + units["size"][real[-1]]) if len(real) else 0
            break
    for base in bases:
        units = read_units(files, directory, base, file_bytes)[: max(end - base // UNIT.size, 0)]
        there = (units["offset"] >= log_start) & (units["size"] > 0) & (units["size"] != FILLER_SIZE)
        if there.any():
            return StoreQueue(topic, queue_id, base // UNIT.size + int(np.argmax(there)), end), last
    return (StoreQueue(topic, queue_id, end, end), last) if bases else (None, 0)


def read_units(files: StoreFiles, directory: str, base: int, file_bytes: int) -> npt.NDArray[np.void]:
    """The units of one file, in memory of their own: the file may go away at any time."""
    buf = files.map(segment_path(directory, base))
    try:
        count = min(len(buf), file_bytes) // UNIT.size
        return np.frombuffer(buf, UNIT_DTYPE, count).copy()
    finally:
        unmap(buf)


def first_stored_at(files: StoreFiles, view: StoreView, queue: StoreQueue, time_ms: int) -> int:
    """The first offset of a queue stored at a time or later; its end where there is none."""
    records = LogReader(files, view.log_file_bytes)
    late = {unit.number: unit.offset for unit in queue.late}

    def is_late(number: int) -> bool:
        record = records.record(late[number] if number in late else _log_offset(files, view, queue, number))
        return record is not None and record.store_ms >= time_ms

    low, high = queue.first - 1, queue.end
    while high - low > 1:
        middle = (low + high) // 2
        if is_late(middle):
            high = middle
        else:
            low = middle
    return high


def _log_offset(files: StoreFiles, view: StoreView, queue: StoreQueue, number: int) -> int:
    place = number * UNIT.size
    base = place - place % view.queue_file_bytes
    try:
        buf = files.shared_map(segment_path(f"{CONSUME_QUEUE}/{queue.topic}/{queue.queue_id}", base))
        offset: int = UNIT.unpack_from(buf, place - base)[0]
    except (OSError, StructError):
        return -1
    return offset


def _scan_tail(files: StoreFiles, view: StoreView, bases: list[int], reached: int) -> None:
    """Finds where the log ends, and the records in front of it that no unit points at."""
    # A clean queue has all its units; of others one may lack some that lie before another's last.
    start = reached if view.clean else max(reached - UNSURE_TAIL_BYTES, bases[0] if bases else 0)
    view.log_end = reached
    for base in bases:
        if base + view.log_file_bytes <= start:
            continue
        name = segment_path(COMMIT_LOG, base)
        try:
            buf = files.map(name)
        except OSError as error:
            view.damage.append(f"{name} cannot be read: {error}")
            continue
        try:
            first: int | None = max(start - base, 0)
            if first and start < reached:
                first = resync(buf, base, first - 1)  # any byte may lie here, not only a record's first
            if first is not None and not _scan_file(view, buf, base, first):
                return
        finally:
            unmap(buf)


def _scan_file(view: StoreView, buf: FileBytes, base: int, pos: int) -> bool:
    """False at the end of the log."""
    name = segment_path(COMMIT_LOG, base)
    while True:
        scan = scan_segment(buf, base, pos, check_crc=not view.live)
        for record in scan:
            _add(view, record)
        view.log_end = max(view.log_end, base + scan.pos)
        if scan.stop in (Stop.BLANK, Stop.END):
            return True
        # The rest of a file is a gigabyte of nothing: what a crash leaves behind a bad stretch is near.
        limit = scan.pos + UNSURE_TAIL_BYTES
        behind = None if scan.stop is Stop.ZEROS and view.clean else resync(buf, base, scan.pos, limit)
        what = scan.problem or "it reads as zeros"
        if behind is None:
            if scan.stop is Stop.BAD and not view.live:
                view.damage.append(f"{name}: the log ends damaged at {base + scan.pos}: {what}")
            return False
        view.damage.append(f"{name}: {behind - scan.pos} bytes at {base + scan.pos} are damaged: {what}")
        pos = behind


def _add(view: StoreView, record: ScannedRecord) -> None:
    if not record.is_queued or record.sys_flag & SysFlag.INNER_BATCH or record.topic.startswith(LMQ_PREFIX):
        return
    name = record.topic, record.queue_id
    queue = view.queues.get(name)
    if queue is None:
        queue = view.queues[name] = StoreQueue(*name, record.queue_offset, record.queue_offset)
    if record.queue_offset >= queue.end:
        unit = LateUnit(record.queue_offset, record.offset, record.size, record.tags_code)
        queue.late.append(unit)
