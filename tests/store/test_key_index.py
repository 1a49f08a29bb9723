from __future__ import annotations

import errno
import glob
import hashlib
import itertools
import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq.store.disk import Disk
from orbitmq.store.errors import WrongFileSize
from orbitmq.store.faulty_disk import Fault, FaultyDisk
from orbitmq.store.index_file import ENTRY_BYTES, HEADER_BYTES
from orbitmq.store.key_index import IndexService, Row
from orbitmq.wire.message import Message, decode_records
from orbitmq.wire.properties import Prop

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
T0 = 1_700_000_000_000


class Ticking:
    def __init__(self, now_ms: int = T0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def golden_messages() -> list[Message]:
    messages = []
    for path in sorted(glob.glob(str(GOLDEN / "store" / "commitlog" / "*"))):
        data = Path(path).read_bytes()
        at = 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic != 0xDAA320A7:
                break
            messages += decode_records(data[at : at + size])
            at += size
    return messages


def rows_of(message: Message) -> list[Row]:
    keys = [message.properties.get(Prop.UNIQ_KEY), *message.key_list]
    prefix = message.topic.encode() + b"#"
    return [(prefix, key.encode(), message.physical_offset, message.store_ms) for key in keys if key]


def contents(index: IndexService) -> list[bytes]:
    return [Path(path).read_bytes() for path in index.paths]


@pytest.mark.parametrize("slice_rows", [1, 31, 32, 257, 5000])
def test_rebuilt_from_the_golden_log_the_files_are_those_of_java(tmp_path: Path, slice_rows: int) -> None:
    rows = [row for message in golden_messages() for row in rows_of(message)]
    index = IndexService(Disk(), tmp_path / "index", Ticking(), slots=500, entries=400)
    assert index.load() == 0
    for start in range(0, len(rows), slice_rows):
        index.add_rows(rows[start : start + slice_rows])
    index.flush()
    expected = [Path(path).read_bytes() for path in sorted(glob.glob(str(GOLDEN / "store/index/*")))]
    assert [hashlib.sha256(data).hexdigest() for data in contents(index)] == [
        hashlib.sha256(data).hexdigest() for data in expected
    ]
    index.close()


def test_golden_look_ups(tmp_path: Path) -> None:
    manifest = json.loads((GOLDEN / "manifest.json").read_text())
    shutil.copytree(GOLDEN / "store" / "index", tmp_path / "index")
    for path in (tmp_path / "index").iterdir():
        path.chmod(0o644)
    index = IndexService(Disk(), tmp_path / "index", Ticking(), slots=500, entries=400)
    assert index.load() == 2153750
    assert index.last() == (1794773272035, 2153750)
    for lookup in manifest["keyLookups"]:
        offsets = index.query(lookup["topic"], lookup["key"], 0, 1 << 62, 1000)
        assert offsets == sorted(offsets, reverse=True)
        for offset_id in lookup["offsetMsgIds"]:
            assert int(offset_id[16:], 16) in offsets
    index.close()


prefix_texts = st.sampled_from(["T#", "TopicA#", "%RETRY%g#", "话题#"])
key_texts = st.one_of(
    st.sampled_from(["k1", "k2", "order-1", "AaAa", "BBBB", "订单5", ""]),
    st.text(st.characters(min_codepoint=1, max_codepoint=0x1FFFF, exclude_categories=["Cs"]), max_size=12),
)


steps = st.lists(
    st.tuples(prefix_texts, key_texts, st.integers(-20, 300), st.integers(-1500, 4000)),
    min_size=1,
    max_size=120,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=steps,
    slots=st.integers(1, 9),
    entries=st.integers(2, 40),
    start_ms=st.sampled_from([0, 5, T0]),
    cuts=st.lists(st.integers(0, 120), max_size=6),
)
def test_columns_write_the_same_files_as_the_plain_path(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, str, int, int]],
    slots: int,
    entries: int,
    start_ms: int,
    cuts: list[int],
) -> None:
    root = tmp_path_factory.mktemp("twins")
    plain = IndexService(Disk(), root / "plain", Ticking(), slots, entries)
    columns = IndexService(Disk(), root / "columns", Ticking(), slots, entries)
    rows = []
    offset, now_ms = 5000, start_ms
    for prefix, key, gap, wait_ms in steps:
        offset, now_ms = offset + gap, now_ms + wait_ms
        rows.append((prefix.encode(), key.encode(), offset, now_ms))
    borders = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    for start, end in itertools.pairwise(borders):
        a, b, c, d = (list(column) for column in zip(*rows[start:end], strict=True))
        plain.add_plain(a, b, c, d)
        columns.add_columns(a, b, c, d)
    assert contents(plain) == contents(columns)
    assert [os.path.basename(path) for path in plain.paths] == [
        os.path.basename(path) for path in columns.paths
    ]
    kept = sorted({row[2] for row in rows if row[:2] == rows[0][:2]}, reverse=True)
    found = plain.query(rows[0][0][:-1].decode(), rows[0][1].decode(), -(1 << 62), 1 << 62, 1000)
    assert found == columns.query(rows[0][0][:-1].decode(), rows[0][1].decode(), -(1 << 62), 1 << 62, 1000)
    if all(gap >= 0 for _, _, gap, _ in steps):
        assert set(kept) <= set(found)
    plain.close()
    columns.close()


