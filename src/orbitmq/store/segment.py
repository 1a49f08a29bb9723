"""A row of equally long files that together hold one long run of bytes, named by their first offset."""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections import OrderedDict
from itertools import pairwise

from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreError

NAME_DIGITS = 20


def segment_name(offset: int) -> str:
    return f"{offset:0{NAME_DIGITS}d}"


class DescriptorCache:
    """Open files of the many small series (one per queue): ten thousand topics do not need as many descriptors."""

    def __init__(self, disk: Disk, limit: int = 4096) -> None:
        self._disk = disk
        self._limit = limit
        self._open: OrderedDict[str, int] = OrderedDict()

    def get(self, path: str) -> int:
        fd = self._open.get(path)
        if fd is None:
            fd = self._disk.open_rw(path)
            self._open[path] = fd
            if len(self._open) > self._limit:
                _, oldest = self._open.popitem(last=False)
                self._disk.close(oldest)
        else:
            self._open.move_to_end(path)
        return fd

    def forget(self, path: str) -> None:
        fd = self._open.pop(path, None)
        if fd is not None:
            self._disk.close(fd)

    def close(self) -> None:
        while self._open:
            _, fd = self._open.popitem()
            self._disk.close(fd)


class SegmentSeries:
    """The files of one directory. Reads and writes never cross a file border: the caller's records do not either."""

    __slots__ = ("_cache", "_disk", "bases", "directory", "maps", "segment_bytes")

    def __init__(self, disk: Disk, directory: str, segment_bytes: int, cache: DescriptorCache) -> None:
        self._disk = disk
        self._cache = cache
        self.maps: dict[int, mmap.mmap] = {}
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.bases: list[int] = []

    def load(self) -> None:
        """Takes the files found. One of another length than configured would make every offset wrong: refused."""
        names = [n for n in self._disk.listdir(self.directory) if len(n) == NAME_DIGITS and n.isdigit()]
        bases = []
        for name in names:
            path = os.path.join(self.directory, name)
            size = self._disk.size(path)
            if size == 0 and name == names[-1]:
                self._disk.unlink(path)  # created just before a crash, never sized
                continue
            if size != self.segment_bytes:
                raise StoreError(
                    f"{path} is {size} bytes long, expected {self.segment_bytes}: it was truncated, or the store was "
                    "written with another file size; set mappedFileSizeCommitLog / mappedFileSizeConsumeQueue to the "
                    "size it was written with, or restore the file from a copy"
                )
            bases.append(int(name))
        for before, base in pairwise(bases):
            if base != before + self.segment_bytes:
                raise StoreError(
                    f"{self.directory}: after file {segment_name(before)} comes {segment_name(base)}, the file(s) "
                    "between them are missing; restore them from a copy"
                )
        if bases and bases[0] % self.segment_bytes:
            raise StoreError(
                f"{self.directory}: {segment_name(bases[0])} is no multiple of {self.segment_bytes}"
            )
        self.bases = bases

    @property
    def start(self) -> int:
        return self.bases[0] if self.bases else 0

    @property
    def end(self) -> int:
        return self.bases[-1] + self.segment_bytes if self.bases else 0

    def path(self, base: int) -> str:
        return os.path.join(self.directory, segment_name(base))

    def fd(self, base: int) -> int:
        return self._cache.get(self.path(base))

    def create(self, base: int, sync_directory: bool = False) -> None:
        if base in self.bases:
            return
        if not self.bases:
            self._disk.makedirs(self.directory)
        path = self.path(base)
        self._disk.close(self._disk.open_rw(path, create=True, size=self.segment_bytes))
        if sync_directory:
            self._disk.fsync_dir(self.directory)
        self.bases.append(base)
        self.bases.sort()

    def base_of(self, offset: int) -> int | None:
        """First offset of the file that holds `offset`, or None when there is none."""
        if not self.bases:
            return None
        base = offset - offset % self.segment_bytes
        return base if self.bases[0] <= base <= self.bases[-1] else None

    def write(self, offset: int, data: bytes) -> None:
        """`data` may cross file borders (a run of fixed-size units); missing files are made."""
        size = self.segment_bytes
        position = 0
        while position < len(data):
            base = offset - offset % size
            room = base + size - offset
            piece = data if position == 0 and len(data) <= room else data[position : position + room]
            if not self.bases or base > self.bases[-1] or base < self.bases[0]:
                self.create(base)
            self._disk.pwrite(self.fd(base), piece, offset - base)
            position += len(piece)
            offset += len(piece)

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`, not past the end of the file that holds it; empty when it is not there."""
        base = self.base_of(offset)
        if base is None:
            return b""
        length = min(length, base + self.segment_bytes - offset)
        return self._disk.pread(self.fd(base), length, offset - base)

    def filled_bytes(self, base: int) -> int:
        """Length of a file without the zeros at its end."""
        fd = self.fd(base)
        end = self.data_end(base)
        while end > 0:
            start = max(0, end - 65536)
            filled = len(self._disk.pread(fd, end - start, start).rstrip(b"\0"))
            if filled:
                return start + filled
            end = start
        return 0

    def data_end(self, base: int) -> int:
        """Behind this position of a file nothing was ever written."""
        return min(self._disk.data_end(self.fd(base)), self.segment_bytes)

    def map(self, base: int) -> mmap.mmap:
        """The whole file, read-only. Kept until the file goes: pulls slice it directly."""
        mapped = self.maps.get(base)
        if mapped is None:
            mapped = self._disk.map_ro(self.fd(base), self.segment_bytes)
            self.maps[base] = mapped
        return mapped

    def last_modified_ms(self, base: int) -> int:
        return self._disk.mtime_ms(self.path(base))

    def remove(self, base: int) -> None:
        self._disk.unlink(self.release(base))

    def release(self, base: int) -> str:
        """Forgets a file; the caller deletes it by the name returned."""
        mapped = self.maps.pop(base, None)
        if mapped is not None:
            mapped.close()
        path = self.path(base)
        self._cache.forget(path)
        self.bases.remove(base)
        return path

    def wipe(self, start: int, end: int) -> None:
        """These bytes read as zero afterwards; the files stay."""
        for base in self.bases:
            first, last = max(start, base), min(end, base + self.segment_bytes)
            if first < last:
                self._disk.zero_range(self.fd(base), first - base, last - first)

    def truncate_from(self, offset: int) -> None:
        """Everything from `offset` on reads as zero afterwards; files that start past it are deleted.

        Stale bytes behind the end would look like messages to the recovery of the next crash. The last file goes
        first: one that dies in between leaves no hole.
        """
        for base in [b for b in reversed(self.bases) if b >= offset and b != self.bases[0]]:
            self.remove(base)
        index = bisect_right(self.bases, offset) - 1
        if index >= 0:
            self.wipe(offset, self.bases[index] + self.segment_bytes)

    def destroy(self) -> None:
        for base in list(self.bases):
            self.remove(base)

    def close(self) -> None:
        for mapped in self.maps.values():
            mapped.close()
        self.maps.clear()


def written_end(disk: Disk, directory: str, segment_bytes: int) -> int:
    """Where the bytes of a closed series end, without looking at what they mean."""
    cache = DescriptorCache(disk)
    series = SegmentSeries(disk, directory, segment_bytes, cache)
    try:
        if not disk.exists(directory):
            return 0
        series.load()
        for base in reversed(series.bases):
            if filled := series.filled_bytes(base):
                return base + filled
        return 0
    finally:
        series.close()
        cache.close()
