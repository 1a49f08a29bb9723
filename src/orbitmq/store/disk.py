"""Every file operation of the store, in one class, so that tests can put a failing one in its place.

Nothing here decides anything: a call either does what it says or raises OSError (StoreLocked for the lock).
Offsets and sizes are bytes. Files are named by path, open files by descriptor.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import shutil
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from orbitmq.store import file_lock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

StrPath = str | os.PathLike[str]

_ZEROS = bytes(1 << 20)
_FALLOC_KEEP_SIZE = 1
_FALLOC_PUNCH_HOLE = 2
# Answers of a file system without the call: they mean "do it another way", not "broken".
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS}
_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


@functools.cache
def _libc_fallocate() -> Callable[[int, int, int, int], int] | None:
    """fallocate(2) itself: os.posix_fallocate cannot punch holes, and writes where it is not supported."""
    if not sys.platform.startswith("linux"):
        return None
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if call is None:
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    call.restype = ctypes.c_int
    return call  # type: ignore[no-any-return]


def _fallocate(fd: int, mode: int, offset: int, length: int) -> bool:
    """True when the file system did it, False when it cannot; a full disk and other failures raise."""
    call = _libc_fallocate()
    if call is None:
        return False
    while call(fd, mode, offset, length) != 0:
        code = ctypes.get_errno()
        if code == errno.EINTR:
            continue
        if code in _UNSUPPORTED:
            return False
        raise OSError(code, f"fallocate of {length} bytes at {offset}: {os.strerror(code)}")
    return True


class Disk:
    """The real disk."""

    def __init__(self) -> None:
        # Only platforms without pread and pwrite need it: there, position and transfer are two calls.
        self._seek_lock = threading.Lock()

    def open_rw(self, path: StrPath, create: bool = False, size: int | None = None) -> int:
        """Open for reading and writing. A new (or empty) file gets `size` bytes; others keep their length."""
        flags = os.O_RDWR | _BINARY | (os.O_CREAT if create else 0)
        fd = os.open(path, flags, 0o644)
        try:
            if size is not None and os.fstat(fd).st_size == 0:
                self.ftruncate(fd, size)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open_ro(self, path: StrPath) -> int:
        return os.open(path, os.O_RDONLY | _BINARY)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """`length` bytes at `offset`; fewer only at the end of the file."""
        data = self._pread_once(fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        have = len(data)
        while have < length:
            data = self._pread_once(fd, length - have, offset + have)
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def pwrite(self, fd: int, data: ReadableBuffer, offset: int) -> None:
        """Write all of `data` at `offset`, or raise; a raised write may have left its first bytes."""
        if type(data) is bytes:
            done = self._pwrite_once(fd, data, offset)
            if done == len(data):  # always, but at the end of the disk: no view has to be made
                return
        else:
            done = 0
        view = memoryview(data).cast("B")
        while done < len(view):
            written = self._pwrite_once(fd, view[done:], offset + done)
            if written == 0:
                raise OSError(errno.EIO, f"the write at {offset + done} made no progress")
            done += written

    def fdatasync(self, fd: int) -> None:
        """Data (and the length, if it changed) reach the device. Releases the GIL, unlike mmap.flush."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            os.fsync(fd)

    def sync_map(self, fd: int, mapped: mmap.mmap) -> None:
        """What was written through the map reaches the device."""
        if not sys.platform.startswith("linux"):
            # Only Linux promises that syncing the descriptor covers the pages of its maps.
            mapped.flush()
        self.fdatasync(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fallocate(self, fd: int, offset: int, length: int) -> bool:
        """Reserve blocks, growing the file if needed; False where the file system cannot. Full disk: ENOSPC.

        A write through a map to a hole of a full disk kills the process (SIGBUS); reserved blocks never do.
        """
        return _fallocate(fd, 0, offset, length)

    def zero_range(self, fd: int, offset: int, length: int) -> None:
        """Make these bytes read as zeros, without changing the file's length."""
        length = min(length, os.fstat(fd).st_size - offset)
        if length <= 0 or _fallocate(fd, _FALLOC_PUNCH_HOLE | _FALLOC_KEEP_SIZE, offset, length):
            return
        for start in range(offset, offset + length, len(_ZEROS)):
            self.pwrite(fd, memoryview(_ZEROS)[: min(len(_ZEROS), offset + length - start)], start)

    def data_end(self, fd: int) -> int:
        """End of the last stretch that holds data; behind it a sparse file is known to be zeros."""
        size = os.fstat(fd).st_size
        if not hasattr(os, "SEEK_DATA"):
            return size
        end = position = 0
        try:
            while position < size:
                start = os.lseek(fd, position, os.SEEK_DATA)
                end = position = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: no data from here on
                return size
        return end

    def map_ro(self, fd: int, size: int) -> mmap.mmap:
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)

    def map_rw(self, fd: int, size: int) -> mmap.mmap:
        return mmap.mmap(fd, size, access=mmap.ACCESS_WRITE)

    def makedirs(self, path: StrPath) -> None:
        os.makedirs(path, exist_ok=True)

    def listdir(self, path: StrPath) -> list[str]:
        """Sorted names; none for a directory that does not exist."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: StrPath) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: StrPath) -> bool:
        return os.path.isdir(path)

    def size(self, path: StrPath) -> int:
        return os.stat(path).st_size

    def mtime_ms(self, path: StrPath) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def unlink(self, path: StrPath) -> None:
        os.unlink(path)

    def rmdir(self, path: StrPath) -> None:
        os.rmdir(path)

    def rename(self, source: StrPath, target: StrPath) -> None:
        os.replace(source, target)

    def fsync_dir(self, path: StrPath) -> None:
        """Names created, renamed or removed in this directory survive a power cut afterwards."""
        if sys.platform == "win32":
            return
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_file(self, path: StrPath) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_file(self, path: StrPath, data: bytes, sync: bool = False) -> None:
        """Replace the content in place: for files whose loss in a crash does no harm."""
        fd = self.open_rw(path, create=True)
        try:
            self.pwrite(fd, data, 0)
            self.ftruncate(fd, len(data))
            if sync:
                self.fdatasync(fd)
        finally:
            self.close(fd)

    def write_atomic(self, path: StrPath, data: bytes, backup: bool = True) -> None:
        """Either the old content or the new one is under `path` after a crash; the old one also in `.bak`."""
        name = os.fspath(path)
        self.write_file(name + ".tmp", data, sync=True)
        if backup and self.exists(name):
            self.write_file(name + ".bak", self.read_file(name))
        self.rename(name + ".tmp", name)
        self.fsync_dir(os.path.dirname(name) or ".")

    def lock_file(self, path: StrPath) -> file_lock.FileLock:
        """Hold the store's lock until it is released; StoreLocked when another broker has it."""
        return file_lock.acquire(os.fspath(path))

    def disk_usage(self, path: StrPath) -> float:
        """Used share of the file system, of what a normal user can use: 0.0 to 1.0."""
        usage = shutil.disk_usage(path)
        available = usage.used + usage.free
        return usage.used / available if available else 1.0

    def _pread_once(self, fd: int, length: int, offset: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(fd, length, offset)
        with self._seek_lock:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, length)

    def _pwrite_once(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if hasattr(os, "pwrite"):
            return os.pwrite(fd, data, offset)
        with self._seek_lock:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.write(fd, data)


def raise_open_file_limit(wanted: int) -> int:
    """Lift the soft limit on open files (each queue needs one) towards `wanted`; returns the one in force."""
    try:
        import resource
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return target
    return wanted if soft == resource.RLIM_INFINITY else soft
