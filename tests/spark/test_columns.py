"""Pages decoded in columns are the same as messages decoded one by one."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.spark import columns as columns_module
from orbitmq.spark.columns import decode_page, decode_parts
from orbitmq.spark.errors import SourceError
from orbitmq.spark.records import Heads, record_starts
from orbitmq.spark.schema import ALL_COLUMNS, COLUMNS, arrow_schema, ddl
from orbitmq.spark.spans import as_bytes
from orbitmq.wire.batch import encode_batch
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.compression import Compression, compress
from orbitmq.wire.message import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, encode_record
from orbitmq.wire.properties import encode_properties
from tests.spark.plain import batch_rows, plain_rows

HOSTS = ("10.0.0.1:5555", "192.168.1.77:10911", "[2001:db8::1]:10911", "[::1]:1")

names = st.sampled_from(("TAGS", "KEYS", "UNIQ_KEY", "WAIT", "abcd", "abcdefgh", "é", "n"))
# Raw texts too, with separators in every place: what a broken writer leaves must be read as the plain reader reads it.
odd_text = st.lists(
    st.sampled_from([b"\x00", b"\x01", b"\x02", b"TAGS", b"KEYS", b"x", b"\xff", b"\xc3", b"\xa9"]),
    max_size=12,
)
properties = st.one_of(
    st.dictionaries(names, st.text("ab é\U0001f600\x01\x00", max_size=5), max_size=5).map(encode_properties),
    st.dictionaries(names, st.text("ab", min_size=1, max_size=5), max_size=3).map(
        lambda pairs: encode_properties(pairs) + b"\x02"
    ),
    odd_text.map(b"".join),
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=40))
    sys_flag = draw(st.sampled_from((0, 0, 0, SysFlag.MULTI_TAGS, SysFlag.TX_COMMIT)))
    kind = draw(st.sampled_from((None, None, None, *Compression)))
    if kind is not None:
        body, sys_flag = compress(body, kind), sys_flag | kind.sys_flag
    long_topic = draw(st.integers(0, 9)) == 0
    return encode_record(
        topic=draw(st.sampled_from(("TopicA", "b", "%RETRY%g"))) if not long_topic else "t" * 200,
        body=body,
        properties=draw(properties),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        queue_offset=draw(st.integers(0, 2**63 - 1)),
        physical_offset=draw(st.integers(0, 2**63 - 1)),
        sys_flag=sys_flag,
        born_ms=draw(st.one_of(st.integers(0, 2_000_000_000_000), st.integers(-(2**63), 2**63 - 1))),
        born_host=draw(st.sampled_from(HOSTS)),
        store_ms=draw(st.integers(0, 2_000_000_000_000)),
        store_host=draw(st.sampled_from(HOSTS)),
        reconsume_times=draw(st.integers(0, 16)),
        magic=MESSAGE_MAGIC_V2 if long_topic else MESSAGE_MAGIC,
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(records(), max_size=12))
def test_any_page_is_decoded_as_the_plain_reader_does(parts: list[bytes]) -> None:
    page = b"".join(parts)
    batch = decode_page(page, broker="broker-a")
    assert batch.schema.equals(arrow_schema(ALL_COLUMNS))
    batch.validate(full=True)
    assert batch_rows(batch) == plain_rows(page, broker="broker-a")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(records(), min_size=1, max_size=6),
    st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True),
)
def test_any_choice_of_columns_gives_just_these(parts: list[bytes], columns: list[str]) -> None:
    page = b"".join(parts)
    batch = decode_page(page, columns=columns, topic="given", broker=None)
    assert batch.schema.names == columns
    assert batch_rows(batch) == plain_rows(page, columns, topic="given")


def parts_of(page: bytes, columns: tuple[str, ...], part_bytes: int) -> list[pa.RecordBatch]:
    heads = Heads(as_bytes(page), record_starts(page))
    with patch.object(columns_module, "PART_BYTES", part_bytes):
        return list(decode_parts(page, columns=columns, topic=None, broker=None, heads=heads))


@settings(max_examples=100, deadline=None)
@given(st.lists(records(), max_size=12), st.integers(1, 200))
def test_a_page_in_parts_has_the_rows_of_the_whole(parts: list[bytes], part_bytes: int) -> None:
    page = b"".join(parts)
    rows = [row for batch in parts_of(page, ALL_COLUMNS, part_bytes) for row in batch_rows(batch)]
    assert rows == plain_rows(page)


def simple(offset: int, *, body: bytes = b"body", **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "T",
        "queue_offset": offset,
        "body": body,
        "store_ms": 1_700_000_000_000,
    }
    return encode_record(**{**fields, **changes})


def test_long_runs_of_one_size_are_found_like_mixed_ones() -> None:
    parts = [simple(i) for i in range(5000)] + [simple(i, body=b"x" * (i % 7)) for i in range(5000, 5200)]
    parts += [simple(i) for i in range(5200, 5209)] + [simple(5209, body=b"last")]
    expected, pos = [], 0
    for part in parts:
        expected.append(pos)
        pos += len(part)
    assert record_starts(b"".join(parts)).tolist() == expected


def test_parts_are_about_as_large_as_asked_for_and_alike() -> None:
    page = b"".join(simple(i, body=b"x" * 100) for i in range(95))
    batches = parts_of(page, ("body", "queue_offset"), 1000)
    assert [batch.num_rows for batch in batches] == [9, 10] * 4 + [9, 10]
    assert [number for batch in batches for number in batch.column(1).to_pylist()] == list(range(95))
    assert len(parts_of(page, ("queue_offset",), 1000)) == 1, "without bodies there is nothing to cut"
    empty = b"".join(simple(i, body=b"") for i in range(5))
    assert [batch.num_rows for batch in parts_of(empty, ("body",), 1000)] == [5]


def test_damage_is_found_before_the_first_part_is_handed_out() -> None:
    damaged = bytearray(simple(9))
    damaged[84] ^= 0x7F
    page = b"".join(simple(i) for i in range(9)) + bytes(damaged)
    heads = Heads(as_bytes(page), record_starts(page))
    with patch.object(columns_module, "PART_BYTES", 4), pytest.raises(SourceError, match="damaged at byte"):
        decode_parts(page, columns=("body",), topic=None, broker=None, heads=heads)


def test_a_window_keeps_only_its_offsets_in_every_layout() -> None:
    page = b"".join(simple(i, born_host=HOSTS[i % 4]) for i in range(20))
    batch = decode_page(page, columns=("queue_offset",), window=(5, 9))
    assert batch.column(0).to_pylist() == [5, 6, 7, 8]
    assert decode_page(page, columns=("queue_offset",), window=(50, 90)).num_rows == 0


def test_tags_are_compared_exactly_and_need_not_be_shown() -> None:
    # "Aa" and "BB" have one hash: a broker that is asked for one sends the other too.
    page = b"".join(simple(i, properties=b"TAGS\x01" + tag) for i, tag in enumerate((b"Aa", b"BB", b"C")))
    page += simple(3)
    batch = decode_page(page, columns=("queue_offset",), tags=frozenset({"Aa", "C"}))
    assert batch.schema.names == ["queue_offset"]
    assert batch.column(0).to_pylist() == [0, 2]


def test_inner_batches_become_single_messages() -> None:
    inner = [
        (0, b"one", b"TAGS\x01A\x02UNIQ_KEY\x01" + b"1" * 32),
        (0, b"two", b""),
        (0, b"three", b"KEYS\x01k"),
    ]
    flags = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    wrapped = simple(
        7,
        body=encode_batch(inner),
        sys_flag=flags,
        properties=b"INNER_BASE\x017\x02INNER_NUM\x013",
        store_host=HOSTS[2],
    )
    batch = decode_page(simple(6) + wrapped + simple(10), window=(6, 9))
    assert batch.column("queue_offset").to_pylist() == [6, 7, 8]
    assert batch.column("body").to_pylist() == [b"body", b"one", b"two"]
    assert batch.column("tags").to_pylist() == [None, "A", None]


@pytest.mark.parametrize("at_byte", [0, 3, 5, 84, 92, 95])
def test_damage_in_a_page_is_an_error_that_names_the_place(at_byte: int) -> None:
    sound = simple(1)
    damaged = bytearray(simple(2))
    damaged[at_byte] ^= 0x7F
    with pytest.raises(SourceError, match=f"damaged at byte {len(sound)}.*store verify"):
        decode_page(sound + bytes(damaged))


def test_a_body_that_cannot_be_unpacked_names_its_message() -> None:
    page = simple(41, queue_id=3, sys_flag=Compression.ZLIB.sys_flag, body=b"no zlib")
    with pytest.raises(SourceError, match="queue 3 offset 41 of topic 'T'"):
        decode_page(page, topic="T")
    assert decode_page(page, topic="T", columns=("queue_offset",)).num_rows == 1


def test_the_arrow_types_are_those_that_spark_expects() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        BinaryType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    types = {
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "binary": BinaryType(),
        "timestamp": TimestampType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }
    schema = StructType([StructField(name, types[kind]) for name, kind in COLUMNS.items()])
    assert to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(ALL_COLUMNS))
    assert ddl(("topic", "body")) == "topic string, body binary"


def test_an_empty_page_has_no_rows_but_its_columns() -> None:
    batch = decode_page(b"")
    assert isinstance(batch, pa.RecordBatch)
    assert (batch.num_rows, batch.schema.names) == (0, list(ALL_COLUMNS))