def filled(root: Path, rows: int, entries: int = 1000, clock: Ticking | None = None) -> IndexService:
    index = IndexService(Disk(), root / "index", clock or Ticking(), slots=50, entries=entries)
    index.load()
    index.add_rows([(b"T#", b"k%d" % (n % 7), n * 100, T0 + n * 1000) for n in range(rows)])
    return index


def test_query_goes_from_the_newest_back_within_the_time_range(tmp_path: Path) -> None:
    index = filled(tmp_path, 100, entries=20)
    assert len(index.paths) == 6
    everything = index.query("T", "k3", 0, 1 << 62, 64)
    assert everything == [n * 100 for n in range(99, -1, -1) if n % 7 == 3]
    assert index.query("T", "k3", 0, 1 << 62, 3) == everything[:3]
    middle = index.query("T", "k3", T0 + 20_000, T0 + 60_000, 64)
    assert middle == [n * 100 for n in range(60, 19, -1) if n % 7 == 3]
    assert index.query("T", "absent", 0, 1 << 62, 64) == []
    assert index.query("T", "k3", T0 + 200_000, T0 + 300_000, 64) == []
    index.close()


def test_an_entry_is_found_although_its_time_is_kept_in_whole_seconds(tmp_path: Path) -> None:
    index = IndexService(Disk(), tmp_path / "index", Ticking(), slots=5, entries=50)
    index.add_rows([(b"T#", b"a", 0, T0), (b"T#", b"b", 100, T0 + 1999)])
    assert index.query("T", "b", T0 + 1500, T0 + 2500, 10) == [100]
    index.close()


def test_the_same_key_twice_in_a_record_is_one_result(tmp_path: Path) -> None:
    index = IndexService(Disk(), tmp_path / "index", Ticking(), slots=5, entries=50)
    index.add_rows([(b"T#", b"a", 70, T0), (b"T#", b"a", 70, T0)])
    assert index.query("T", "a", 0, 1 << 62, 10) == [70]
    index.close()


def test_rows_already_covered_are_skipped(tmp_path: Path) -> None:
    index = filled(tmp_path, 40)
    before = contents(index)
    index.add_rows([(b"T#", b"k1", n * 100, T0 + n * 1000) for n in range(39)])
    index.add_rows([(b"T#", b"k1", 3800, T0)])
    assert contents(index) == before
    index.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_chains_neither_loop_nor_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("damage")
    index = filled(root, 60, entries=80)
    (path,) = index.paths
    index.close()
    content = bytearray(Path(path).read_bytes())
    for at in data.draw(st.lists(st.integers(HEADER_BYTES, len(content) - 1), min_size=1, max_size=30)):
        content[at] = data.draw(st.integers(0, 255))
    Path(path).write_bytes(bytes(content))
    index = IndexService(Disk(), root / "index", Ticking(), slots=50, entries=80)
    index.load()
    for key in range(8):
        assert len(index.query("T", f"k{key}", 0, 1 << 62, 64)) <= 64
    index.add_rows([(b"T#", b"fresh", 10_000, T0 + 70_000)])
    assert index.query("T", "fresh", 0, 1 << 62, 64)[:1] == [10_000]
    index.close()


