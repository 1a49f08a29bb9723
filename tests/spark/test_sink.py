"""`df.write` and `df.writeStream` with real Spark against a live broker, checked message by message."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.reading_back import bodies, messages, open_halves
from tests.spark.topics import Topics, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.server_process import ServerProcess

SCHEMA = "topic string, body string, tags string, keys array<string>, properties map<string,string>, order_key string"


def write(rows: DataFrame, server: ServerProcess, **options: str) -> None:
    rows.write.format("orbitmq").mode("append").options(namesrv=server.namesrv, **options).save()


def test_every_row_is_one_message_with_all_its_columns(
    spark: SparkSession, server: ServerProcess, topics: Topics
) -> None:
    topics.create("SinkColumns", 4)
    rows = [
        ("SinkColumns", f"body {n}", f"tag{n % 3}", [f"k{n}", "all"], {"n": str(n)}, f"o{n % 5}")
        for n in range(500)
    ]
    write(spark.createDataFrame(rows, SCHEMA).repartition(3), server)
    found = {message.body.decode(): message for message in messages(server.namesrv, "SinkColumns")}
    assert len(found) == 500
    for _, body, tag, keys, properties, _ in rows:
        message = found[body]
        assert (message.tags, message.key_list) == (tag, keys)
        assert message.properties["n"] == properties["n"]
    queues = {
        order: {found[row[1]].queue_id for row in rows if row[5] == order}
        for order in {row[5] for row in rows}
    }
    assert all(len(ids) == 1 for ids in queues.values())


def test_a_topic_for_all_rows_and_binary_bodies(
    spark: SparkSession, server: ServerProcess, topics: Topics
) -> None:
    topics.create("SinkBinary", 2)
    rows = spark.createDataFrame([(bytes([n, 0, 255]),) for n in range(50)], "body binary")
    write(rows, server, topic="SinkBinary")
    assert bodies(server.namesrv, "SinkBinary") == Counter(bytes([n, 0, 255]) for n in range(50))


def test_a_job_with_a_version_is_written_once(
    spark: SparkSession, server: ServerProcess, topics: Topics
) -> None:
    topics.create("SinkVersion", 2)
    rows = spark.createDataFrame([("a",), ("b",)], "body string")
    for _ in range(2):
        write(rows, server, topic="SinkVersion", txnAppId="nightly", txnVersion="4")
    write(rows, server, topic="SinkVersion", txnAppId="nightly", txnVersion="3")
    assert bodies(server.namesrv, "SinkVersion") == Counter({b"a": 1, b"b": 1})
    write(rows, server, topic="SinkVersion", txnAppId="nightly", txnVersion="5")
    assert bodies(server.namesrv, "SinkVersion") == Counter({b"a": 2, b"b": 2})
    assert open_halves(server.namesrv, "SPARK_SINK_nightly") == 0


def test_a_row_that_does_not_fit_is_named_and_nothing_becomes_visible(
    spark: SparkSession, server: ServerProcess, topics: Topics
) -> None:
    topics.create("SinkTooLong", 2)
    rows = spark.createDataFrame(
        [("x" * (10 if n != 7 else 200), f"key{n}") for n in range(10)], "body string, keys string"
    )
    with pytest.raises(
        Exception, match=r"row 7 of task 0 \(topic SinkTooLong, keys key7\): the body has 200 bytes"
    ):
        write(
            rows.coalesce(1),
            server,
            topic="SinkTooLong",
            maxBodyBytes="100",
            txnAppId="toolong",
            txnVersion="0",
        )
    assert bodies(server.namesrv, "SinkTooLong") == Counter()


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("SELECT 1 AS body", "column 'body' has the type int, allowed is binary or string"),
        (
            "SELECT 'a' AS body, 'b' AS colour",
            r"column 'colour' \(string\) is not one that the orbitmq sink writes",
        ),
        ("SELECT 'a' AS body, map('a', 1) AS properties", "column 'properties' has the type map<string,int>"),
        ("SELECT 'a' AS tags", "there is no column 'body'"),
        (
            "SELECT 'a' AS body, '1' AS deliver_at",
            "column 'deliver_at' has the type string, allowed is timestamp",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_column(
    spark: SparkSession, server: ServerProcess, sql: str, problem: str
) -> None:
    with pytest.raises(Exception, match=problem):
        write(spark.sql(sql), server, topic="SinkNever")


def test_overwriting_a_topic_is_refused(spark: SparkSession, server: ServerProcess) -> None:
    rows = spark.sql("SELECT 'a' AS body")
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        rows.write.format("orbitmq").mode("overwrite").options(
            namesrv=server.namesrv, topic="SinkNever"
        ).save()


def test_a_stream_that_sends_its_whole_table_again_is_refused(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    counts = spark.readStream.format("rate").load().groupBy("value").count()
    query = (
        counts.selectExpr("cast(value AS string) AS body")
        .writeStream.format("orbitmq")
        .outputMode("complete")
        .options(namesrv=server.namesrv, topic="SinkComplete", checkpointLocation=str(tmp_path / "c"))
    )
    with pytest.raises(Exception, match="option 'outputMode': complete would send the whole table again"):
        query.start().awaitTermination(60)


def test_a_task_that_fails_half_way_and_is_tried_again_writes_its_rows_once(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("SinkRetried", 2)
    marker = str(tmp_path / "failed-once")

    def fails_once(rows):  # type: ignore[no-untyped-def]
        import os

        yield from rows
        if not os.path.exists(marker):
            with open(marker, "w"):
                raise RuntimeError("this task dies after its rows were handed on")

    rows = (
        spark.range(0, 300, 1, 2)
        .selectExpr("cast(id AS string) AS body")
        .mapInArrow(fails_once, "body string")
    )
    try:
        write(rows, server, topic="SinkRetried", txnAppId="retried", txnVersion="0")
    except Exception:
        # A local session does not try tasks again: the user runs the job once more.
        write(rows, server, topic="SinkRetried", txnAppId="retried", txnVersion="0")
    assert bodies(server.namesrv, "SinkRetried") == Counter(str(n).encode() for n in range(300))
    assert open_halves(server.namesrv, "SPARK_SINK_retried") == 0


def test_delayed_rows(spark: SparkSession, server: ServerProcess, topics: Topics) -> None:
    topics.create("SinkDelayed", 1)
    due = datetime.now(UTC) + timedelta(seconds=4)
    rows = spark.createDataFrame([("later", due)], "body string, deliver_at timestamp")
    write(rows, server, topic="SinkDelayed")
    assert bodies(server.namesrv, "SinkDelayed") == Counter()
    deadline = time.monotonic() + 15
    while not (found := messages(server.namesrv, "SinkDelayed")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [message.body for message in found] == [b"later"]
    assert found[0].store_ms >= due.timestamp() * 1000 - 1000


def test_a_stream_from_topic_to_topic_goes_on_from_its_checkpoint(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("SinkStreamIn", 2)
    topics.create("SinkStreamOut", 2)

    def run() -> None:
        rows = (
            spark.readStream.format("orbitmq")
            .options(
                namesrv=server.namesrv, subscribe="SinkStreamIn", columns="body", maxOffsetsPerTrigger="400"
            )
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            rows.writeStream.format("orbitmq")
            .options(namesrv=server.namesrv, topic="SinkStreamOut", checkpointLocation=str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    topics.fill("SinkStreamIn", 0, numbered(700))
    run()
    topics.fill("SinkStreamIn", 1, numbered(300, 700))
    run()
    expected = Counter(message.body for message in numbered(1000))
    assert bodies(server.namesrv, "SinkStreamOut") == expected
    # As after a crash between the sink's commit and Spark's own record of it: the last batch is done again.
    commits = sorted((tmp_path / "cp" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (tmp_path / "cp" / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run()
    assert bodies(server.namesrv, "SinkStreamOut") == expected


def test_at_least_once_is_the_faster_choice(
    spark: SparkSession, server: ServerProcess, topics: Topics
) -> None:
    topics.create("SinkPlain", 2)
    write(
        spark.range(100).selectExpr("cast(id AS string) AS body"),
        server,
        topic="SinkPlain",
        delivery="at-least-once",
    )
    assert bodies(server.namesrv, "SinkPlain") == Counter(str(n).encode() for n in range(100))
