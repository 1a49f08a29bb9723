"""The store's `lock` file: one broker per store directory, whether Java or ours.

Java's FileChannel.tryLock(0, 1) is a POSIX record lock on byte 0. An open-file-description lock on the same
byte excludes it and, unlike the POSIX kind, also excludes a second broker within this process and is not lost
when some other descriptor of the file is closed. Such locks do not tell their owner: ours writes a pid file.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

from orbitmq.store.errors import StoreLocked

_CONTENT = b"lock"
_BUSY = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}
# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid, padded to its C size.
_FLOCK = struct.Struct("hhqqi4x")


class FileLock:
    """A held lock."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def release(self) -> None:
        """Give the directory free; calling it again does nothing."""
        if self._fd < 0:
            return
        try:
            os.unlink(_pid_path(self.path))
        except FileNotFoundError:
            # Someone tidied the directory; the pid is only a hint for error messages.
            self._close()
            return
        self._close()

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1


def acquire(path: str) -> FileLock:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    fd = os.open(path, flags, 0o644)
    try:
        try:
            _lock_byte_0(fd)
        except OSError as error:
            if error.errno not in _BUSY:
                raise
            raise StoreLocked(os.path.dirname(os.path.abspath(path)), _holder(fd, path)) from error
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, _CONTENT)
        os.ftruncate(fd, len(_CONTENT))
        with open(_pid_path(path), "w", encoding="ascii") as file:
            file.write(str(os.getpid()))
    except BaseException:
        os.close(fd)
        raise
    return FileLock(path, fd)


def is_held(path: str) -> bool:
    """Whether a broker holds the lock now. Looks only: nothing is created or taken; False where it cannot be told."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        if not sys.platform.startswith("linux"):
            return False
        import fcntl

        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        found: bytes = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, wanted)
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(fd)


def _pid_path(path: str) -> str:
    return path + ".pid"


def _lock_byte_0(fd: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        return
    import fcntl

    set_lock = getattr(fcntl, "F_OFD_SETLK", None)
    if set_lock is None:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        return
    fcntl.fcntl(fd, set_lock, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))


def _holder(fd: int, path: str) -> int | None:
    """The pid behind a refused lock: the system knows it for POSIX locks (Java), the pid file for ours."""
    if sys.platform.startswith("linux"):
        import fcntl

        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        pid = int(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, wanted))[4])
        if pid > 0:
            return pid
    try:
        with open(_pid_path(path), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
