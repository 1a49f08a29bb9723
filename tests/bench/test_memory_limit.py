"""The limit is written where the kernel looks for it, in either version of control groups, and taken back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.memory_limit import fill_memory, memory_limit


class Groups(type(Path())):  # type: ignore[misc]
    """Control groups as the kernel shows them: a new directory has its files at once, and goes with them."""

    def mkdir(self, *args: object, **options: object) -> None:
        super().mkdir()
        for name in ("memory.max", "memory.limit_in_bytes", "cgroup.procs"):
            (self / name).write_text("")

    def rmdir(self) -> None:
        for path in self.iterdir():
            path.unlink()
        super().rmdir()


@pytest.mark.parametrize("version", [1, 2])
def test_the_process_is_in_a_group_with_the_limit(tmp_path: Path, version: int) -> None:
    root = Groups(tmp_path)
    base = root / "memory" if version == 1 else root
    if version == 1:
        Path(base).mkdir()
    with memory_limit(4, root):
        (group,) = (
            path for path in base.iterdir() if path.is_dir() and path.name.startswith("orbitmq-bench")
        )
        limit = "memory.limit_in_bytes" if version == 1 else "memory.max"
        assert (group / limit).read_text() == str(4 << 30)
        assert (group / "cgroup.procs").read_text() == str(os.getpid())
    assert (base / "cgroup.procs").read_text() == str(os.getpid())
    assert not group.exists()


def test_a_directory_that_is_no_control_group_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(SystemExit, match=r"the memory cannot be limited: .*without --memory"),
        memory_limit(4, tmp_path),
    ):
        pass
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_no_limit_touches_nothing(tmp_path: Path) -> None:
    with memory_limit(0, tmp_path):
        assert not list(tmp_path.iterdir())


def test_the_memory_is_filled_with_a_file_that_stays(tmp_path: Path) -> None:
    fill_memory(3 << 20, tmp_path)
    (cached,) = tmp_path.iterdir()
    assert cached.stat().st_size == 3 << 20
    cached.unlink()
    fill_memory(0, tmp_path)
    assert (tmp_path / "cached").stat().st_size == 0
