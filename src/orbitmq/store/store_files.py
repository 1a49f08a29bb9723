"""A store directory opened for looking only: its files by name and as maps, nothing created or changed."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator

from orbitmq.store.disk import Disk
from orbitmq.store.log_scan import FileBytes, ScannedRecord, read_record

COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"
INDEX = "index"
SEGMENT_NAME_DIGITS = 20
INDEX_NAME_DIGITS = 17

# Enough to walk any store without remapping all the time, and far from the limit on open files.
_OPEN_MAPS = 128


class StoreFiles:
    """Paths are relative to the root, with "/" between their parts. Close it: it holds maps."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root
        self._maps: OrderedDict[str, FileBytes] = OrderedDict()

    def path(self, relative: str) -> str:
        return os.path.join(self.root, *relative.split("/"))

    def exists(self, relative: str) -> bool:
        return self.disk.exists(self.path(relative))

    def size(self, relative: str) -> int:
        return self.disk.size(self.path(relative))

    def read(self, relative: str) -> bytes:
        return self.disk.read_file(self.path(relative))

    def names(self, relative: str, digits: int) -> list[str]:
        """Names made of so many digits, in order: the files of a series."""
        names = self.disk.listdir(self.path(relative))
        return [name for name in names if len(name) == digits and name.isdigit()]

    def bases(self, relative: str) -> list[int]:
        return [int(name) for name in self.names(relative, SEGMENT_NAME_DIGITS)]

    def queue_directories(self) -> Iterator[tuple[str, int]]:
        """(topic, queue id) of every queue that has a directory."""
        for topic in self.disk.listdir(self.path(CONSUME_QUEUE)):
            ids = self.disk.listdir(os.path.join(self.path(CONSUME_QUEUE), topic))
            for queue_id in sorted(int(name) for name in ids if name.isdigit()):
                yield topic, queue_id

    def map(self, relative: str) -> FileBytes:
        """A new map of the whole file; the caller closes it with `unmap`."""
        path = self.path(relative)
        fd = self.disk.open_ro(path)
        try:
            size = self.disk.size(path)
            return self.disk.map_ro(fd, size) if size else b""
        finally:
            self.disk.close(fd)

    def shared_map(self, relative: str) -> FileBytes:
        """A map for a short look; it is only sure to be open until the next call."""
        buf = self._maps.get(relative)
        if buf is None:
            while len(self._maps) >= _OPEN_MAPS:
                unmap(self._maps.popitem(last=False)[1])
            buf = self._maps[relative] = self.map(relative)
        else:
            self._maps.move_to_end(relative)
        return buf

    def close(self) -> None:
        while self._maps:
            unmap(self._maps.popitem()[1])


def unmap(buf: FileBytes) -> None:
    if not isinstance(buf, bytes):
        buf.close()


def segment_path(directory: str, base: int) -> str:
    return f"{directory}/{base:020d}"


class LogReader:
    """Single records of the log, by offset."""

    def __init__(self, files: StoreFiles, file_bytes: int) -> None:
        self._files = files
        self._file_bytes = file_bytes
        self._bases = set(files.bases(COMMIT_LOG))

    def record(self, offset: int, check_crc: bool = False) -> ScannedRecord | None:
        """The record that begins at this offset, or None."""
        base = offset - offset % self._file_bytes
        if base not in self._bases:
            return None
        buf = self._files.shared_map(segment_path(COMMIT_LOG, base))
        return read_record(buf, base, offset - base, check_crc)
