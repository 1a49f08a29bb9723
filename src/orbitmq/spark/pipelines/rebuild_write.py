"""The writing side of rebuild: the units of whole queues, and the index in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from orbitmq.store.consume_queue import UNIT, ConsumeQueue
from orbitmq.store.disk import Disk
from orbitmq.store.key_index import IndexService
from orbitmq.store.segment import DescriptorCache

if TYPE_CHECKING:
    import pyarrow as pa

_NAME_FORMAT = "%Y%m%d%H%M%S"


class QueueWriter:
    """For mapInArrow: units sorted by topic, queue and queue offset in; (queues, units) out."""

    def __init__(self, root: str, file_bytes: int) -> None:
        self._root = root
        self._file_bytes = file_bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        disk = Disk()
        cache = DescriptorCache(disk, 64)
        queues = units = 0
        queue: ConsumeQueue | None = None
        waiting: list[bytes] = []
        try:
            for batch in batches:
                columns = [column.to_pylist() for column in batch.columns]
                for topic, queue_id, at, position, size, tags_code in zip(*columns, strict=True):
                    if queue is None or (queue.topic, queue.queue_id) != (topic, queue_id):
                        _write(queue, waiting)
                        queue = ConsumeQueue(disk, self._root, topic, queue_id, self._file_bytes, cache)
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
                        # The first of a queue that begins later, a hole, or a place used twice: as recovery does it.
                        queue.put_at(at, unit)
                _write(queue, waiting)
            _write(queue, waiting)
        finally:
            cache.close()
        yield pa.RecordBatch.from_arrays(
            [pa.array([queues], pa.int32()), pa.array([units], pa.int64())], names=["queues", "units"]
        )


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

    def __init__(self, directory: str, slots: int, entries: int, names: list[str]) -> None:
        self._directory = directory
        self._slots = slots
        self._entries = entries
        self._names = names

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        disk = Disk()
        clock = _NameClock(self._names)
        index = IndexService(disk, self._directory, clock, self._slots, self._entries)
        total = 0
        try:
            index.load()
            for batch in batches:
                lists = batch.column("hashes")
                counts = np.diff(lists.offsets.to_numpy(zero_copy_only=False))
                hashes = lists.flatten().to_numpy(zero_copy_only=False).astype(np.uint32)
                positions = np.repeat(batch.column("position").to_numpy(zero_copy_only=False), counts)
                times = np.repeat(batch.column("store_ms").to_numpy(zero_copy_only=False), counts)
                clock.default_ms = int(times[0]) if len(times) else clock.default_ms
                index.add_hashes(hashes.tobytes(), positions.astype(np.int64).tobytes(), times)
                total += len(hashes)
            files = len(disk.listdir(self._directory)) if disk.exists(self._directory) else 0
            index.flush()
        finally:
            index.close()
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
