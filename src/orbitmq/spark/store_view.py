"""A store directory at one moment: the queues that its files tell of, and what only the log knows yet.

A running broker writes queue units some moments after the log, and one that was killed never wrote its last ones. So
the log is scanned behind the last unit, and the records found there are added to their queues. Nothing is changed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from orbitmq.spark.errors import SourceError
from orbitmq.spark.records import Heads, layout_groups, record_starts
from orbitmq.spark.spans import as_bytes, take_spans
from orbitmq.spark.store_queues import (
    UNIT,
    LateUnit,
    StoreQueue,
    StoreView,
    open_files,
    queue_from_files,
)
from orbitmq.store.file_lock import is_held
from orbitmq.store.log_scan import (
    FileBytes,
    ScannedRecord,
    Stop,
    read_record,
    resync,
    scan_segment,
)
from orbitmq.store.store_files import COMMIT_LOG, StoreFiles, segment_path, unmap
from orbitmq.store.verify import find_sizes
from orbitmq.store.verify_report import StoreSizes
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.message import MAGIC_AT, MESSAGE_MAGIC, MESSAGE_MAGIC_V2, PHYSICAL_OFFSET_AT
from orbitmq.wire.topics import LMQ_PREFIX

# After a crash the last units of one queue can be missing while another queue's are there.
UNSURE_TAIL_BYTES: Final = 16 << 20


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
        for name in files.queue_directories():
            queue, last = queue_from_files(files, name, queue_bytes, log_start, sound=clean or live)
            if queue is not None:
                view.queues[name] = queue
                reached = max(reached, last)
        _scan_tail(files, view, bases, reached)
        return view
    finally:
        files.close()


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
            if first is not None and view.live:
                first = _add_late(view, buf, base, first, reached - base)
            if first is not None and not _scan_file(view, buf, base, first):
                return
        finally:
            unmap(buf)


def _add_late(view: StoreView, buf: FileBytes, base: int, start: int, stop: int) -> int:
    """Adds the records of a stretch that their queues' files do not have; where to go on from.

    Nearly all are in the files already, so all are looked at in columns. What is not sound is left to the slow scan.
    """
    data = as_bytes(buf)[start : min(stop, len(buf))]
    try:
        heads = Heads(data, record_starts(data))
        magic = heads.field(MAGIC_AT, ">u4")
        places = heads.field(PHYSICAL_OFFSET_AT, ">i8")
        sound = ((magic == MESSAGE_MAGIC) | (magic == MESSAGE_MAGIC_V2)) & (
            places == heads.starts + (base + start)
        )
        if not sound.all():
            return start
        late: list[int] = []
        for records, _ in layout_groups(data, heads):
            names = take_spans(
                data, records.topic_begins, records.topic_ends, pa.binary()
            ).dictionary_encode()
            topics = [name.decode("utf-8", "replace") for name in names.dictionary.to_pylist()]
            codes = names.indices.to_numpy().astype(np.int64) << 32 | records.queue_ids
            kinds, which = np.unique(codes, return_inverse=True)
            queues = (view.queues.get((topics[kind >> 32], kind & 0xFFFFFFFF)) for kind in kinds.tolist())
            ends = np.array([0 if queue is None else queue.file_end for queue in queues], np.int64)
            late += records.starts[records.queue_offsets >= ends[which]].tolist()
    except SourceError:
        return start
    for place in sorted(late):
        record = read_record(buf, base, start + place, check_crc=False)
        if record is not None:
            _add(view, record)
    return start + len(data)


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
        over = scan.stop is Stop.ZEROS and (view.clean or view.live)
        behind = None if over else resync(buf, base, scan.pos, limit)
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
