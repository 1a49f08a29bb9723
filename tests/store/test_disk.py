from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from orbitmq.store import disk as disk_module
from orbitmq.store.disk import Disk, raise_open_file_limit


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_a_new_file_gets_its_size_an_old_one_keeps_it(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(FileNotFoundError):
        disk.open_rw(path)
    disk.close(disk.open_rw(path, create=True, size=1000))
    assert disk.size(path) == 1000
    disk.close(disk.open_rw(path, create=True, size=2000))
    assert disk.size(path) == 1000


def test_reads_and_writes_at_offsets(disk: Disk, tmp_path: Path) -> None:
    fd = disk.open_rw(tmp_path / "a", create=True)
    disk.pwrite(fd, b"hello", 10)
    disk.pwrite(fd, memoryview(b"xxxx").cast("I"), 0)
    assert disk.pread(fd, 100, 0) == b"xxxx" + bytes(6) + b"hello"
    assert disk.pread(fd, 3, 10) == b"hel"
    assert disk.pread(fd, 3, 50) == b""
    disk.fdatasync(fd)
    disk.ftruncate(fd, 4)
    assert disk.pread(fd, 100, 0) == b"xxxx"
    disk.close(fd)


class Dribbling(Disk):
    """A system that takes and gives three bytes at a time."""

    def _pread_once(self, fd: int, length: int, offset: int) -> bytes:
        return super()._pread_once(fd, min(length, 3), offset)

    def _pwrite_once(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return super()._pwrite_once(fd, data[:3], offset)


class Stuck(Disk):
    def _pwrite_once(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return 0


def test_short_transfers_are_completed(tmp_path: Path) -> None:
    disk = Dribbling()
    fd = disk.open_rw(tmp_path / "a", create=True)
    disk.pwrite(fd, bytes(range(20)), 5)
    assert disk.pread(fd, 20, 5) == bytes(range(20))
    assert disk.pread(fd, 50, 20) == bytes(range(15, 20))
    with pytest.raises(OSError, match="no progress"):
        Stuck().pwrite(fd, b"abc", 0)
    disk.close(fd)


def test_without_pread_and_pwrite_it_seeks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    fd = disk.open_rw(tmp_path / "a", create=True)
    for name in ("pread", "pwrite", "fdatasync"):
        monkeypatch.delattr(os, name)
    disk.pwrite(fd, b"abc", 7)
    assert disk.pread(fd, 4, 6) == b"\0abc"
    disk.fdatasync(fd)
    disk.close(fd)


@pytest.mark.parametrize("with_fallocate", [True, False])
def test_zero_range_keeps_length_and_neighbours(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_fallocate: bool
) -> None:
    if not with_fallocate:
        monkeypatch.setattr(disk_module, "_libc_fallocate", lambda: None)
    fd = disk.open_rw(tmp_path / "a", create=True)
    size = (1 << 20) + 30_000
    disk.pwrite(fd, b"x" * size, 0)
    disk.zero_range(fd, 10, size - 20)
    assert disk.pread(fd, size + 1, 0) == b"x" * 10 + bytes(size - 20) + b"x" * 10
    disk.zero_range(fd, size - 10, 1000)
    disk.zero_range(fd, size + 10, 1000)
    assert disk.pread(fd, 100, size - 10) == bytes(10)
    disk.close(fd)


def test_fallocate_reserves_or_says_that_it_cannot(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = disk.open_rw(tmp_path / "a", create=True)
    if disk.fallocate(fd, 0, 1 << 16):
        assert os.fstat(fd).st_size == 1 << 16
        assert os.fstat(fd).st_blocks * 512 >= 1 << 16
    disk.close(fd)
    with pytest.raises(OSError, match="Bad file"):
        disk.fallocate(fd, 0, 10)
    monkeypatch.setattr(disk_module, "_libc_fallocate", lambda: None)
    assert disk.fallocate(fd, 0, 10) is False


def test_maps_show_the_file(disk: Disk, tmp_path: Path) -> None:
    fd = disk.open_rw(tmp_path / "a", create=True, size=8192)
    writable, readable = disk.map_rw(fd, 8192), disk.map_ro(fd, 8192)
    writable[100:103] = b"abc"
    disk.sync_map(fd, writable)
    assert readable[100:103] == b"abc" == disk.pread(fd, 3, 100)
    with pytest.raises(TypeError):
        readable[0] = 1
    writable.close()
    readable.close()
    disk.close(fd)


def test_names(disk: Disk, tmp_path: Path) -> None:
    disk.makedirs(tmp_path / "d" / "e")
    disk.makedirs(tmp_path / "d" / "e")
    assert disk.listdir(tmp_path / "absent") == []
    disk.write_file(tmp_path / "d" / "b", b"1")
    assert disk.listdir(tmp_path / "d") == ["b", "e"]
    assert disk.is_dir(tmp_path / "d" / "e")
    assert not disk.is_dir(tmp_path / "d" / "b")
    os.utime(tmp_path / "d" / "b", ns=(0, 1_700_000_000_123_000_000))
    assert disk.mtime_ms(tmp_path / "d" / "b") == 1_700_000_000_123
    disk.rename(tmp_path / "d" / "b", tmp_path / "d" / "c")
    disk.fsync_dir(tmp_path / "d")
    disk.unlink(tmp_path / "d" / "c")
    disk.rmdir(tmp_path / "d" / "e")
    assert disk.listdir(tmp_path / "d") == []
    assert disk.exists(tmp_path / "d")


def test_write_atomic_keeps_the_previous_content_beside(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    disk.write_atomic(path, b"one")
    assert disk.listdir(tmp_path) == ["topics.json"]
    disk.write_atomic(path, b"second")
    disk.write_atomic(path, b"3")
    assert disk.read_file(path) == b"3"
    assert disk.read_file(str(path) + ".bak") == b"second"
    assert disk.listdir(tmp_path) == ["topics.json", "topics.json.bak"]
    disk.write_atomic(path, b"4", backup=False)
    assert disk.read_file(str(path) + ".bak") == b"second"


def test_disk_usage_is_a_ratio(disk: Disk, tmp_path: Path) -> None:
    assert 0.0 < disk.disk_usage(tmp_path) <= 1.0


def test_the_limit_of_open_files_is_raised_as_far_as_allowed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        low = 256
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
        assert raise_open_file_limit(low - 1) == low
        assert raise_open_file_limit(low + 10) == low + 10
        reached = raise_open_file_limit(1 << 40)
        assert reached == (1 << 40 if hard == resource.RLIM_INFINITY else hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_data_end_is_behind_the_last_data(disk: Disk, tmp_path: Path) -> None:
    fd = disk.open_rw(tmp_path / "a", create=True, size=1 << 22)
    disk.pwrite(fd, b"abc", 1 << 20)
    assert (1 << 20) + 3 <= disk.data_end(fd) <= 1 << 22
    disk.close(fd)


def test_the_module_loads_where_posix_is_missing() -> None:
    code = (
        "import sys\n"
        "for name in ('fcntl', 'resource'): sys.modules[name] = None\n"
        "from orbitmq.store.disk import Disk, raise_open_file_limit\n"
        "assert raise_open_file_limit(7) == 7\n"
        "Disk()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, env=dict(os.environ))
    assert errno.ENOSPC
