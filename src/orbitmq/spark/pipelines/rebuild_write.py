"""The writing side of rebuild: the units of whole queues, and the index in the order of the log.

Spark runs a task again when it failed, and may run it twice at the same time. So each attempt writes to a place of its
own, and what it has finished gets its name in one step; of two that finish the same thing the first one counts.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from orbitmq.store.consume_queue import UNIT, ConsumeQueue
from orbitmq.store.disk import Disk
from orbitmq.store.key_index import IndexService
from orbitmq.store.segment import DescriptorCache
from orbitmq.store.store_files import CONSUME_QUEUE, INDEX

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPTS: Final = ".attempts"
"""Below the directory that is written; it has to be there, and to be removed in the end."""

_NAME_FORMAT: Final = "%Y%m%d%H%M%S"


@contextmanager
def _attempt(out: str) -> Iterator[str]:
    place = os.path.join(out, ATTEMPTS, uuid.uuid4().hex)
    os.mkdir(place)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _finish(made: str, place: str) -> None:
    os.makedirs(os.path.dirname(place), exist_ok=True)
    try:
        os.rename(made, place)
    except OSError:
        # Another attempt was first. It was whole, and as the input is the same, so are the bytes.
        if not os.path.isdir(place):
            raise


class QueueWriter:
    """For mapInArrow: units sorted by topic, queue and queue offset in; (queues, units) out."""

    def __init__(self, out: str, file_bytes: int) -> None:
        self._out = out
        self._file_bytes = file_bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        queues = units = 0
        with _attempt(self._out) as root:
            disk = Disk()
            cache = DescriptorCache(disk, 64)
            queue: ConsumeQueue | None = None
            waiting: list[bytes] = []
            try:
                for batch in batches:
                    columns = [column.to_pylist() for column in batch.columns]
                    for topic, queue_id, at, position, size, tags_code in zip(*columns, strict=True):
                        if queue is None or (queue.topic, queue.queue_id) != (topic, queue_id):
                            self._end(queue, waiting, root)
                            queue = ConsumeQueue(disk, root, topic, queue_id, self._file_bytes, cache)
                            queues += 1
                        unit = UNIT.pack(position, size, tags_code)
                        units += 1
                        if waiting and at == queue.max_offset + len(waiting):
                            waiting.append(unit)
                            if len(waiting) * UNIT.size >= self._file_bytes:
                                _write(queue, waiting)
                            continue
                        _write(queue, waiting)
                        if at == queue.max_offset:
                            waiting.append(unit)
                        else:
                            # The first of a queue that begins later, a hole, or a place used twice: as recovery does.
                            queue.put_at(at, unit)
                    _write(queue, waiting)
                self._end(queue, waiting, root)
            finally:
                cache.close()
        yield pa.RecordBatch.from_arrays(
            [pa.array([queues], pa.int32()), pa.array([units], pa.int64())], names=["queues", "units"]
        )

    def _end(self, queue: ConsumeQueue | None, waiting: list[bytes], root: str) -> None:
        if queue is None:
            return
        _write(queue, waiting)
        name = os.path.join(queue.topic, str(queue.queue_id))
        _finish(os.path.join(root, name), os.path.join(self._out, CONSUME_QUEUE, name))


def _write(queue: ConsumeQueue | None, waiting: list[bytes]) -> None:
    """Appends units that follow each other; a write never crosses the border of a file."""
    if queue is None:
        return
    while waiting:
        room = queue.next_file_offset(queue.max_offset) - queue.max_offset
        part, waiting[:] = waiting[:room], waiting[room:]
        queue.append(part)
        queue.write_out()


class IndexWriter:
    """For mapInArrow: (position, store time, key hashes) in the order of the log in; (files, entries) out."""

    def __init__(self, out: str, slots: int, entries: int, names: list[str]) -> None:
        self._out = out
        self._slots = slots
        self._entries = entries
        self._names = names

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        disk = Disk()
        clock = _NameClock(self._names)
        total = files = 0
        with _attempt(self._out) as root:
            directory = os.path.join(root, INDEX)
            index = IndexService(disk, directory, clock, self._slots, self._entries)
            try:
                for batch in batches:
                    lists = batch.column("hashes")
                    counts = np.diff(lists.offsets.to_numpy(zero_copy_only=False))
                    hashes = lists.flatten().to_numpy(zero_copy_only=False).astype(np.uint32)
                    positions = np.repeat(batch.column("position").to_numpy(zero_copy_only=False), counts)
                    times = np.repeat(batch.column("store_ms").to_numpy(zero_copy_only=False), counts)
                    clock.default_ms = int(times[0]) if len(times) else clock.default_ms
                    index.add_hashes(hashes.tobytes(), positions.astype(np.int64).tobytes(), times)
                    total += len(hashes)
                index.flush()
            finally:
                index.close()
            if total:
                files = len(disk.listdir(directory))
                _finish(directory, os.path.join(self._out, INDEX))
        yield pa.RecordBatch.from_arrays(
            [pa.array([files], pa.int32()), pa.array([total], pa.int64())], names=["files", "entries"]
        )


class _NameClock:
    """Gives each new file the time that its name in the old store stands for."""

    def __init__(self, names: list[str]) -> None:
        self._times = iter([_time_of(name) for name in names])
        self.default_ms = 0

    def __call__(self) -> int:
        return next(self._times, self.default_ms)


def _time_of(name: str) -> int:
    moment = datetime.strptime(name[:-3], _NAME_FORMAT)
    return int(moment.timestamp()) * 1000 + int(name[-3:])
