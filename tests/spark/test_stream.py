"""`spark.readStream.format("orbitmq")` against a live broker: every message once, limits, growth, progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from orbitmq.spark.batch import SlicePartition
from orbitmq.spark.brokers import Brokers
from orbitmq.spark.errors import DataLost
from orbitmq.spark.offsets import from_json, to_json
from orbitmq.spark.places import committed
from orbitmq.wire.fastjson import MessageQueue
from tests.spark.fake_broker import FakeBroker
from tests.spark.stream_readers import Make, a_hundred, stream_readers
from tests.spark.topics import Topics, numbered
from tests.support.server_process import ServerProcess

Q0 = MessageQueue("orders", "broker-a", 0)


class Stream:
    """Runs a stream until all that is there now is read, from a checkpoint that is kept between runs."""

    def __init__(self, spark: SparkSession, server: ServerProcess, directory: Path, topic: str) -> None:
        self._spark, self._server = spark, server
        self._checkpoint = str(directory / "checkpoint")
        self._topic = topic
        self.batches: list[list[int]] = []

    def run(self, **options: Any) -> list[list[int]]:
        """The numbers of each micro-batch of this run."""
        given = {"namesrv": self._server.namesrv, "subscribe": self._topic, "startingOffsets": "earliest"}
        given |= {"columns": "body", **options}
        frame = self._spark.readStream.format("orbitmq").options(**given).load()
        found: list[list[int]] = []

        def take(batch: DataFrame, _: int) -> None:
            found.append(sorted(int(row.body[:10]) for row in batch.collect()))

        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [batch for batch in found if batch]


@pytest.fixture
def stream(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> Callable[[str], Stream]:
    return lambda topic: Stream(spark, server, tmp_path, topic)


def test_a_stream_goes_on_where_it_was(
    stream: Callable[[str], Stream], topics: Topics, server: ServerProcess
) -> None:
    topics.create("stream-on", 2)
    topics.fill("stream-on", 0, numbered(100))
    topics.fill("stream-on", 1, numbered(50, 100))
    running = stream("stream-on")
    assert running.run(group="spark-job") == [list(range(150))]
    topics.fill("stream-on", 1, numbered(20, 150))
    assert running.run(group="spark-job") == [list(range(150, 170))]
    queues = [MessageQueue("stream-on", "broker-a", number) for number in range(2)]
    with Brokers(server.namesrv, 10.0) as brokers:
        assert committed(brokers, "spark-job", queues) == {queues[0]: 100, queues[1]: 70}


def test_limits_cut_a_run_into_batches(stream: Callable[[str], Stream], topics: Topics) -> None:
    topics.create("stream-limits", 2)
    topics.fill("stream-limits", 0, numbered(300))
    topics.fill("stream-limits", 1, numbered(100, 300))
    batches = stream("stream-limits").run(maxOffsetsPerTrigger="150")
    assert [len(batch) for batch in batches] == [150, 150, 100]
    assert sorted(number for batch in batches for number in batch) == list(range(400))


def test_new_queues_are_read_from_their_beginning(stream: Callable[[str], Stream], topics: Topics) -> None:
    topics.create("stream-grow", 1)
    topics.fill("stream-grow", 0, numbered(10))
    growing = stream("stream-grow")
    assert growing.run() == [list(range(10))]
    topics.create("stream-grow", 3)
    topics.fill("stream-grow", 2, numbered(10, 10))
    assert sorted(n for batch in growing.run() for n in batch) == list(range(10, 20))


def test_a_continuous_query_sees_new_messages(
    spark: SparkSession, topics: Topics, server: ServerProcess
) -> None:
    topics.create("stream-live", 1)
    frame = spark.readStream.format("orbitmq").option("namesrv", server.namesrv).load("stream-live")
    query = frame.select("body").writeStream.format("memory").queryName("live").start()
    try:
        deadline = time.monotonic() + 60
        while query.lastProgress is None and time.monotonic() < deadline:
            time.sleep(0.05)
        topics.fill("stream-live", 0, numbered(25))
        while spark.table("live").count() < 25 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sorted(int(row.body[:10]) for row in spark.table("live").collect()) == list(range(25))
        latest = query.lastProgress["sources"][0]["latestOffset"]
        table = json.loads(latest) if isinstance(latest, str) else latest
        assert from_json(table) == {MessageQueue("stream-live", "broker-a", 0): 25}
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("topic", "options", "message"),
    [
        ("stream-nowhere", {}, "topic 'stream-nowhere' does not exist.*orbitmq topic list"),
        (
            "stream-wrong",
            {"startingOffsets": '{"stream-wrong":'},
            "option 'startingOffsets': this is not JSON",
        ),
        (
            "stream-wrong",
            {"startingOffsets": '{"stream-wrong":{"0":77}}'},
            "option 'startingOffsets': 77 for stream-wrong/broker-a/0 is out of range: .* 0 to 5",
        ),
        ("stream-wrong", {"endingOffsets": "latest"}, "option 'endingOffsets': a stream has no end"),
    ],
    ids=["topic", "json", "range", "end"],
)
def test_a_stream_that_cannot_begin_says_why(
    stream: Callable[[str], Stream], topics: Topics, topic: str, options: dict[str, str], message: str
) -> None:
    topics.create("stream-wrong", 1)
    if options.get("startingOffsets", "").endswith("}}"):
        topics.fill("stream-wrong", 0, numbered(5))
    with pytest.raises(Exception, match=f"(?s){message}"):
        stream(topic).run(retryTimeoutMs="0", **options)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with a_hundred() as fake:
        yield fake


@pytest.fixture
def reader(broker: FakeBroker) -> Iterator[Make]:
    with stream_readers(broker.addr) as make:
        yield make


def test_progress_is_reported_as_a_group(broker: FakeBroker, reader: Make) -> None:
    made = reader(group="g")
    made.commit(to_json({Q0: 40}))
    assert broker.committed == {("g", 0): 40}
    made.latestOffset(to_json({Q0: 60}), ReadAllAvailable())
    assert broker.committed == {("g", 0): 60}, "asked for more: everything before is done"


def test_a_batch_is_fully_described_by_its_offsets(broker: FakeBroker, reader: Make) -> None:
    made = reader()
    parts = made.partitions(to_json({Q0: 10}), to_json({Q0: 60}))
    broker.end, broker.first = 500, 5
    again = reader().partitions(to_json({Q0: 10}), to_json({Q0: 60}))
    slices = [part.slices for part in parts if isinstance(part, SlicePartition)]
    assert slices == [part.slices for part in again if isinstance(part, SlicePartition)]
    assert broker.seen == [], "planning a batch asks nobody"


def test_enough_must_wait_or_time_must_pass(broker: FakeBroker, reader: Make) -> None:
    patient = reader(minOffsetsPerTrigger="50", maxTriggerDelay="1h")
    limit = patient.getDefaultReadLimit()
    assert from_json(patient.latestOffset(to_json({Q0: 60}), limit)) == {Q0: 60}
    broker.end = 110
    assert from_json(patient.latestOffset(to_json({Q0: 60}), limit)) == {Q0: 110}
    hasty = reader(minOffsetsPerTrigger="50", maxTriggerDelay="0ms")
    assert from_json(hasty.latestOffset(to_json({Q0: 105}), limit)) == {Q0: 110}


def test_bytes_limit_a_batch(broker: FakeBroker, reader: Make) -> None:
    made = reader(maxBytesPerTrigger="2000")
    end = from_json(made.latestOffset(to_json({Q0: 0}), made.getDefaultReadLimit()))
    assert 8 <= end[Q0] <= 11  # a record has about 200 bytes
    assert from_json(made.latestOffset(to_json({Q0: 0}), ReadAllAvailable())) == {Q0: 100}


def test_a_target_is_kept_whatever_comes_later(broker: FakeBroker, reader: Make) -> None:
    made = reader(maxOffsetsPerTrigger="60")
    made.prepareForTriggerAvailableNow()
    broker.end = 900
    first = made.latestOffset(to_json({Q0: 0}), ReadMaxRows(60))
    assert from_json(first) == {Q0: 60}
    second = made.latestOffset(first, ReadMaxRows(60))
    assert from_json(second) == {Q0: 100}
    assert made.latestOffset(second, ReadMaxRows(60)) == second


def test_cleaned_messages_stop_the_stream_and_are_named(broker: FakeBroker, reader: Make) -> None:
    broker.first = 30
    with pytest.raises(DataLost, match="offsets 10 to 29"):
        reader().latestOffset(to_json({Q0: 10}), ReadAllAvailable())
    going_on = reader(failOnDataLoss="false")
    assert from_json(going_on.latestOffset(to_json({Q0: 10}), ReadAllAvailable())) == {Q0: 100}


def test_a_topic_made_anew_stops_the_stream_or_is_read_from_its_beginning(
    broker: FakeBroker, reader: Make
) -> None:
    broker.end = 7
    with pytest.raises(DataLost, match="offsets 7 to 79.*made anew"):
        reader().latestOffset(to_json({Q0: 80}), ReadAllAvailable())
    going_on = reader(failOnDataLoss="false")
    end = going_on.latestOffset(to_json({Q0: 80}), ReadAllAvailable())
    (part,) = going_on.partitions(to_json({Q0: 80}), end)
    assert isinstance(part, SlicePartition)
    assert [(piece.start, piece.end) for piece in part.slices] == [(0, 7)]


def test_a_broker_that_is_away_holds_up_nothing_else(broker: FakeBroker, reader: Make) -> None:
    made = reader()
    start = to_json({Q0: 80})
    assert from_json(made.latestOffset(start, ReadAllAvailable())) == {Q0: 100}
    broker.members = {0: "127.0.0.1:1"}
    made._queues_since = float("-inf")
    assert from_json(made.latestOffset(start, ReadAllAvailable())) == {Q0: 80}, (
        "nothing new can be known, and nothing is lost"
    )
    broker.members = None
    assert from_json(made.latestOffset(start, ReadAllAvailable())) == {Q0: 100}
