"""Entries of an index file, put by the accelerator, in columns, and one by one: the same file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.store import index_file
from orbitmq.store.index_file import HEADER_BYTES, IndexFile, file_bytes
from tests.support.send_sides import HastyDisk

if accel.put_index is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

T0 = 1_700_000_000_000
ENTRIES = 120

Row = tuple[int, int, int]
hashes = st.integers(0, 40) | st.integers(0, (1 << 31) - 1)
times = st.sampled_from([T0, T0 + 1, T0 + 999, T0 + 1000, T0 + 61_500, T0 - 5000, 0, 1, 1 << 45])
rows = st.tuples(hashes, st.integers(0, 1 << 50), times)
slices = st.lists(st.lists(rows, min_size=1, max_size=30), min_size=1, max_size=4)
slot_noise = st.lists(
    st.sampled_from([0, 0, 0, 1, 5, ENTRIES, -1, -(1 << 31), (1 << 31) - 1]), min_size=9, max_size=9
)


def columns(part: list[Row]) -> tuple[npt.NDArray[np.int64], ...]:
    return tuple(np.array(column, dtype=np.int64) for column in zip(*part, strict=True))


@settings(max_examples=150, deadline=None)
@given(
    slots=st.sampled_from([1, 3, 9]),
    parts=slices,
    noise=slot_noise,
    before=st.sampled_from([(0, 0), (700, T0 - 2500), (700, T0 + 2500)]),
)
def test_three_ways_one_file(
    slots: int, parts: list[list[Row]], noise: list[int], before: tuple[int, int]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        built = index_file.put_index
        content = []
        for way in ("accelerated", "columns", "rows"):
            path = Path(root, way)
            file = IndexFile.create(HastyDisk(), str(path), slots, ENTRIES + 1, *before)
            file.views[1][:] = noise[:slots]  # a slot may hold anything after a crash
            index_file.put_index = built if way == "accelerated" else None
            try:
                for part in parts:
                    if way == "rows":
                        for row in part:
                            file.put(*row)
                    else:
                        hash_column, offset_column, ms_column = columns(part)
                        file.put_columns(hash_column, offset_column, ms_column)
            finally:
                index_file.put_index = built
            file.close()
            content.append(path.read_bytes())
        assert content[0] == content[1]
        assert content[0] == content[2]


@pytest.mark.parametrize(
    ("entries_at", "slots", "count", "column_bytes"),
    [
        (HEADER_BYTES + 39, 10, 1, (8, 8, 8)),  # the entries would lie in the slots
        (HEADER_BYTES + 40, 11, 1, (8, 8, 8)),
        (HEADER_BYTES + 40, 10, 0, (8, 8, 8)),  # entry 0 is never used
        (HEADER_BYTES + 40, 10, 20, (8, 8, 8)),  # behind the last
        (HEADER_BYTES + 40, 10, 19, (16, 16, 16)),
        (HEADER_BYTES + 40, 10, 1, (8, 8, 16)),
        (HEADER_BYTES + 40, 10, 1, (8, 0, 8)),
        (HEADER_BYTES + 40, 10, 1, (9, 9, 9)),
        (HEADER_BYTES + 40, 0, 1, (8, 8, 8)),
        (1 << 62, 10, 1, (8, 8, 8)),
        (HEADER_BYTES + 40, 1 << 61, 1, (8, 8, 8)),
        (HEADER_BYTES + 40, 10, (1 << 63) - 1, (8, 8, 8)),
        (HEADER_BYTES + 40, -10, 1, (8, 8, 8)),
    ],
)
def test_what_does_not_fit_changes_nothing(
    entries_at: int, slots: int, count: int, column_bytes: tuple[int, int, int]
) -> None:
    assert accel.put_index is not None
    area = bytearray(file_bytes(10, 20))
    with pytest.raises(ValueError, match="do not fit"):
        accel.put_index(area, entries_at, slots, count, T0, *map(bytes, column_bytes))
    assert not any(area)


@pytest.mark.parametrize("wrong", [-1, 1 << 31, -(1 << 63)])
def test_a_hash_that_is_none_changes_nothing(wrong: int) -> None:
    assert accel.put_index is not None
    area = bytearray(file_bytes(10, 20))
    good = np.array([3, 4], dtype=np.int64)
    with pytest.raises(ValueError, match="do not fit"):
        accel.put_index(area, HEADER_BYTES + 40, 10, 1, T0, np.array([3, wrong]), good, good)
    assert not any(area)


def test_columns_need_not_be_aligned() -> None:
    assert accel.put_index is not None
    area, other = bytearray(file_bytes(10, 20)), bytearray(file_bytes(10, 20))
    column = np.array([7, 17, 5], dtype=np.int64).tobytes()
    shifted = memoryview(b"x" + column)[1:]
    assert accel.put_index(area, HEADER_BYTES + 40, 10, 1, 1, *[shifted] * 3) == 2
    assert accel.put_index(other, HEADER_BYTES + 40, 10, 1, 1, *[column] * 3) == 2
    assert area == other
    with pytest.raises(TypeError):
        accel.put_index(bytes(area), HEADER_BYTES + 40, 10, 1, 1, *[column] * 3)
