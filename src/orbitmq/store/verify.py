"""Is a store sound? A read-only check of everything in its directory, of a stopped or a running broker.

In: a directory. Out: a `VerifyReport` with every contradiction between the files and what to do about it. The
commit log is read once, front to back; queues and key index are checked along the way. Nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from orbitmq.store.checkpoint import Checkpoint
from orbitmq.store.disk import Disk, StrPath
from orbitmq.store.errors import StoreDamaged, StoreError
from orbitmq.store.log_scan import ScannedRecord
from orbitmq.store.store_files import (
    COMMIT_LOG,
    CONSUME_QUEUE,
    INDEX,
    INDEX_NAME_DIGITS,
    LogReader,
    StoreFiles,
    segment_path,
)
from orbitmq.store.verify_index import IndexCheck, find_shape
from orbitmq.store.verify_log import LogCheck
from orbitmq.store.verify_queues import UNIT_BYTES, QueueCheck
from orbitmq.store.verify_report import RESTORE_CONFIG, StoreSizes, VerifyReport
from orbitmq.wire.errors import WireError
from orbitmq.wire.fastjson import loads
from orbitmq.wire.topics import SYSTEM_TOPICS

CONFIG = "config"
_CHECKPOINT = "checkpoint"


def verify_store(
    path: StrPath,
    sizes: StoreSizes | None = None,
    *,
    disk: Disk | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> VerifyReport:
    """Check the store in this directory. `sizes` are found from the files where they are not given.

    `progress` is told (log files done, log files in all). Damage is reported, never raised.
    """
    root = os.fspath(path)
    files = StoreFiles(disk or Disk(), root)
    if not files.disk.is_dir(root):
        raise StoreError(f"{root} is no directory", "give the storePathRootDir of a broker")
    report = VerifyReport(root)
    try:
        report.sizes = find_sizes(files, sizes or StoreSizes())
        report.clean_stop = not files.exists("abort")
        if not report.clean_stop:
            text = "a broker is running on this store, or it was not stopped in good order"
            report.info("abort", None, text, "nothing: the tail is judged leniently, the next start mends it")
        config = _check_config(files, report)
        _check_data(files, report, config, progress)
        _check_checkpoint(files, report)
        _check_progress(report, config)
    finally:
        files.close()
    return report


def find_sizes(files: StoreFiles, given: StoreSizes) -> StoreSizes:
    """Fill what is not given with what most files show."""
    commit_log = given.commit_log or _usual_size(files, [COMMIT_LOG])
    directories = [f"{CONSUME_QUEUE}/{topic}/{queue_id}" for topic, queue_id in files.queue_directories()]
    consume_queue = given.consume_queue or _usual_size(files, directories)
    shape = (given.index_slots, given.index_entries)
    if None in shape:
        shape = find_shape(files) or (None, None)
    return StoreSizes(commit_log, consume_queue, *shape)


def _usual_size(files: StoreFiles, directories: list[str]) -> int | None:
    """The most common length. One file cut short must not make all others look wrong."""
    counts: dict[int, int] = {}
    for directory in directories:
        for base in files.bases(directory):
            size = files.size(segment_path(directory, base))
            counts[size] = counts.get(size, 0) + 1
    counts.pop(0, None)
    return max(counts, key=lambda size: (counts[size], size)) if counts else None


def _check_data(
    files: StoreFiles, report: VerifyReport, config: dict[str, Any], progress: Callable[[int, int], None]
) -> None:
    sizes = report.sizes
    topics = config.get("topics.json", {}).get("topicConfigTable", {})
    known_topics = SYSTEM_TOPICS | (set(topics) if isinstance(topics, dict) else set())
    log_bytes = sizes.commit_log or 1 << 30
    queue_bytes = sizes.consume_queue or 300_000 * UNIT_BYTES
    if queue_bytes % UNIT_BYTES:
        text = f"the queue files have {queue_bytes} bytes, which is no multiple of {UNIT_BYTES}"
        report.error(CONSUME_QUEUE, None, text)
        queue_bytes += UNIT_BYTES - queue_bytes % UNIT_BYTES
    bases = files.bases(COMMIT_LOG)
    queues = QueueCheck(files, queue_bytes, report, known_topics)
    index = _index_check(files, report, bases[0] if bases else 0)

    def take(record: ScannedRecord) -> None:
        queues.take(record)
        if index is not None:
            index.take(record)

    LogCheck(files, log_bytes, report, take, progress).run()
    queues.finish(LogReader(files, log_bytes))
    if index is not None:
        index.finish()


def _index_check(files: StoreFiles, report: VerifyReport, log_start: int) -> IndexCheck | None:
    slots, entries = report.sizes.index_slots, report.sizes.index_entries
    if not files.names(INDEX, INDEX_NAME_DIGITS):
        report.info(INDEX, None, "there is no key index")
        return None
    if slots is None or entries is None:
        text = "how many slots and entries the files have cannot be seen from them"
        report.warning(INDEX, None, text, "give maxHashSlotNum and maxIndexNum of the broker")
        return None
    return IndexCheck(files, (slots, entries), report, log_start)


def _check_checkpoint(files: StoreFiles, report: VerifyReport) -> None:
    try:
        checkpoint = Checkpoint.load(files.disk, files.path(_CHECKPOINT))
    except StoreDamaged as error:
        report.error(_CHECKPOINT, 0, error.problem, error.hint)
        return
    if not files.exists(_CHECKPOINT):
        if report.records:
            report.warning(_CHECKPOINT, None, "is missing", "nothing: the next start reads the whole log")
        return
    times = {
        "physicMsgTimestamp": (0, checkpoint.physic_ms),
        "logicsMsgTimestamp": (8, checkpoint.logics_ms),
        "indexMsgTimestamp": (16, checkpoint.index_ms),
    }
    for name, (at, when_ms) in times.items():
        if when_ms < 0 or (report.clean_stop and when_ms > report.last_ms):
            text = f"{name} is {when_ms}, the last record in the log is of {report.last_ms}"
            fix = "records at the end of the log were lost, or the file is damaged; delete it to be safe"
            report.warning(_CHECKPOINT, at, text, fix)


def _check_config(files: StoreFiles, report: VerifyReport) -> dict[str, Any]:
    """Parse config/*.json; returns what was read, by file name."""
    read: dict[str, Any] = {}
    names = {name.removesuffix(".bak") for name in files.disk.listdir(files.path(CONFIG))}
    for name in sorted(name for name in names if name.endswith(".json")):
        content, problem = _parse(files, f"{CONFIG}/{name}")
        if problem is not None:
            content, backup_problem = _parse(files, f"{CONFIG}/{name}.bak")
            if backup_problem is None:
                fix = "nothing: the broker takes the .bak beside it"
                report.warning(f"{CONFIG}/{name}", None, problem, fix)
            else:
                report.error(f"{CONFIG}/{name}", None, f"{problem}; nor is its .bak of use", RESTORE_CONFIG)
        if isinstance(content, dict):
            read[name] = content
    return read


def _parse(files: StoreFiles, relative: str) -> tuple[Any, str | None]:
    if not files.exists(relative):
        return None, "is missing"
    data = files.read(relative)
    if not data.strip():
        return None, "is empty"
    try:
        content = loads(data)
    except WireError as error:
        return None, f"is not readable: {error}"
    return (content, None) if isinstance(content, dict) else (None, "holds no JSON object")


def _check_progress(report: VerifyReport, config: dict[str, Any]) -> None:
    """Groups that claim to have consumed what was never there skip messages to come."""
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in report.queues}
    table = config.get("consumerOffset.json", {}).get("offsetTable", {})
    for name, offsets in table.items() if isinstance(table, dict) else ():
        topic = str(name).partition("@")[0]
        for queue_id, offset in offsets.items() if isinstance(offsets, dict) else ():
            if not str(queue_id).isdigit() or not isinstance(offset, int):
                continue
            end = ends.get((topic, int(queue_id)))
            if end is not None and offset > end:
                text = f"{name} queue {queue_id} is at {offset}, the queue ends at {end}"
                fix = "reset the group's offset, or restore the lost part of the log"
                report.warning(f"{CONFIG}/consumerOffset.json", None, text, fix)