def test_reopening_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = filled(tmp_path / "whole", 90, entries=40)
    index = filled(tmp_path / "parts", 50, entries=40)
    index.close()
    index = IndexService(Disk(), tmp_path / "parts" / "index", Ticking(), slots=50, entries=40)
    assert index.load() == 4900
    index.add_rows([(b"T#", b"k%d" % (n % 7), n * 100, T0 + n * 1000) for n in range(50, 90)])
    assert contents(index) == contents(whole)
    index.close()
    whole.close()


def test_names_are_local_time_and_keep_the_order_when_the_clock_steps_back(tmp_path: Path) -> None:
    clock = Ticking(1_794_773_221_534)
    index = filled(tmp_path, 10, entries=5, clock=clock)
    clock.now_ms -= 3_600_000
    index.add_rows([(b"T#", b"k", 2000 + n, T0 + 20_000) for n in range(9)])
    names = [os.path.basename(path) for path in index.paths]
    assert len(names) == 5
    assert names == sorted(set(names))
    assert names == index._disk.listdir(tmp_path / "index")
    assert names[0].endswith("01534")
    assert names[1].endswith("01535")
    index.close()


def test_after_a_crash_a_torn_file_beyond_the_checkpoint_is_rebuilt(tmp_path: Path) -> None:
    index = filled(tmp_path, 60, entries=21)
    assert len(index.paths) == 3
    safe_ms = T0 + 39_000
    good, last = contents(index), index.paths[-1]
    index.close()
    torn = bytearray(good[2])
    torn[-60:] = bytes(60)
    Path(last).write_bytes(bytes(torn))
    index = IndexService(Disk(), tmp_path / "index", Ticking(), slots=50, entries=21)
    assert index.load(abnormal=True, checkpoint_index_ms=safe_ms) == 3900
    assert index.dropped == [last]
    index.add_rows([(b"T#", b"k%d" % (n % 7), n * 100, T0 + n * 1000) for n in range(30, 60)])
    # The record at the border is taken again, for a crash may have cut its keys in two.
    assert contents(index)[:2] == good[:2]
    assert index.query("T", "k4", 0, 1 << 62, 64) == [n * 100 for n in range(59, -1, -1) if n % 7 == 4]
    index.close()


def test_after_a_crash_a_whole_file_beyond_the_checkpoint_is_kept(tmp_path: Path) -> None:
    index = filled(tmp_path, 60, entries=21)
    good = contents(index)
    index.close()
    index = IndexService(Disk(), tmp_path / "index", Ticking(), slots=50, entries=21)
    assert index.load(abnormal=True, checkpoint_index_ms=0) == 5900
    assert index.dropped == []
    assert contents(index) == good
    index.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 90), slots=st.integers(1, 12), entries=st.integers(2, 60), data=st.data())
