from __future__ import annotations

from pathlib import Path

import pytest

from orbitmq.store.checkpoint import PAGE_BYTES, Checkpoint
from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreDamaged

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def test_the_page_of_java_is_read() -> None:
    checkpoint = Checkpoint.load(Disk(), GOLDEN / "store" / "checkpoint")
    assert checkpoint == Checkpoint(1794773272035, 1794773272035, 1794773244012)


def test_saved_times_come_back_and_the_file_is_one_page(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "checkpoint"
    assert Checkpoint.load(disk, path) == Checkpoint()
    Checkpoint(1, 2, 3).save(disk, path)
    assert path.stat().st_size == PAGE_BYTES
    assert Checkpoint.load(disk, path) == Checkpoint(1, 2, 3)


def test_saving_keeps_what_other_versions_wrote_behind(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(24) + b"masterFlushedOffset" + bytes(PAGE_BYTES - 43))
    Checkpoint(1, 2, 3).save(Disk(), path)
    assert path.read_bytes()[24:43] == b"masterFlushedOffset"


def test_a_golden_page_saved_again_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint.load(Disk(), GOLDEN / "store" / "checkpoint").save(Disk(), path)
    assert path.read_bytes() == (GOLDEN / "store" / "checkpoint").read_bytes()


def test_an_empty_file_means_scan_everything_a_short_one_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"")
    assert Checkpoint.load(Disk(), path) == Checkpoint()
    path.write_bytes(b"123")
    with pytest.raises(StoreDamaged, match="delete the file"):
        Checkpoint.load(Disk(), path)


def test_the_safe_time_backs_off_by_three_seconds() -> None:
    checkpoint = Checkpoint(10_000, 9_000, 5_000)
    assert checkpoint.safe_ms() == 6_000
    assert checkpoint.safe_ms(with_index=True) == 5_000
    assert Checkpoint(10, 10, 10).safe_ms() == 0
