"""Plain messages by the accelerator, against the columns of numpy, which know every form."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.spark import plain_bodies, plain_properties
from orbitmq.spark.columns import decode_page
from orbitmq.spark.errors import SourceError
from orbitmq.spark.options import parse_read_options
from orbitmq.spark.placed_bodies import BodyForm
from orbitmq.spark.plain_bodies import OF_PROPERTIES, PlainBodies
from orbitmq.spark.pull_client import PullSettings, QueueSlice
from orbitmq.spark.reading import read_slices
from orbitmq.spark.schema import ALL_COLUMNS
from orbitmq.store.inner_message import InnerMessage
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.compression import Compression, compress
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import MESSAGE_MAGIC_V2, decode_records, encode_record
from tests.spark.fake_broker import FakeBroker
from tests.spark.placed import placed_rows_of, taken_from_the_log
from tests.spark.plain import batch_rows
from tests.spark.test_store_reader import rows_of
from tests.support.stores import GOLDEN, fill, make_crashed, open_small

if accel.unit_bodies is None or accel.page_bodies is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

PROPERTY_COLUMNS = (
    ("tags",),
    ("keys", "queue_id", "tags", "queue_offset"),
    ("msg_id", "store_time", "properties", "topic"),
)
HEAD_COLUMNS = tuple(name for name in ALL_COLUMNS if name not in OF_PROPERTIES)
V4, V6 = bytes((127, 0, 0, 1, 0, 0, 42, 159)), bytes(20)
some_columns = (
    st.lists(st.sampled_from(HEAD_COLUMNS), unique=True)
    .map(lambda names: tuple(dict.fromkeys([*names, "body"])))
    .flatmap(st.permutations)
    .map(tuple)
)


@contextmanager
def by_numpy() -> Iterator[None]:
    ways = ("unit_bodies", "unit_properties", "page_bodies")
    with ExitStack() as off:
        for way in ways:
            off.enter_context(patch.object(accel, way, None))
        yield


def record(offset: int, body: bytes, **fields: Any) -> bytes:
    return encode_record(
        **{"topic": "T", "body": body, "queue_offset": offset, "store_host": V4, "born_host": V4, **fields}
    )


odd_fields = st.sampled_from(
    (
        {"born_host": V6},
        {"store_host": V6},
        {"magic": MESSAGE_MAGIC_V2},
        {"sys_flag": SysFlag.COMPRESSED},
        {"sys_flag": SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP},
    )
)
plain_fields = st.fixed_dictionaries(
    {
        "sys_flag": st.sampled_from((0, SysFlag.MULTI_TAGS, SysFlag.TX_COMMIT, SysFlag.TX_PREPARED)),
        "queue_id": st.integers(0, 9),
        "born_ms": st.integers(-(2**63), 2**63 - 1),
        "store_ms": st.integers(0, 2_000_000_000_000),
        "properties": st.sampled_from((b"", b"TAGS\x01A\x02KEYS\x01k")),
    }
)


def quick(page: bytes, start: int, stop: int, columns: tuple[str, ...]) -> Any:
    return PlainBodies(columns, "T", "b").of_page(np.frombuffer(page, np.uint8), start, stop)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=60), plain_fields), min_size=1, max_size=12),
    st.integers(0, 2**62),
    some_columns,
)
def test_a_plain_page_is_decoded_as_numpy_does(
    messages: list[tuple[bytes, dict[str, Any]]], start: int, columns: tuple[str, ...]
) -> None:
    parts = [record(start + n, body, **fields) for n, (body, fields) in enumerate(messages)]
    page = b"".join(parts)
    made = quick(page, start, start + len(parts), columns)
    assert made is not None
    made.validate(full=True)
    expected = decode_page(page, columns=columns, topic="T", broker="b")
    assert made.schema.equals(expected.schema)
    assert batch_rows(made) == batch_rows(expected)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 8), st.integers(0, 7), odd_fields)
def test_a_page_with_anything_else_is_left_alone(count: int, odd: int, fields: dict[str, Any]) -> None:
    odd %= count
    parts = [record(n, b"body", **(fields if n == odd else {})) for n in range(count)]
    page = b"".join(parts)
    assert quick(page, 0, count, ("body",)) is None
    sound = b"".join(record(n, b"body") for n in range(count))
    assert quick(sound, 0, count, ("body",)) is not None
    for wrong in ((1, count + 1), (0, count + 1), (0, count - 1)):
        assert quick(sound, *wrong, ("body",)) is None
    assert quick(sound[:-1], 0, count, ("body",)) is None
    assert quick(sound + b"\0", 0, count, ("body",)) is None


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_changed_byte_is_never_taken_for_something_else(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    page = bytearray(b"".join(record(n, b"x" * (n * 7)) for n in range(count)))
    page[data.draw(st.integers(0, len(page) - 1))] ^= data.draw(st.integers(1, 255))
    made = quick(bytes(page), 0, count, ("body", "queue_offset", "store_time"))
    if made is not None:
        expected = decode_page(bytes(page), columns=("body", "queue_offset", "store_time"), topic="T")
        assert batch_rows(made) == batch_rows(expected)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few queues in several log files, with compressed bodies and IPv6 hosts between plain ones."""
    root = tmp_path_factory.mktemp("mixed") / "s"
    store = open_small(root)
    fill(store, 150)
    for number in range(60):
        kind, body = Compression.ZLIB, b"packed %d" % number * 50
        packed = {"body": compress(body, kind), "sys_flag": kind.sys_flag} if number % 7 == 3 else {}
        host = {"born_host": V6} if number % 11 == 5 else {}
        fields = {"body": body[: number * 9], **packed, **host}
        store.put(InnerMessage("Mixed", number % 2, properties=b"TAGS\x01A", **fields).index_properties())
    store.durability.kick()
    store.close()
    return root


