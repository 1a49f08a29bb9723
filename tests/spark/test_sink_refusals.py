"""What the sink refuses, with nothing visible: topics that nobody has, and tables of streams that are no messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.reading_back import bodies
from tests.spark.topics import Topics, numbered
from tests.support.commands import Commands
from tests.support.server_process import ServerProcess

LIMIT_S = 120


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that makes no topic by itself."""
    directory = tmp_path_factory.mktemp("strict")
    with ServerProcess(directory, flushDiskType="ASYNC_FLUSH", autoCreateTopicEnable=False) as running:
        filler = Topics(running.broker_addr)
        filler.create("RefusedKnown", 2)
        filler.close()
        yield running


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_an_unknown_topic_is_named(spark: SparkSession, strict: ServerProcess, delivery: str) -> None:
    rows = spark.range(0, 40, 1, 2).selectExpr("cast(id AS string) AS body")
    writer = rows.write.format("orbitmq").mode("append")
    with pytest.raises(Exception, match="(?s)topic 'RefusedUnknown' does not exist"):
        writer.options(namesrv=strict.namesrv, topic="RefusedUnknown", delivery=delivery).save()


def test_one_row_to_an_unknown_topic_and_nothing_of_the_batch_is_visible(
    spark: SparkSession, strict: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = "if(id = 250, 'RefusedUnknown', 'RefusedKnown') AS topic"
    rows = spark.range(0, 400, 1, 4).selectExpr("cast(id AS string) AS body", topic)
    writer = rows.write.format("orbitmq").mode("append").option("namesrv", strict.namesrv)
    with pytest.raises(Exception, match="(?s)topic 'RefusedUnknown' does not exist"):
        writer.save()
    assert not bodies(strict.namesrv, "RefusedKnown")
    listed = Commands(capsys, strict.namesrv).ok("topic", "list", "--json").json
    assert "RefusedUnknown" not in str(listed)
    # The same connection of the cluster takes the rows that it can take.
    rows.where("id <> 250").write.format("orbitmq").mode("append").option("namesrv", strict.namesrv).save()
    assert bodies(strict.namesrv, "RefusedKnown") == {str(n).encode(): 1 for n in range(400) if n != 250}


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (["body", "queue_id AS partition"], "column 'partition' .int. is not one that the orbitmq sink"),
        (["body", "queue_offset AS tags"], "column 'tags' has the type bigint, allowed is string"),
        (["queue_offset AS body"], "column 'body' has the type bigint, allowed is binary or string"),
        (["body", "store_time AS order_key"], "column 'order_key' has the type timestamp"),
        (["tags"], "there is no column 'body'"),
    ],
)
def test_a_stream_whose_table_does_not_fit_is_refused_by_column(
    spark: SparkSession,
    server: ServerProcess,
    topics: Topics,
    tmp_path: Path,
    columns: list[str],
    problem: str,
) -> None:
    topics.create("RefusedIn", 1)
    topics.create("RefusedOut", 1)
    topics.fill("RefusedIn", 0, numbered(3))
    rows: DataFrame = (
        spark.readStream.format("orbitmq")
        .options(namesrv=server.namesrv, subscribe="RefusedIn", startingOffsets="earliest")
        .load()
        .selectExpr(*columns)
    )
    options = {"namesrv": server.namesrv, "topic": "RefusedOut", "checkpointLocation": str(tmp_path / "cp")}
    writer = rows.writeStream.format("orbitmq").options(**options).trigger(availableNow=True)
    with pytest.raises(Exception, match=f"(?s){problem}"):
        writer.start().awaitTermination(LIMIT_S)
    assert not bodies(server.namesrv, "RefusedOut")
