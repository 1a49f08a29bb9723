from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.store.disk import Disk
from orbitmq.store.index_check import IndexView, detect_shape, structure_problem
from orbitmq.store.index_file import HEADER_BYTES, IndexFile

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "store" / "index"
T0 = 1_700_000_000_000
SLOTS, ENTRIES = 20, 60


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("index") / "f"
    file = IndexFile.create(Disk(), str(path), SLOTS, ENTRIES, 0, 0)
    for n in range(40):
        file.put(n * 37, 1000 + n * 100, T0 + n * 1000)
    file.close()
    return path.read_bytes()


def test_java_files_are_whole_and_show_their_shape() -> None:
    for path in GOLDEN.iterdir():
        content = path.read_bytes()
        assert detect_shape(content) == (500, 400)
        assert structure_problem(IndexView(content, 500, 400)) is None


@settings(max_examples=300)
@given(data=st.data())
def test_any_changed_byte_but_a_time_shows(sound: bytes, data: st.DataObject) -> None:
    entries_at = HEADER_BYTES + SLOTS * 4
    at = data.draw(
        st.one_of(
            st.integers(16, 39), st.integers(HEADER_BYTES, entries_at - 1), st.integers(20, 20 * 40 - 1)
        )
    )
    if at >= entries_at or (at >= 40 and data.draw(st.booleans())):
        at = entries_at + 20 + at % (39 * 20)
        if 12 <= (at - entries_at) % 20 < 16:
            return
    changed = bytearray(sound)
    changed[at] ^= data.draw(st.integers(1, 255))
    problem = structure_problem(IndexView(bytes(changed), SLOTS, ENTRIES))
    # A changed hash may fall into the same slot, and a changed offset stay in order: the log tells those.
    in_entry = (at - entries_at) % 20 if at >= entries_at else None
    assert problem is not None or (in_entry is not None and in_entry < 12)


def test_zeroed_pages_show(sound: bytes) -> None:
    for start in range(HEADER_BYTES, HEADER_BYTES + SLOTS * 4 + 40 * 20, 64):
        torn = sound[:start] + bytes(64) + sound[start + 64 :]
        assert structure_problem(IndexView(torn, SLOTS, ENTRIES)) is not None


def test_an_old_header_over_new_pages_shows(sound: bytes) -> None:
    old = bytearray(sound)
    struct.pack_into(">qqqqii", old, 0, T0, T0 + 29_000, 1000, 3900, 20, 31)
    assert structure_problem(IndexView(bytes(old), SLOTS, ENTRIES)) is not None


def test_the_shape_of_an_empty_file_is_the_usual_one(sound: bytes) -> None:
    assert detect_shape(sound) == (SLOTS, ENTRIES)
    assert detect_shape(bytes(40 + 10 * 4 + 40 * 20)) == (10, 40)
    assert detect_shape(bytes(50)) is None
    assert detect_shape(b"") is None


@settings(max_examples=200)
@given(st.binary(max_size=300), st.binary(max_size=40))
def test_any_bytes_have_a_shape_or_none(noise: bytes, header: bytes) -> None:
    detect_shape(noise)
    detect_shape(header.ljust(40, b"\0") + noise)
