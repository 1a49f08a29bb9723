"""Where reads begin and end, and how large a batch gets, with real Spark and a live broker, message by message."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.topics import Topics, numbered
from tests.support.commands import Commands
from tests.support.server_process import ServerProcess

LIMIT_S = 120

Run = Callable[..., list[list[int]]]


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body[:10]) for row in frame.select("body").collect())


@pytest.fixture
def read(spark: SparkSession, server: ServerProcess) -> Callable[..., list[int]]:
    def body(topic: str, **options: str) -> list[int]:
        reader = spark.read.format("orbitmq").options(namesrv=server.namesrv, subscribe=topic, **options)
        return numbers(reader.load())

    return body


@pytest.fixture
def run(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> Run:
    """Streams all that is there now; the numbers of each micro-batch that has some."""

    def body(topic: str, checkpoint: str = "checkpoint", take: Any = None, **options: str) -> list[list[int]]:
        given = {"namesrv": server.namesrv, "subscribe": topic, **options}
        if "startingOffsetsByTimestamp" not in options:
            given.setdefault("startingOffsets", "earliest")
        found: list[list[int]] = []

        def each(batch: DataFrame, _: int) -> None:
            batch.persist()
            found.append(numbers(batch))
            if take is not None:
                take(batch)
            batch.unpersist()

        query = (
            spark.readStream.format("orbitmq")
            .options(**given)
            .load()
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(LIMIT_S)
        finally:
            query.stop()
        return [batch for batch in found if batch]

    return body


def test_a_group_s_place_is_reported_by_a_stream_seen_by_admins_and_where_others_begin(
    run: Run,
    read: Callable[..., list[int]],
    topics: Topics,
    server: ServerProcess,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topics.create("PlaceGroup", 2)
    topics.fill("PlaceGroup", 0, numbered(60))
    topics.fill("PlaceGroup", 1, numbered(40, 1000))
    assert read("PlaceGroup", startingOffsets="committed", group="place_never") == [
        *range(60),
        *range(1000, 1040),
    ]
    assert run("PlaceGroup", group="place_group") == [[*range(60), *range(1000, 1040)]]
    topics.fill("PlaceGroup", 1, numbered(5, 2000))
    orbitmq = Commands(capsys, server.namesrv)
    shown = orbitmq.ok("group", "progress", "place_group", "--json").json
    places = {row["queue_id"]: (row["consumer_offset"], row["lag"]) for row in shown["queues"]}
    assert (shown["lag"], places) == (5, {0: (60, 0), 1: (40, 5)})
    # Another job that is new begins where the group is, in a batch and in a stream.
    assert read("PlaceGroup", startingOffsets="committed", group="place_group") == list(range(2000, 2005))
    assert run("PlaceGroup", "second", startingOffsets="committed", group="place_group") == [
        list(range(2000, 2005))
    ]
    assert read("PlaceGroup", startingOffsets="committed", group="place_group") == []


def test_committed_needs_a_group(read: Callable[..., list[int]], topics: Topics) -> None:
    topics.create("PlaceNoGroup", 1)
    with pytest.raises(Exception, match="(?s)option 'startingOffsets'.*group"):
        read("PlaceNoGroup", startingOffsets="committed")


def test_a_stream_whose_first_micro_batch_failed_does_not_turn_to_the_past(
    spark: SparkSession, server: ServerProcess, topics: Topics, run: Run, tmp_path: Path
) -> None:
    """The end of the queue, where the stream began, is another one when the job is mended and started again."""
    topics.create("PlaceFirst", 1)
    topics.fill("PlaceFirst", 0, numbered(40))

    def fails(batch: DataFrame, number: int) -> None:
        raise RuntimeError("there is something wrong with the target")

    frame = spark.readStream.format("orbitmq").options(namesrv=server.namesrv, subscribe="PlaceFirst").load()
    writer = frame.writeStream.foreachBatch(fails).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    try:
        with pytest.raises(Exception, match="something wrong with the target"):
            query.awaitTermination(LIMIT_S)
    finally:
        query.stop()
    topics.fill("PlaceFirst", 0, numbered(30, 1000))
    found = [number for batch in run("PlaceFirst", startingOffsets="latest") for number in batch]
    assert sorted(found) == list(range(1000, 1030))


def after_now_ms() -> int:
    """A moment that is later than all that was stored and not later than all that will be."""
    time.sleep(0.01)
    now = time.time_ns() // 1_000_000
    time.sleep(0.01)
    return now


def test_each_queue_from_and_to_its_own_time(
    read: Callable[..., list[int]], run: Run, topics: Topics
) -> None:
    topics.create("PlaceTimes", 2)
    moments = [after_now_ms()]
    for part in range(3):
        for queue_id in range(2):
            topics.fill("PlaceTimes", queue_id, numbered(100, 1000 * queue_id + 100 * part))
        moments.append(after_now_ms())
    start = json.dumps({"PlaceTimes": {"0": moments[1], "1": moments[2]}})
    end = json.dumps({"PlaceTimes": {"0": moments[2], "1": moments[3]}})
    both = {"startingOffsetsByTimestamp": start, "endingOffsetsByTimestamp": end}
    assert read("PlaceTimes", **both) == [*range(100, 200), *range(1200, 1300)]
    assert read("PlaceTimes", startingOffsetsByTimestamp=start) == [*range(100, 300), *range(1200, 1300)]
    assert read("PlaceTimes", endingOffsetsByTimestamp=start) == [*range(100), *range(1000, 1200)]
    assert run("PlaceTimes", startingOffsetsByTimestamp=start) == [[*range(100, 300), *range(1200, 1300)]]
    late = json.dumps({"PlaceTimes": {"0": moments[1], "1": moments[3]}})
    assert read("PlaceTimes", startingOffsetsByTimestamp=late) == list(range(100, 300))
    with pytest.raises(Exception, match="(?s)PlaceTimes/broker-a/1 has no message stored"):
        read("PlaceTimes", startingOffsetsByTimestamp=late, startingOffsetsByTimestampStrategy="error")


def test_bytes_limit_the_batches_of_a_real_stream(run: Run, topics: Topics) -> None:
    topics.create("PlaceBytes", 2)
    for queue_id in range(2):
        topics.fill("PlaceBytes", queue_id, numbered(200, 1000 * queue_id, size=2000))
    batches = run("PlaceBytes", maxBytesPerTrigger=str(200_000))
    assert sorted(number for batch in batches for number in batch) == [*range(200), *range(1000, 1200)]
    # A message takes somewhat more than its body, so fewer than 100 fit.
    assert all(80 <= len(batch) <= 100 for batch in batches[:-1]), [len(batch) for batch in batches]
    assert 5 <= len(batches) <= 6


def test_more_tasks_than_planned(
    run: Run, spark: SparkSession, server: ServerProcess, topics: Topics
) -> None:
    topics.create("PlaceTasks", 2)
    topics.fill("PlaceTasks", 0, numbered(900))
    topics.fill("PlaceTasks", 1, numbered(100, 1000))
    tasks: list[list[int]] = []

    def of_tasks(frame: DataFrame) -> None:
        counts = frame.groupBy(F.spark_partition_id().alias("task")).count().collect()
        tasks.append(sorted(row["count"] for row in counts))

    assert run("PlaceTasks", take=of_tasks) == [[*range(900), *range(1000, 1100)]]
    assert run("PlaceTasks", "more", take=of_tasks, minPartitions="5") == [[*range(900), *range(1000, 1100)]]
    frame = (
        spark.read.format("orbitmq")
        .options(namesrv=server.namesrv, subscribe="PlaceTasks", minPartitions="5")
        .load()
    )
    of_tasks(frame)
    assert tasks == [[1000], [200] * 5, [200] * 5]