def outcome(
    directory: Path,
    columns: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
    read: Callable[[Path, tuple[str, ...]], Any] = rows_of,
) -> Any:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "orbitmq.spark"):
        try:
            rows: Any = read(directory, columns)
        except SourceError as error:
            rows = str(error)
    return rows, sorted(message.getMessage() for message in caplog.records)


def by_places(directory: Path, columns: tuple[str, ...]) -> Any:
    return taken_from_the_log(directory, placed_rows_of(directory, columns, BodyForm.PLACES))


def same_both_ways(directory: Path, columns: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> Any:
    found = outcome(directory, columns, caplog)
    with by_numpy():
        assert outcome(directory, columns, caplog) == found
    if "body" in columns:
        assert outcome(directory, columns, caplog, by_places) == found
    return found


@pytest.mark.parametrize("part_bytes", [100, 3000, 2 << 20])
@pytest.mark.parametrize(
    ("way", "all_columns"),
    [("unit_bodies", (("body",), HEAD_COLUMNS)), ("unit_properties", PROPERTY_COLUMNS)],
)
def test_a_store_with_every_kind_is_read_alike(
    mixed: Path,
    part_bytes: int,
    way: str,
    all_columns: tuple[tuple[str, ...], ...],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (plain_bodies, plain_properties):
        monkeypatch.setattr(module, "PART_BYTES", part_bytes)
    plain, taken = getattr(accel, way), []

    def counted(*given: Any) -> tuple[int, int]:
        rows, size = plain(*given)
        taken.append(rows)
        return rows, size

    monkeypatch.setattr(accel, way, counted)
    for columns in all_columns:
        rows, told = same_both_ways(mixed, columns, caplog)
        assert len(rows) > 200
        assert not told
    assert sum(taken) > (20 if part_bytes < 1000 else 100), "most of those that fit are plain"
    assert 0 in taken, "some are not"


def test_the_golden_store_and_one_of_a_killed_broker_are_read_alike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_crashed(tmp_path / "s")
    for directory in (GOLDEN, tmp_path / "s"):
        for columns in (HEAD_COLUMNS, *PROPERTY_COLUMNS):
            assert same_both_ways(directory, columns, caplog)[0]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_store_is_read_alike(
    mixed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    """One byte of a record's head or end, or of a unit; a file of the log that is gone or cut."""
    columns = data.draw(st.sampled_from((("body", "queue_offset"), *PROPERTY_COLUMNS)))
    broken = tmp_path / "broken"
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(mixed, broken)
    logs = sorted((broken / "commitlog").iterdir())
    match data.draw(st.integers(0, 3)):
        case 0:
            victim = data.draw(st.sampled_from(logs))
            found = data.draw(st.sampled_from(records_of(victim)))
            behind = len(found.body) + len(found.topic) + 1
            inside = data.draw(st.integers(0, 87) | st.integers(88 + len(found.body), 88 + behind + 2))
            place = found.physical_offset % (32 * 1024) + inside
        case 1:
            queue_files = sorted(path for path in (broken / "consumequeue").rglob("*") if path.is_file())
            victim = data.draw(st.sampled_from(queue_files))
            place = data.draw(st.integers(0, victim.stat().st_size - 1))
        case 2:
            data.draw(st.sampled_from(logs)).unlink()
            same_both_ways(broken, columns, caplog)
            return
        case _:
            victim = data.draw(st.sampled_from(logs))
            victim.write_bytes(victim.read_bytes()[: data.draw(st.integers(0, 32 * 1024 - 1))])
            same_both_ways(broken, columns, caplog)
            return
    changed = bytearray(victim.read_bytes())
    changed[place] ^= data.draw(st.integers(1, 255))
    victim.write_bytes(changed)
    same_both_ways(broken, columns, caplog)


def records_of(log_file: Path) -> list[Any]:
    content = log_file.read_bytes()
    end = 0
    while len(content) - end >= 8 and content[end + 4 : end + 8] == b"\xda\xa3\x20\xa7":
        end += int.from_bytes(content[end : end + 4], "big")
    return list(decode_records(content[:end]))


def test_large_pages_of_a_broker_take_this_way_and_odd_ones_the_other() -> None:
    """A page in the middle has a compressed body: all of it goes the other way, and every message arrives."""

    def made(offset: int, store_ms: int = 0) -> bytes:
        body = b"%d" % offset * 40
        if offset == 9000:
            return record(offset, compress(body, Compression.ZLIB), sys_flag=Compression.ZLIB.sys_flag)
        return record(offset, body)

    taken: list[bool] = []

    def watched(self: PlainBodies, page: Any, start: int, stop: int) -> Any:
        batch = whole(self, page, start, stop)
        taken.append(batch is not None)
        return batch

    whole = PlainBodies.of_page
    with FakeBroker(made, end=40_000) as fake, patch.object(PlainBodies, "of_page", watched):
        fake.most = 1_000_000
        options = parse_read_options({"namesrv": fake.addr, "subscribe": "orders"}, streaming=False)
        piece = QueueSlice(MessageQueue("orders", "broker-a", 0), 0, 40_000)
        bodies = [
            body
            for batch in read_slices(options, ("queue_offset", "body"), [piece])
            for body in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]
    assert bodies == [(offset, b"%d" % offset * 40) for offset in range(40_000)]
    assert True in taken
    assert False in taken
    assert PullSettings().page_bytes > 1 << 20
