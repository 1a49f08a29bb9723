"""Pages that a broker cuts to the parts that columns need: the same rows as from whole records, or a clear error."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.spark import reading
from orbitmq.spark.brokers import Brokers
from orbitmq.spark.connection import Answer, Connection
from orbitmq.spark.errors import BrokerLost
from orbitmq.spark.options import parse_read_options
from orbitmq.spark.page_parts import PageParts
from orbitmq.spark.places import bounds_of
from orbitmq.spark.pull_client import PullSettings, QueueSlice, SliceReader
from orbitmq.spark.reading import read_slices
from orbitmq.spark.schema import ALL_COLUMNS
from orbitmq.wire.codes import PagePart, ResponseCode, SysFlag
from orbitmq.wire.command import Command
from orbitmq.wire.compression import Compression, compress
from orbitmq.wire.fastjson import MessageQueue
from tests.accel.test_page_parts import cut_plainly, record
from tests.spark.fake_broker import FakeBroker
from tests.spark.plain import batch_rows, plain_rows
from tests.spark.topics import Out, Topics, numbered
from tests.support.server_process import ServerProcess

if accel.found_parts is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

QUEUE = MessageQueue("T", "broker-a", 0)
some_columns = st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True).map(tuple)
contents = st.tuples(
    st.binary(max_size=40),
    st.sampled_from((b"", b"TAGS\x01A", b"TAGS\x01\xff\x02KEYS\x01k", b"UNIQ_KEY\x01u\x02TAGS\x01B\x02")),
)


def as_array(page: bytes) -> Any:
    return np.frombuffer(page, np.uint8)


@given(st.lists(contents, min_size=1, max_size=12), some_columns, st.integers(0, 2**40))
def test_columns_of_parts_are_those_of_the_records(
    messages: list[tuple[bytes, bytes]], columns: tuple[str, ...], first: int
) -> None:
    records = [record(first + number, *message, born_ms=number) for number, message in enumerate(messages)]
    parts = PageParts(columns, QUEUE)
    size, batch = parts.batch(as_array(cut_plainly(records, parts.wanted)), first, first + len(records))
    batch.validate(full=True)
    assert size == sum(map(len, records))
    assert batch_rows(batch) == plain_rows(b"".join(records), columns, "T", "broker-a")


def test_only_what_the_columns_need_is_asked_for() -> None:
    wanted = {
        ("queue_id",): 0,
        ("topic", "broker", "queue_offset"): 0,
        ("body",): PagePart.BODIES,
        ("store_time", "queue_id"): PagePart.HEADS,
        ("tags", "keys"): PagePart.PROPERTIES,
        ("properties", "body"): PagePart.PROPERTIES | PagePart.BODIES,
        ("msg_id",): PagePart.HEADS | PagePart.PROPERTIES,
        ALL_COLUMNS: 7,
    }
    assert {columns: PageParts(columns, QUEUE).wanted for columns in wanted} == wanted


@given(st.randoms(use_true_random=False), some_columns)
def test_a_page_that_is_not_sound_is_never_read_past_its_end(
    random: Random, columns: tuple[str, ...]
) -> None:
    records = [record(number, random.randbytes(20), b"TAGS\x01A") for number in range(4)]
    parts = PageParts(columns, QUEUE)
    page = bytearray(cut_plainly(records, parts.wanted))
    for _ in range(random.choice((1, 2, 5))):
        at = random.randrange(len(page) + 1)
        match random.randrange(3):
            case 0 if at < len(page):
                page[at] ^= 1 << random.randrange(8)
            case 1:
                del page[at:]
            case 2:
                page[at : at + 4] = struct.pack("<i", random.choice((0, -1, 1, 2**31 - 1, -(2**31))))
    try:
        _, batch = parts.batch(as_array(bytes(page)), 0, 4)
    except ValueError:
        return
    batch.validate()
    assert batch.num_rows == 4


# --- against a broker -----------------------------------------------------------------------------------------


@contextmanager
def counted() -> Iterator[list[Answer]]:
    """The answers that are cut."""
    cut: list[Answer] = []
    receive = Connection.receive

    def noting(connection: Connection, opaque: int) -> Answer:
        answer = receive(connection, opaque)
        if "pageParts" in answer.ext:
            cut.append(answer)
        return answer

    with patch.object(Connection, "receive", noting):
        yield cut


def rows_of(server: ServerProcess, topic: str, columns: tuple[str, ...], **more: str) -> list[Any]:
    options = parse_read_options(
        {"namesrv": server.namesrv, "subscribe": topic, "pageBytes": "40000", **more}, streaming=False
    )
    with Brokers(server.namesrv, 10.0) as brokers:
        route = brokers.find_route(topic)
        assert route is not None
        limits = bounds_of(brokers, route.read_queues())
    pieces = [QueueSlice(queue, each.first, each.end) for queue, each in limits.items()]
    return [found for batch in read_slices(options, columns, pieces) for found in batch_rows(batch)]


def whole_rows_of(server: ServerProcess, topic: str, columns: tuple[str, ...], **more: str) -> list[Any]:
    """The same from whole records."""
    with patch.object(reading, "PageParts", lambda columns, queue: None), counted() as cut:
        found = rows_of(server, topic, columns, **more)
    assert not cut
    return found


def some(count: int) -> list[Out]:
    return [
        Out(
            b"%d:" % number * (number % 300),
            {"UNIQ_KEY": f"{number:032X}", "TAGS": f"t{number % 3}", "KEYS": f"k{number}"},
        )
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def plain_topic(topics: Topics) -> str:
    topics.create("PartsPlain", 2)
    topics.fill("PartsPlain", 0, some(2000))
    topics.fill("PartsPlain", 1, numbered(500, size=1000))
    return "PartsPlain"


@pytest.mark.parametrize(
    "columns",
    [
        ("queue_id",),
        ("body",),
        ("tags",),
        ("body", "queue_offset", "store_time"),
        ("msg_id", "properties"),
        ALL_COLUMNS,
    ],
    ids="-".join,
)
def test_a_broker_sends_parts_and_the_rows_are_the_same(
    server: ServerProcess, plain_topic: str, columns: tuple[str, ...]
) -> None:
    expected = whole_rows_of(server, plain_topic, columns)
    assert len(expected) == 2500
    with counted() as cut:
        assert rows_of(server, plain_topic, columns) == expected
    assert len(cut) > 10
    if columns == ("queue_id",):
        assert {len(answer.body) for answer in cut} == {8}, "nothing but how many"


def test_pages_with_a_compressed_message_come_as_records(server: ServerProcess, topics: Topics) -> None:
    topics.create("PartsMixed", 1)
    for number in range(6):
        topics.fill("PartsMixed", 0, some(200))
        body = compress(b"packed %d" % number * 50, Compression.ZLIB)
        topics.send("PartsMixed", 0, Out(body), sys_flag=SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB)
    expected = whole_rows_of(server, "PartsMixed", ALL_COLUMNS)
    assert sum(row["body"].startswith(b"packed") for row in expected) == 6
    with counted() as cut:
        assert rows_of(server, "PartsMixed", ALL_COLUMNS) == expected
    told = sum(int.from_bytes(answer.body[:4].tobytes(), "little") for answer in cut)
    assert 0 < told < 1206, "some pages were plain, those with a packed body were not"


def test_filtered_reads_ask_for_records(server: ServerProcess, plain_topic: str) -> None:
    with counted() as cut:
        found = rows_of(server, plain_topic, ("body", "tags"), tags="t1")
    assert {row["tags"] for row in found} == {"t1"}
    assert len(found) == 667
    assert not cut


# --- against a broker that errs -------------------------------------------------------------------------------


def read_from(broker: FakeBroker, columns: tuple[str, ...]) -> list[Any]:
    queue = MessageQueue("orders", "broker-a", 0)
    with Brokers(broker.addr, 5.0) as brokers:
        reader = SliceReader(
            brokers,
            QueueSlice(queue, 0, 100),
            PullSettings(retry_timeout_s=0.0),
            parts=PageParts(columns, queue),
            sleep=lambda pause: None,
        )
        return list(reader)


@pytest.mark.parametrize(
    ("told", "page", "reason"),
    [
        ("2", b"", "it has no beginning"),
        ("2", struct.pack("<ii", 100, 9000), "it ends before its parts"),
        ("2", struct.pack("<ii", 2**31 - 1, 9000), "it ends before its parts"),
        ("2", struct.pack("<ii", -5, 9000), "it ends before its parts"),
        ("2", struct.pack("<ii", 1, 90) + struct.pack("<ii", 0, 3) + b"abc", "1 messages instead of 100"),
        ("2", struct.pack("<ii", 2, 90) + struct.pack("<iii", 0, 3, 2) + b"ab", "its parts overlap"),
        ("2", struct.pack("<ii", 1, 90) + struct.pack("<ii", 1, 2) + b"ab", "its parts overlap"),
        ("2", struct.pack("<ii", 1, 90) + struct.pack("<ii", 0, 9) + b"ab", "its parts have another length"),
        ("7", b"", r"parts of messages \(7\) that were not asked for"),
        ("x", b"", r"parts of messages \(x\) that were not asked for"),
    ],
)
def test_a_broken_page_is_an_error_that_says_so(told: str, page: bytes, reason: str) -> None:
    def wrong(command: Command, offset: int, count: int) -> Command:
        assert command.ext["pageParts"] == "2"
        ext = {"minOffset": "0", "maxOffset": "100", "nextBeginOffset": "100", "suggestWhichBrokerId": "0"}
        return command.reply(ResponseCode.SUCCESS, ext={**ext, "pageParts": told}, body=page)

    with FakeBroker(lambda offset: record(offset, b""), end=100) as broker:
        broker._pull = wrong  # type: ignore[method-assign]
        with pytest.raises(BrokerLost, match=reason):
            read_from(broker, ("body",))


def test_a_broker_that_does_not_know_parts_is_read_as_ever() -> None:
    with FakeBroker(lambda offset: record(offset, b"%d" % offset), end=100, most=1000) as broker:
        pages = read_from(broker, ("body",))
    assert sum(len(page.heads.starts) for page in pages) == 100
