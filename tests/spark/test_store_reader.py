"""Store directories read without a broker: golden, running, killed, copied and damaged ones."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from orbitmq.spark import columns, store_reader
from orbitmq.spark.errors import BadOption, DataLost, SourceError
from orbitmq.spark.schema import ALL_COLUMNS
from orbitmq.spark.store_batch import StorePartition, StoreReader
from orbitmq.spark.store_reader import read_store
from orbitmq.spark.store_source import parse_store_options
from orbitmq.store.inner_message import InnerMessage
from orbitmq.wire.compression import Compression, compress
from orbitmq.wire.message import Message
from orbitmq.wire.topics import is_system_topic
from tests.spark.plain import batch_rows, plain_row
from tests.support.stores import GOLDEN, T0, Clock, fill, make_clean, make_crashed, open_small, read_all

MANIFEST: dict[str, Any] = json.loads((GOLDEN.parent / "manifest.json").read_text("utf-8"))

Rows = list[dict[str, Any]]


def rows_of(directory: Path, columns: tuple[str, ...] = ALL_COLUMNS, **options: str) -> Rows:
    reader = StoreReader(parse_store_options({"path": str(directory), **options}), columns)
    rows: Rows = []
    for partition in reader.partitions():
        assert isinstance(partition, StorePartition)
        for batch in read_store(partition.settings, partition.slices):
            rows += batch_rows(batch)
    return rows


def expected(queues: Mapping[tuple[str, int], list[Message]]) -> Rows:
    return [plain_row(message) for name in sorted(queues) for message in queues[name]]


def test_the_golden_store_is_read_as_its_manifest_says() -> None:
    rows = rows_of(GOLDEN)
    listed = [
        m
        for m in MANIFEST["messages"]
        if not is_system_topic(m["topic"]) and m.get("queueOffset") is not None
    ]
    by_id = {row["offset_msg_id"]: row for row in rows}
    assert len(by_id) == len(rows)
    queued = {(q["topic"], q["queueId"]) for q in MANIFEST["queues"]}
    told = [m for m in listed if (m["topic"], m["queueId"]) in queued]
    assert sorted(by_id) == sorted(m["offsetMsgId"] for m in told)
    for message in told:
        row = by_id[message["offsetMsgId"]]
        assert hashlib.sha256(row["body"]).hexdigest() == message["bodySha256"]
        assert row["properties"] == message["properties"]
        assert (row["topic"], row["queue_id"], row["queue_offset"]) == (
            message["topic"],
            message["queueId"],
            message["queueOffset"],
        )
        assert (row["tags"], row["keys"], row["born_host"]) == (
            message["tags"],
            message["keys"],
            message["bornHost"],
        )


def test_system_topics_are_read_when_they_are_named() -> None:
    rows = rows_of(GOLDEN, ("topic", "queue_offset"), subscribe="SCHEDULE_TOPIC_XXXX")
    assert rows
    assert {row["topic"] for row in rows} == {"SCHEDULE_TOPIC_XXXX"}
    everything = rows_of(GOLDEN, ("topic", "queue_offset"))
    by_pattern = rows_of(GOLDEN, ("topic", "queue_offset"), subscribePattern="[^%]*")
    assert by_pattern == [row for row in everything if "%" not in row["topic"]]


def test_a_time_that_nothing_is_as_new_as() -> None:
    late = {"subscribe": "SCHEDULE_TOPIC_XXXX", "startingTimestamp": "99999999999999"}
    assert rows_of(GOLDEN, ("topic",), **late) == []
    with pytest.raises(BadOption, match="option 'startingTimestamp': .* has no message stored at 9999"):
        rows_of(GOLDEN, ("topic",), **late, startingOffsetsByTimestampStrategy="error")


def test_a_store_of_a_stopped_broker_is_read_whole_and_in_order(tmp_path: Path) -> None:
    make_clean(tmp_path / "s")
    found = rows_of(tmp_path / "s", minPartitions="7")
    store = open_small(tmp_path / "s")
    try:
        assert found == expected(read_all(store))
    finally:
        store.close()


def test_a_running_broker_s_store_has_what_its_queue_files_lack(tmp_path: Path) -> None:
    store = open_small(tmp_path / "s")
    try:
        fill(store, 120)
        for number in range(30):
            store.put(InnerMessage("Alpha", number % 3, b"late %d" % number, b"TAGS\x01A").index_properties())
        store.durability.kick()
        assert any(queue.buffered_bytes for queue in store.all_queues()), (
            "the queue files must lack something"
        )
        late = rows_of(tmp_path / "s", tags="A", subscribe="Alpha")
        assert sum(row["body"].startswith(b"late") for row in late) == 30
        assert rows_of(tmp_path / "s") == expected(read_all(store))
    finally:
        store.close()


def test_bodies_come_in_parts_and_compressed_ones_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "PART_BYTES", 4000)
    monkeypatch.setattr(store_reader, "PACKED_ROWS", 3)
    monkeypatch.setattr(store_reader, "MOST_MAPPED", 1)
    store = open_small(tmp_path / "s")
    try:
        fill(store, 150)
        for number in range(20):
            kind = Compression.ZLIB
            body = compress(b"packed %d" % number * 100, kind)
            message = InnerMessage("Packed", 0, body, b"TAGS\x01A", sys_flag=kind.sys_flag)
            store.put(message.index_properties())
        store.durability.kick()
        assert rows_of(tmp_path / "s") == expected(read_all(store))
        assert rows_of(tmp_path / "s", ("body", "tags")) == [
            {name: row[name] for name in ("body", "tags")} for row in expected(read_all(store))
        ]
    finally:
        store.close()


def test_queues_lost_altogether_come_from_the_log(tmp_path: Path) -> None:
    make_clean(tmp_path / "s")
    before = rows_of(tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    assert rows_of(tmp_path / "s") == before


def test_a_killed_broker_s_store_is_read_like_its_recovery_does(tmp_path: Path) -> None:
    make_crashed(tmp_path / "s")
    found = rows_of(tmp_path / "s")
    store = open_small(tmp_path / "s", clock=Clock(T0 + 2_000_000))
    try:
        assert found == expected(read_all(store))
    finally:
        store.close()


def log_files(path: Path) -> list[Path]:
    return sorted((path / "commitlog").iterdir())


def test_a_torn_tail_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_clean(tmp_path / "s")
    whole = rows_of(tmp_path / "s")
    last = max(whole, key=lambda row: row["offset_msg_id"])
    place = int(last["offset_msg_id"][-16:], 16)
    victim = log_files(tmp_path / "s")[place // (32 * 1024)]
    data = bytearray(victim.read_bytes())
    at = place % (32 * 1024)
    data[at + 60 : at + 200] = bytes(140)
    victim.write_bytes(data)
    (tmp_path / "s" / "abort").touch()
    with caplog.at_level(logging.WARNING, "orbitmq.spark"):
        found = rows_of(tmp_path / "s")
    assert found == [row for row in whole if row != last]
    assert f"offsets {last['queue_offset']} to {last['queue_offset']}" in caplog.text
    with pytest.raises(DataLost, match=f"queue {last['queue_id']} are missing"):
        rows_of(tmp_path / "s", failOnDataLoss="true")


def test_damage_in_the_middle_costs_only_what_it_hit(tmp_path: Path) -> None:
    make_clean(tmp_path / "s")
    whole = rows_of(tmp_path / "s")
    victim = log_files(tmp_path / "s")[1]
    data = bytearray(victim.read_bytes())
    data[5000:9000] = b"\xff" * 4000
    victim.write_bytes(data)
    found = rows_of(tmp_path / "s", checkCrc="true")
    kept = {row["offset_msg_id"] for row in found}
    hit = [row for row in whole if row["offset_msg_id"] not in kept]
    assert hit
    assert found == [row for row in whole if row["offset_msg_id"] in kept]
    start = 32 * 1024 + 5000
    for row in hit:
        place = int(row["offset_msg_id"][-16:], 16)
        assert start - 3500 < place < start + 4000


def test_a_log_file_that_is_gone_is_told(tmp_path: Path) -> None:
    make_clean(tmp_path / "s")
    whole = rows_of(tmp_path / "s")
    log_files(tmp_path / "s")[1].unlink()
    found = rows_of(tmp_path / "s")
    gone = range(32 * 1024, 64 * 1024)
    assert found == [row for row in whole if int(row["offset_msg_id"][-16:], 16) not in gone]


def test_ranges_by_offset_time_and_tag(tmp_path: Path) -> None:
    make_clean(tmp_path / "s")
    whole = rows_of(tmp_path / "s", subscribe="Alpha")
    middle = whole[len(whole) // 2]["store_time"]
    later = rows_of(tmp_path / "s", subscribe="Alpha", startingTimestamp=middle.isoformat())
    assert later == [row for row in whole if row["store_time"] >= middle]
    earlier = rows_of(tmp_path / "s", subscribe="Alpha", endingTimestamp=middle.isoformat())
    assert earlier == [row for row in whole if row["store_time"] < middle]
    tagged = rows_of(tmp_path / "s", subscribe="Alpha", tags="A")
    assert tagged == [row for row in whole if row["tags"] == "A"]
    numbers = '{"Alpha":{"0":3,"1":-2,"2":-2}}'
    some = rows_of(tmp_path / "s", subscribe="Alpha", startingOffsets=numbers)
    assert some == [row for row in whole if row["queue_id"] or row["queue_offset"] >= 3]
    one = rows_of(tmp_path / "s", assign='{"Alpha":[1]}', broker="broker-x")
    assert one == [{**row, "broker": "broker-x"} for row in whole if row["queue_id"] == 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "Nope"}, "option 'subscribe': the store in .* has no topic 'Nope'; it has .*Alpha"),
        (
            {"subscribe": "Beta", "startingOffsets": '{"Beta":{"0":99999}}'},
            "option 'startingOffsets': .*out of range",
        ),
        ({"assign": '{"Beta":[5]}'}, "option 'assign': the store has no queue 5 of topic 'Beta'"),
        ({"startingOffsets": "committed"}, "option 'startingOffsets': a store alone knows no group"),
        ({"namesrv": "x:1"}, "option 'namesrv': there is no such option"),
        ({"path": ""}, "option 'path'"),
    ],
)
def test_bad_options_are_named(tmp_path: Path, options: dict[str, str], message: str) -> None:
    make_clean(tmp_path / "s", count=40)
    with pytest.raises(BadOption, match=message):
        rows_of(tmp_path / "s", **options)


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no store: there is no commitlog"):
        rows_of(tmp_path)


def test_spark_finds_the_format_and_reads_the_golden_store(spark: SparkSession) -> None:
    frame = spark.read.format("orbitmq-store").option("broker", "broker-a").load(str(GOLDEN))
    found = [row.asDict() for row in frame.where("topic like 'Golden%'").collect()]
    direct = [row for row in rows_of(GOLDEN, broker="broker-a") if row["topic"].startswith("Golden")]
    assert len(found) == len(direct) > 900
    bodies = {(row["topic"], row["queue_id"], row["queue_offset"]): bytes(row["body"]) for row in found}
    for row in direct:
        assert bodies[row["topic"], row["queue_id"], row["queue_offset"]] == row["body"]
    few = frame.where("topic = 'GoldenBulk' and queue_offset between 10 and 12").select(
        "topic", "queue_offset"
    )
    assert {row.topic for row in few.collect()} == {"GoldenBulk"}