def test_cutting_leaves_the_files_as_if_the_rows_never_came(
    tmp_path_factory: pytest.TempPathFactory, rows: int, slots: int, entries: int, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("cut")
    keep = data.draw(st.integers(0, rows))
    all_rows = [(b"T#", b"k%d" % (n % 7), n * 100, T0 + n * 1000) for n in range(rows)]
    whole = IndexService(Disk(), root / "whole", Ticking(), slots, entries)
    part = IndexService(Disk(), root / "part", Ticking(), slots, entries)
    whole.add_rows(all_rows)
    part.add_rows(all_rows[:keep])
    whole.cut(keep * 100 - data.draw(st.integers(0, 99)) if keep else 0)
    # Only the end time is not known to the millisecond any more.
    assert [data[:8] + data[16:] for data in contents(whole)] == [
        data[:8] + data[16:] for data in contents(part)
    ]
    whole.add_rows(all_rows[keep:])
    part.add_rows(all_rows[keep:])
    assert [data[40:] for data in contents(whole)] == [data[40:] for data in contents(part)]
    whole.close()
    part.close()


@pytest.mark.parametrize("batch", [1, 40])
def test_records_written_anew_where_the_log_lost_its_end_are_indexed(tmp_path: Path, batch: int) -> None:
    index = filled(tmp_path, 60, entries=21)
    again = [(b"T#", b"new%d" % n, 3050 + n * 100, T0 + 100_000 + n) for n in range(40)]
    for start in range(0, 40, batch):
        index.add_rows(again[start : start + batch])
    assert index.query("T", "new7", 0, 1 << 62, 64) == [3750]
    assert index.query("T", "k3", 0, 1 << 62, 64) == [n * 100 for n in range(30, -1, -1) if n % 7 == 3]
    index.close()


def test_after_a_crash_a_torn_file_is_rebuilt_although_the_checkpoint_covers_it(tmp_path: Path) -> None:
    index = filled(tmp_path, 30)
    assert index.flush() == T0 + 29_000
    (path,) = index.paths
    index.close()
    for zeroed in (HEADER_BYTES, HEADER_BYTES + 50 * 4 + 12 * ENTRY_BYTES):
        content = bytearray(Path(path).read_bytes())
        whole = bytes(content)
        content[zeroed : zeroed + 100] = bytes(100)
        Path(path).write_bytes(bytes(content))
        index = IndexService(Disk(), tmp_path / "index", Ticking(), slots=50, entries=1000)
        assert index.load(abnormal=True, checkpoint_index_ms=T0 + 29_000) == 0
        assert index.dropped == [path]
        index.close()
        Path(path).write_bytes(whole)
    index = IndexService(Disk(), tmp_path / "index", Ticking(), slots=50, entries=1000)
    assert index.load(abnormal=True, checkpoint_index_ms=T0 + 29_000) == 2900
    index.close()


def test_an_impossible_header_means_rebuilding_from_there(tmp_path: Path) -> None:
    index = filled(tmp_path, 60, entries=21)
    paths = index.paths
    index.close()
    content = bytearray(Path(paths[1]).read_bytes())
    struct.pack_into(">i", content, 36, 5000)
    Path(paths[1]).write_bytes(bytes(content))
    index = IndexService(Disk(), tmp_path / "index", Ticking(), slots=50, entries=21)
    assert index.load() == 1900
    assert index.dropped == paths[1:]
    index.close()


def test_a_file_of_another_size_is_refused_with_the_setting_to_change(tmp_path: Path) -> None:
    index = filled(tmp_path, 3)
    index.close()
    index = IndexService(Disk(), tmp_path / "index", Ticking(), slots=51, entries=1000)
    with pytest.raises(WrongFileSize, match="maxHashSlotNum"):
        index.load()


def test_old_files_go_but_never_the_last(tmp_path: Path) -> None:
    index = filled(tmp_path, 60, entries=21)
    paths = index.paths
    assert index.delete_before(1900) == 0
    assert index.delete_before(1901) == 1
    assert index.delete_before(1 << 40) == 1
    assert index.paths == paths[2:]
    assert [os.path.exists(path) for path in paths] == [False, False, True]
    index.close()


def test_a_full_disk_is_an_error_and_the_rows_can_be_added_again(tmp_path: Path) -> None:
    disk = FaultyDisk(Fault("fallocate", "index", after=2, error=errno.ENOSPC))
    index = IndexService(disk, tmp_path / "index", Ticking(), slots=50, entries=41)
    rows = [(b"T#", b"k%d" % n, n * 100, T0 + n * 1000) for n in range(100)]
    with pytest.raises(OSError, match="No space"):
        index.add_rows(rows)
    assert disk.listdir(tmp_path / "index") == [os.path.basename(path) for path in index.paths]
    index.add_rows(rows)
    assert [index.query("T", f"k{n}", 0, 1 << 62, 9) for n in range(100)] == [[n * 100] for n in range(100)]
    index.close()


def test_flush_syncs_what_is_new_and_tells_the_checkpoint_time(tmp_path: Path) -> None:
    disk = FaultyDisk()
    index = IndexService(disk, tmp_path / "index", Ticking(), slots=50, entries=21)
    assert index.flush() == 0
    index.add_rows([(b"T#", b"k", n, T0 + n) for n in range(25)])
    assert index.needs_flush
    assert index.flush() == T0 + 24
    assert not index.needs_flush
    assert [op for op, _ in disk.calls].count("fdatasync") == 2
    assert index.flush() == T0 + 24
    assert [op for op, _ in disk.calls].count("fdatasync") == 2
    index.close()
    assert disk._paths == {}
