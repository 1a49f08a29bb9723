"""The queues of a store directory as they can be read without its broker: what their files say.

A queue file is made at its full size and filled from the front. Of a broker that runs, or was stopped in good order,
the units are a run without holes, so that ends are found by halving; of others the first hole is looked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from orbitmq.spark.errors import SourceError
from orbitmq.store.disk import Disk
from orbitmq.store.log_scan import FileBytes
from orbitmq.store.store_files import COMMIT_LOG, CONSUME_QUEUE, LogReader, StoreFiles, segment_path, unmap

if TYPE_CHECKING:
    import numpy.typing as npt

UNIT = Struct(">qiq")
UNIT_DTYPE: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
FILLER_SIZE: Final = 0x7FFFFFFF
UNITS_AT_ONCE: Final = 16_384

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


def queue_from_files(
    files: StoreFiles, name: QueueName, file_bytes: int, log_start: int, *, sound: bool
) -> tuple[StoreQueue | None, int]:
    """The queue as its files tell it, and the end of the last record it points at. `sound`: it has no holes."""
    directory = queue_directory(*name)
    bases = files.bases(directory)
    end = last = 0
    for base in reversed(bases):
        count, last = _written(files, directory, base, file_bytes, sound=sound)
        if count or base == bases[0]:
            end = base // UNIT.size + count
            break
    for base in bases:
        first = _first_of_log(files, directory, base, end - base // UNIT.size, log_start, sound=sound)
        if first is not None:
            return StoreQueue(*name, base // UNIT.size + first, end), last
    return (StoreQueue(*name, end, end), last) if bases else (None, 0)


def queue_directory(topic: str, queue_id: int) -> str:
    return f"{CONSUME_QUEUE}/{topic}/{queue_id}"


def _written(
    files: StoreFiles, directory: str, base: int, file_bytes: int, *, sound: bool
) -> tuple[int, int]:
    """How many units a file has, and where the record of the last one ends; 0 without a real one."""
    if sound:
        with _mapped(files, directory, base) as unit:
            most = min(unit.count, file_bytes // UNIT.size)
            count = first_where(0, most, lambda number: not _is_unit(*unit(number)))
            offset, size = unit(count - 1) if count else (0, FILLER_SIZE)
        return count, 0 if size == FILLER_SIZE else offset + size
    count = last = 0
    for units in unit_runs(files, directory, base, 0, file_bytes // UNIT.size):
        valid = (units["offset"] >= 0) & (units["size"] > 0)
        found = len(valid) if valid.all() else int(np.argmin(valid))
        real = np.flatnonzero(units["size"][:found] != FILLER_SIZE)
        if len(real):
            last = int(units["offset"][real[-1]]) + int(units["size"][real[-1]])
        count += found
        if found < len(units):
            break
    return count, last


def _is_unit(offset: int, size: int) -> bool:
    return offset >= 0 and size > 0


def _first_of_log(
    files: StoreFiles, directory: str, base: int, count: int, log_start: int, *, sound: bool
) -> int | None:
    """The first unit of a file whose record the log still has."""
    if sound:
        with _mapped(files, directory, base) as unit:
            most = max(min(unit.count, count), 0)

            def there(number: int) -> bool:
                offset, size = unit(number)
                return offset >= log_start and size != FILLER_SIZE

            first = first_where(0, most, there)
        return first if first < most else None
    done = 0
    for units in unit_runs(files, directory, base, 0, count):
        real = (units["offset"] >= log_start) & (units["size"] > 0) & (units["size"] != FILLER_SIZE)
        if real.any():
            return done + int(np.argmax(real))
        done += len(units)
    return None


class _UnitFile:
    """One queue file, unit by unit."""

    def __init__(self, buf: FileBytes) -> None:
        self._buf = buf
        self.count = len(buf) // UNIT.size

    def __call__(self, number: int) -> tuple[int, int]:
        offset, size, _ = UNIT.unpack_from(self._buf, number * UNIT.size)
        return offset, size


@contextmanager
def _mapped(files: StoreFiles, directory: str, base: int) -> Iterator[_UnitFile]:
    buf = files.map(segment_path(directory, base))
    try:
        yield _UnitFile(buf)
    finally:
        unmap(buf)


def unit_runs(
    files: StoreFiles, directory: str, base: int, start: int, stop: int
) -> Iterator[npt.NDArray[np.void]]:
    """Units `start` up to before `stop` of one file, in memory of their own: the file may go away at any time.

    Fewer when the file is shorter.
    """
    buf = files.map(segment_path(directory, base))
    try:
        stop = min(stop, len(buf) // UNIT.size)
        for first in range(start, stop, UNITS_AT_ONCE):
            count = min(UNITS_AT_ONCE, stop - first)
            yield np.frombuffer(buf, UNIT_DTYPE, count, first * UNIT.size).copy()
    finally:
        unmap(buf)


def first_where(low: int, high: int, test: Callable[[int], bool]) -> int:
    """The first number for which the test holds, if it holds for all behind it; `high` where there is none."""
    while low < high:
        middle = (low + high) // 2
        if test(middle):
            high = middle
        else:
            low = middle + 1
    return low


def first_stored_at(files: StoreFiles, view: StoreView, queue: StoreQueue, time_ms: int) -> int:
    """The first offset of a queue stored at a time or later; its end where there is none."""
    records = LogReader(files, view.log_file_bytes)
    late = {unit.number: unit.offset for unit in queue.late}

    def is_late(number: int) -> bool:
        record = records.record(late[number] if number in late else _log_offset(files, view, queue, number))
        return record is not None and record.store_ms >= time_ms

    return first_where(queue.first, queue.end, is_late)


def _log_offset(files: StoreFiles, view: StoreView, queue: StoreQueue, number: int) -> int:
    place = number * UNIT.size
    base = place - place % view.queue_file_bytes
    try:
        buf = files.shared_map(segment_path(queue_directory(queue.topic, queue.queue_id), base))
        offset: int = UNIT.unpack_from(buf, place - base)[0]
    except (OSError, StructError):
        return -1
    return offset
