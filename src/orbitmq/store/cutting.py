"""Cutting the end off a store that is closed: what a broker does that was master and wrote what nobody else has.

The notes about what was on the device come first: whoever dies between them and the log's files finds a log that is
longer than they say, which is harmless; the other way round the next start would call the cut damage. Queues and index
are brought in line when the store is opened.
"""

from __future__ import annotations

import os

from orbitmq.store.checkpoint import Checkpoint
from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreError
from orbitmq.store.flush_note import FlushNote
from orbitmq.store.mark import FILE_NAME as MARK_FILE
from orbitmq.store.mark import RecoveryMark
from orbitmq.store.segment import DescriptorCache, SegmentSeries
from orbitmq.store.settings import StoreSettings


def cut_store(disk: Disk, settings: StoreSettings, end: int) -> None:
    """Forgets everything from log offset `end` on, where a record begins. The store is closed meanwhile.

    With an `end` of 0 no file of the log is left: it may begin anew at another place, and so may the queues.
    """
    cache = DescriptorCache(disk)
    series = SegmentSeries(disk, settings.log_directory, settings.commit_log_file_bytes, cache)
    series.load()
    if series.bases and 0 < end < series.start:
        raise StoreError(
            f"the log must be cut to {end} and begins at {series.start}: nothing of it is left; empty "
            f"{settings.root} so that this broker copies everything anew"
        )
    try:
        _lower_notes(disk, settings.root, end)
        if end:
            series.truncate_from(end)
        else:
            _forget_keys(disk, os.path.join(settings.root, "index"))
            series.destroy()
        if series.bases:
            disk.fdatasync(series.fd(series.bases[-1]))
            disk.fsync_dir(series.directory)
    finally:
        series.close()
        cache.close()


def _lower_notes(disk: Disk, root: str, end: int) -> None:
    path = os.path.join(root, MARK_FILE)
    mark = RecoveryMark.load(disk, path)
    if not mark.damaged and mark.safe_offset >= 0:
        mark.safe_offset = min(mark.safe_offset, end)
        mark.queue_ends = {}
        mark.deleted_topics = {topic: at for topic, at in mark.deleted_topics.items() if at <= end}
        mark.forget_behind(end)
        mark.save(disk, path)
    note = FlushNote(disk, root)
    flushed = note.load()
    if flushed is not None and flushed.offset > end:
        note.open(end, Checkpoint.load(disk, os.path.join(root, "checkpoint")).physic_ms)
        note.close()


def _forget_keys(disk: Disk, directory: str) -> None:
    """The index would not take keys of records that lie before those it knows."""
    for name in disk.listdir(directory):
        disk.unlink(os.path.join(directory, name))
