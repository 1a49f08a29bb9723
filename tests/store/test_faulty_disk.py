from __future__ import annotations

import errno
from pathlib import Path

import pytest

from orbitmq.store.faulty_disk import Fault, FaultyDisk


def test_a_torn_write_leaves_its_first_bytes(tmp_path: Path) -> None:
    disk = FaultyDisk(Fault("pwrite", "log", after=1, keep_bytes=3))
    fd = disk.open_rw(tmp_path / "log", create=True)
    disk.pwrite(fd, b"whole", 0)
    with pytest.raises(OSError, match="Input/output error"):
        disk.pwrite(fd, b"torn!", 5)
    assert disk.pread(fd, 99, 0) == b"wholetor"
    disk.pwrite(fd, b"healed", 5)
    assert disk.pread(fd, 99, 0) == b"wholehealed"
    disk.close(fd)


def test_a_fault_strikes_its_path_and_operation_only(tmp_path: Path) -> None:
    disk = FaultyDisk(Fault("fdatasync", "commitlog", error=errno.EIO, times=2))
    other = disk.open_rw(tmp_path / "queue", create=True)
    log = disk.open_rw(tmp_path / "commitlog", create=True)
    disk.fdatasync(other)
    disk.pwrite(log, b"x", 0)
    for _ in range(2):
        with pytest.raises(OSError, match="commitlog"):
            disk.fdatasync(log)
    disk.fdatasync(log)
    disk.close(other)
    disk.close(log)


@pytest.mark.parametrize(
    "op", ["open_rw", "open_ro", "ftruncate", "fallocate", "zero_range", "map_ro", "map_rw", "pread"]
)
def test_every_operation_on_an_open_file_can_fail(tmp_path: Path, op: str) -> None:
    disk = FaultyDisk()
    path = tmp_path / "file"
    disk.write_file(path, bytes(100))
    fd = disk.open_rw(path)
    disk.inject(Fault(op, "file", error=errno.ENOSPC))
    arguments = {
        "open_rw": (path,),
        "open_ro": (path,),
        "ftruncate": (fd, 5),
        "map_ro": (fd, 100),
        "map_rw": (fd, 100),
    }.get(op, (fd, 5, 5))
    with pytest.raises(OSError, match="No space left"):
        getattr(disk, op)(*arguments)
    assert (op, str(path)) in disk.calls
    disk.close(fd)


def test_an_atomic_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    for op in ("pwrite", "fdatasync", "rename"):
        disk = FaultyDisk()
        disk.write_atomic(path, b"old")
        disk.inject(Fault(op, "topics.json", error=errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            disk.write_atomic(path, b"new")
        assert disk.read_file(path) == b"old"


def test_a_full_disk_at_creation_closes_the_file(tmp_path: Path) -> None:
    disk = FaultyDisk(Fault("ftruncate", "file", error=errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        disk.open_rw(tmp_path / "file", create=True, size=100)
    assert disk._paths == {}
    for op in ("unlink", "fsync_dir", "read_file"):
        disk.inject(Fault(op, str(tmp_path)))
        with pytest.raises(OSError, match="Input/output error"):
            getattr(disk, op)(tmp_path)
