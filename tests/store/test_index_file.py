from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreDamaged, WrongFileSize
from orbitmq.store.faulty_disk import Fault, FaultyDisk
from orbitmq.store.index_file import HEADER_BYTES, RESERVE_BYTES, IndexFile, file_bytes

T0 = 1_700_000_000_000


def test_file_size_is_that_of_java() -> None:
    assert file_bytes(5_000_000, 20_000_000) == 420_000_040


def test_a_file_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    file = IndexFile.create(Disk(), str(tmp_path / "f"), 10, 20, 700, T0)
    assert (file.begin_ms, file.end_ms, file.begin_offset, file.end_offset) == (T0, T0, 700, 700)
    assert file.is_empty
    assert not file.overlaps(0, 1 << 62)
    file.put(5, 800, T0 + 2500)
    assert (file.begin_ms, file.end_ms, file.begin_offset, file.end_offset) == (
        T0 + 2500,
        T0 + 2500,
        800,
        800,
    )
    # As in Java, the first entry still counts its seconds from the file before.
    assert file.views[0]["seconds"][1] == 2
    file.close()
    file.close()


@pytest.mark.parametrize("after", [0, 1])
def test_a_full_disk_at_creation_leaves_no_file(tmp_path: Path, after: int) -> None:
    disk = FaultyDisk(Fault("fallocate", "f", after=after, error=errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        IndexFile.create(disk, str(tmp_path / "f"), 10, 20, 0, 0)
    assert disk.listdir(tmp_path) == []
    assert disk._paths == {}


def test_a_map_that_cannot_be_had_leaves_nothing_open(tmp_path: Path) -> None:
    disk = FaultyDisk(Fault("map_rw", "f", error=errno.ENOMEM))
    with pytest.raises(OSError, match="memory"):
        IndexFile.create(disk, str(tmp_path / "f"), 10, 20, 0, 0)
    assert disk.listdir(tmp_path) == []
    assert disk._paths == {}


def test_blocks_are_reserved_ahead_of_the_writer_and_not_for_every_row(tmp_path: Path) -> None:
    disk = FaultyDisk()
    entries = 4 * RESERVE_BYTES // 20
    file = IndexFile.create(disk, str(tmp_path / "f"), 1000, entries, 0, 0)
    rows = 1000
    for start in range(0, entries - 1 - rows, rows):
        column = np.arange(start, start + rows, dtype=np.int64)
        file.put_columns(column, column, column)
    assert 4 <= [op for op, _ in disk.calls].count("fallocate") <= 8
    file.close()


def test_a_wrong_size_and_an_impossible_header_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(100))
    with pytest.raises(WrongFileSize, match="has 100 bytes, but 480 are expected"):
        IndexFile(Disk(), str(path), 10, 20)
    content = bytearray(file_bytes(10, 20))
    content[36:40] = (21).to_bytes(4, "big")
    path.write_bytes(bytes(content))
    file = IndexFile(Disk(), str(path), 10, 20)
    with pytest.raises(StoreDamaged, match="counts 21 entries"):
        file.check_header()
    file.close()


def test_a_walk_ends_with_its_steps(tmp_path: Path) -> None:
    file = IndexFile.create(Disk(), str(tmp_path / "f"), 1, 100, 0, 0)
    for n in range(50):
        file.put(n % 2, n, T0 + n)
    found: dict[int, None] = {}
    assert file.select(1, 0, 1 << 62, found, 64, steps=10) == 0
    assert list(found) == [49, 47, 45, 43, 41]
    assert file.select(1, 0, 1 << 62, {}, 64, steps=1000) == 950
    file.close()


def test_a_garbage_slot_starts_a_new_chain(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for columns in (False, True):
        content = bytearray(file_bytes(4, 20))
        content[HEADER_BYTES : HEADER_BYTES + 8] = (99).to_bytes(4, "big") + (-5).to_bytes(
            4, "big", signed=True
        )
        path.write_bytes(bytes(content))
        file = IndexFile(Disk(), str(path), 4, 20)
        if columns:
            file.put_columns(np.array([0, 1]), np.array([10, 20]), np.array([T0, T0]))
        else:
            file.put(0, 10, T0)
            file.put(1, 20, T0)
        entries, slots = file.views
        assert entries["previous"][1:3].tolist() == [0, 0]
        assert slots.tolist() == [1, 2, 0, 0]
        assert file.used_slots == 2
        del entries, slots
        file.close()
