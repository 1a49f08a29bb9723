"""A disk that fails on demand: the tests' way to torn writes, I/O errors and a full device."""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orbitmq.store.disk import Disk, StrPath

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@dataclass
class Fault:
    """Fail `op` (a method name of Disk) on paths containing `path`, after `after` calls went well.

    A pwrite fault first writes `keep_bytes` of its data: a torn write. It strikes `times` times, then heals.
    """

    op: str
    path: str = ""
    after: int = 0
    error: int = errno.EIO
    keep_bytes: int = 0
    times: int = 1

    def strikes(self) -> bool:
        if self.after > 0:
            self.after -= 1
            return False
        if self.times <= 0:
            return False
        self.times -= 1
        return True


class FaultyDisk(Disk):
    """The real disk with faults; `calls` records every (operation, path) that could have failed."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__()
        self.faults: list[Fault] = list(faults)
        self.calls: list[tuple[str, str]] = []
        self._paths: dict[int, str] = {}

    def inject(self, fault: Fault) -> None:
        self.faults.append(fault)

    def _check(self, op: str, path: str) -> None:
        fault = self._struck(op, path)
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), path)

    def _struck(self, op: str, path: str) -> Fault | None:
        self.calls.append((op, path))
        for fault in self.faults:
            if fault.op == op and fault.path in path and fault.strikes():
                return fault
        return None

    def _path(self, fd: int) -> str:
        return self._paths.get(fd, f"<fd {fd}>")

    def open_rw(self, path: StrPath, create: bool = False, size: int | None = None) -> int:
        self._check("open_rw", os.fspath(path))
        # The length is set below, by our own ftruncate, which needs the path of the descriptor to fail on it.
        fd = super().open_rw(path, create)
        self._paths[fd] = os.fspath(path)
        try:
            if size is not None and os.fstat(fd).st_size == 0:
                self.ftruncate(fd, size)
        except OSError:
            self.close(fd)
            raise
        return fd

    def open_ro(self, path: StrPath) -> int:
        self._check("open_ro", os.fspath(path))
        fd = super().open_ro(path)
        self._paths[fd] = os.fspath(path)
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        super().close(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._check("pread", self._path(fd))
        return super().pread(fd, length, offset)

    def pwrite(self, fd: int, data: ReadableBuffer, offset: int) -> None:
        path = self._path(fd)
        fault = self._struck("pwrite", path)
        if fault is None:
            super().pwrite(fd, data, offset)
            return
        kept = memoryview(data).cast("B")[: fault.keep_bytes]
        if len(kept):
            super().pwrite(fd, kept, offset)
        raise OSError(fault.error, os.strerror(fault.error), path)

    def fdatasync(self, fd: int) -> None:
        self._check("fdatasync", self._path(fd))
        super().fdatasync(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        self._check("ftruncate", self._path(fd))
        super().ftruncate(fd, size)

    def fallocate(self, fd: int, offset: int, length: int) -> bool:
        self._check("fallocate", self._path(fd))
        return super().fallocate(fd, offset, length)

    def zero_range(self, fd: int, offset: int, length: int) -> None:
        self._check("zero_range", self._path(fd))
        super().zero_range(fd, offset, length)

    def map_ro(self, fd: int, size: int) -> mmap.mmap:
        self._check("map_ro", self._path(fd))
        return super().map_ro(fd, size)

    def map_rw(self, fd: int, size: int) -> mmap.mmap:
        self._check("map_rw", self._path(fd))
        return super().map_rw(fd, size)

    def unlink(self, path: StrPath) -> None:
        self._check("unlink", os.fspath(path))
        super().unlink(path)

    def rename(self, source: StrPath, target: StrPath) -> None:
        self._check("rename", os.fspath(target))
        super().rename(source, target)

    def fsync_dir(self, path: StrPath) -> None:
        self._check("fsync_dir", os.fspath(path))
        super().fsync_dir(path)

    def read_file(self, path: StrPath) -> bytes:
        self._check("read_file", os.fspath(path))
        return super().read_file(path)
