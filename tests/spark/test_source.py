"""`spark.read.format("orbitmq")` against a live broker, message by message."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from orbitmq.spark.batch import batch_slices
from orbitmq.spark.brokers import Brokers
from orbitmq.spark.filters import narrow
from orbitmq.spark.options import parse_read_options
from orbitmq.spark.pull_client import QueueSlice
from orbitmq.wire.compression import Compression, compress
from orbitmq.wire.fastjson import MessageQueue
from tests.spark.topics import Out, Topics, numbered
from tests.support.server_process import ServerProcess

TOPIC = "source-orders"
PER_QUEUE = 3000


@pytest.fixture(scope="module")
def middle_ms(topics: Topics) -> int:
    """Two queues, each half filled before and half after a moment, which is given."""
    topics.create(TOPIC, 2)
    for queue_id in range(2):
        topics.fill(TOPIC, queue_id, numbered(PER_QUEUE // 2, queue_id * PER_QUEUE, tag="early"))
    time.sleep(0.01)
    moment = time.time_ns() // 1_000_000
    time.sleep(0.01)
    for queue_id in range(2):
        start = queue_id * PER_QUEUE + PER_QUEUE // 2
        topics.fill(TOPIC, queue_id, numbered(PER_QUEUE // 2, start, tag="late"))
    return moment


class Reader:
    def __init__(self, spark: SparkSession, server: ServerProcess) -> None:
        self._spark, self._server = spark, server

    def __call__(self, topic: str = TOPIC, **options: Any) -> DataFrame:
        given = {"namesrv": self._server.namesrv, "subscribe": topic, **options}
        return (
            self._spark.read.format("orbitmq")
            .options(**{k: v for k, v in given.items() if v is not None})
            .load()
        )


@pytest.fixture(scope="module")
def read(spark: SparkSession, server: ServerProcess) -> Reader:
    return Reader(spark, server)


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body[:10]) for row in frame.select("body").collect())


@pytest.mark.usefixtures("middle_ms")
def test_every_message_is_there_once_with_all_its_columns(read: Reader, server: ServerProcess) -> None:
    rows = read().collect()
    assert len(rows) == 2 * PER_QUEUE
    by_number = {int(row.body[:10]): row for row in rows}
    assert sorted(by_number) == list(range(2 * PER_QUEUE))
    now = datetime.now()
    for number, row in by_number.items():
        queue_id, offset = divmod(number, PER_QUEUE)
        tag = "early" if offset < PER_QUEUE // 2 else "late"
        assert (row.topic, row.broker, row.queue_id, row.queue_offset) == (
            TOPIC,
            "broker-a",
            queue_id,
            offset,
        )
        assert (row.msg_id, row.tags, row["keys"]) == (f"{number:032X}", tag, f"k{number} all")
        assert row.properties["n"] == str(number)
        assert row.store_host == server.broker_addr
        assert row.born_host.startswith("127.0.0.1:")
        assert abs((now - row.store_time).total_seconds()) < 3600
        assert (row.reconsume_times, row.sys_flag, len(row.offset_msg_id)) == (0, 0, 32)


@pytest.mark.usefixtures("middle_ms")
def test_columns_can_be_chosen_by_option_or_by_schema(
    read: Reader, spark: SparkSession, server: ServerProcess
) -> None:
    assert read(columns="queue_offset,topic").columns == ["queue_offset", "topic"]
    chosen = spark.read.format("orbitmq").schema("tags string, body binary").option("namesrv", server.namesrv)
    frame = chosen.load(TOPIC)
    assert frame.columns == ["tags", "body"]
    assert frame.where("tags = 'late'").count() == PER_QUEUE


def test_ranges_by_time(read: Reader, middle_ms: int) -> None:
    frame = read(startingTimestamp=str(middle_ms), columns="body,tags")
    assert {row.tags for row in frame.select("tags").distinct().collect()} == {"late"}
    assert frame.count() == PER_QUEUE
    moment = datetime.fromtimestamp(middle_ms / 1000, UTC).isoformat()
    assert numbers(read(endingTimestamp=moment, columns="body"))[-1] == PER_QUEUE + PER_QUEUE // 2 - 1


@pytest.mark.usefixtures("middle_ms")
def test_ranges_by_offset_and_queue(read: Reader) -> None:
    start = json.dumps({TOPIC: {"broker-a": {"0": 2990, "1": -1}}})
    assert numbers(read(startingOffsets=start, columns="body")) == list(range(2990, 3000))
    end = json.dumps({TOPIC: {"0": 3, "1": 2}})
    assert numbers(read(endingOffsets=end, columns="body")) == [0, 1, 2, 3000, 3001]
    only = read(None, assign=json.dumps({TOPIC: [1]}), endingOffsets=json.dumps({TOPIC: {"1": 2}}))
    assert numbers(only) == [3000, 3001]


@pytest.mark.usefixtures("middle_ms")
def test_tags_are_filtered_at_the_broker(read: Reader) -> None:
    frame = read(tags="early || nothing", columns="body")
    assert numbers(frame) == [n for n in range(2 * PER_QUEUE) if n % PER_QUEUE < PER_QUEUE // 2]


@pytest.mark.usefixtures("middle_ms")
def test_small_reads_are_one_task_and_large_ones_are_cut(read: Reader) -> None:
    assert read(columns="body").rdd.getNumPartitions() == 1
    cut = read(columns="body", minPartitions="5")
    assert cut.rdd.getNumPartitions() >= 5
    assert numbers(cut) == list(range(2 * PER_QUEUE))
    assert read(columns="body", maxRecordsPerPartition="1000").rdd.getNumPartitions() == 6


def test_conditions_reach_the_source(server: ServerProcess, middle_ms: int) -> None:
    from pyspark.sql import datasource

    options = parse_read_options({"namesrv": server.namesrv, "subscribe": TOPIC}, streaming=False)
    queue = MessageQueue(TOPIC, "broker-a", 1)
    with Brokers(server.namesrv, 10.0) as brokers:
        few = narrow([datasource.EqualTo(("queue_id",), 1), datasource.GreaterThan(("queue_offset",), 2900)])
        assert batch_slices(brokers, options, few) == [QueueSlice(queue, 2901, 3000)]
        long_after = datetime.fromtimestamp(middle_ms / 1000 + 3600, UTC)
        assert (
            batch_slices(brokers, options, narrow([datasource.GreaterThan(("store_time",), long_after)]))
            == []
        )
        long_before = datetime.fromtimestamp(middle_ms / 1000 - 3600, UTC)
        assert (
            batch_slices(brokers, options, narrow([datasource.LessThan(("store_time",), long_before)])) == []
        )


def test_conditions_give_the_same_rows_as_without_push_down(
    read: Reader, spark: SparkSession, middle_ms: int
) -> None:
    frame = read(columns="body,queue_id,queue_offset,store_time,tags")
    moment = datetime.fromtimestamp(middle_ms / 1000)
    where = (
        (frame.queue_id == 1)
        & (frame.queue_offset >= 1490)
        & (frame.queue_offset < 1510)
        & (frame.tags == "late")
    )
    found = numbers(frame.where(where & (frame.store_time >= moment)))
    assert found == list(range(PER_QUEUE + 1500, PER_QUEUE + 1510))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        plain = read(columns="body,queue_id,queue_offset,store_time,tags")
        assert numbers(plain.where("queue_id = 1 and queue_offset between 1500 and 1509")) == found
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


@pytest.mark.usefixtures("middle_ms")
def test_the_running_broker_s_store_holds_the_same_rows(
    read: Reader, spark: SparkSession, server: ServerProcess, topics: Topics
) -> None:
    topics.create("source-both", 2)
    topics.fill("source-both", 1, numbered(500))
    through_broker = read("source-both").drop("broker")
    from_files = spark.read.format("orbitmq-store").option("subscribe", "source-both").load(str(server.data))
    found = {row.queue_offset: row for row in from_files.drop("broker").collect()}
    assert found == {row.queue_offset: row for row in through_broker.collect()}
    assert sorted(found) == list(range(500))


def test_compressed_and_odd_messages(read: Reader, topics: Topics) -> None:
    topics.create("source-odd", 1)
    bodies = []
    for kind in Compression:
        body = kind.name.encode() * 3000
        topics.send("source-odd", 0, Out(compress(body, kind)), sys_flag=kind.sys_flag)
        bodies.append(body)
    topics.send("source-odd", 0, Out(b"\x00\xff", {"ключ": "знач\U0001f600", "TAGS": "т"}), born_ms=0)
    rows = sorted(read("source-odd").collect(), key=lambda row: row.queue_offset)
    assert [bytes(row.body) for row in rows] == [*bodies, b"\x00\xff"]
    assert rows[-1].properties["ключ"] == "знач\U0001f600"
    assert rows[-1].tags == "т"
    assert rows[-1].msg_id == rows[-1].offset_msg_id, "without a unique id the offset id serves"


def test_several_topics_by_pattern(read: Reader, topics: Topics) -> None:
    for number in range(3):
        topics.create(f"source-many-{number}", 2)
        topics.fill(f"source-many-{number}", number % 2, numbered(10, 10 * number))
    frame = read(None, subscribePattern="source-many-[01]", columns="topic,body")
    assert numbers(frame) == list(range(20))
    assert read("source-many-0, source-many-2", columns="body").count() == 20


def test_an_empty_topic_is_an_empty_table(read: Reader, topics: Topics) -> None:
    topics.create("source-empty", 4)
    assert read("source-empty").count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"subscribe": "no-such-topic"},
            "option 'subscribe': topic 'no-such-topic' does not exist.*topic list",
        ),
        (
            {"subscribePattern": "no-such.*", "subscribe": None},
            "option 'subscribePattern': there is no topic to read",
        ),
        ({"startingOffsets": '{"source-orders":{'}, "option 'startingOffsets': this is not JSON"),
        (
            {"endingOffsets": '{"source-orders":{"0":"x"}}'},
            "option 'endingOffsets': 'x' for queue 0 .* no whole number",
        ),
        (
            {"startingOffsets": '{"source-orders":{"0":1}}'},
            "option 'startingOffsets': no number is given for",
        ),
        (
            {"startingOffsets": '{"source-orders":{"0":1,"1":99999}}'},
            "option 'startingOffsets': 99999 for source-orders/broker-a/1 is out of range: .* 0 to 3000",
        ),
        (
            {
                "startingOffsets": '{"source-orders":{"0":9,"1":0}}',
                "endingOffsets": '{"source-orders":{"0":5,"1":-1}}',
            },
            "option 'endingOffsets': source-orders/broker-a/0 would end at offset 5, before it begins at 9",
        ),
        (
            {"subscribe": None, "assign": '{"no-such-topic":[0]}'},
            "option 'assign': topic 'no-such-topic' does not exist",
        ),
        (
            {"subscribe": None, "assign": '{"source-orders":[7]}'},
            "option 'assign': topic 'source-orders' has no queue 7",
        ),
        ({"namesrv": "127.0.0.1:1", "retryTimeoutMs": "0"}, "no name server answers.*option namesrv"),
        (
            {"startingTimestamp": "99999999999999", "startingOffsetsByTimestampStrategy": "error"},
            "has no message stored",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.usefixtures("middle_ms")
def test_errors_name_what_is_wrong(read: Reader, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=f"(?s){message}"):
        read(**options).collect()
