"""The broker goes away while Spark reads: it comes back and nothing is missing, or the error names the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from orbitmq.spark.pipelines.archive import archive, counted
from orbitmq.wire.message import encode_record
from tests.spark.archived import archived_bodies
from tests.spark.fake_broker import FakeBroker

END = 300


def record(offset: int) -> bytes:
    return encode_record(
        topic="orders", body=b"%010d" % offset, queue_offset=offset, store_ms=1_700_000_000_000 + offset
    )


def read(spark: SparkSession, broker: FakeBroker, **options: str) -> DataFrame:
    given = {"namesrv": broker.addr, "subscribe": "orders", "columns": "body", **options}
    return spark.read.format("orbitmq").options(**given).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in frame.collect())


def test_a_broker_that_comes_back_is_read_on_from_where_it_was(spark: SparkSession) -> None:
    with FakeBroker(record, end=END) as broker:
        broker.hang_up_after = 4
        assert numbers(read(spark, broker)) == list(range(END))
        assert broker.hang_up_after is None, "it never went away"


def test_a_broker_that_stays_away_fails_the_query_by_name(spark: SparkSession) -> None:
    with FakeBroker(record, end=END) as broker:
        broker.hang_up_after, broker.stays_away = 4, True
        place = r"topic 'orders' on broker-a queue 0 cannot be read on from offset \d+ \(of 300\)"
        with pytest.raises(Exception, match=f"(?s){place}.*raise retryTimeoutMs"):
            read(spark, broker, retryTimeoutMs="300").collect()


def test_an_archive_shows_nothing_of_a_batch_it_could_not_read_and_the_next_run_has_it_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "archive"

    def run(broker: FakeBroker) -> None:
        archive(spark, ["orders"], str(path), namesrv=broker.addr, per_batch=200, retry_timeout="300ms")

    with FakeBroker(record, end=END) as broker:
        # The first batch gets through, the second does not.
        broker.hang_up_after, broker.stays_away = 8, True
        with pytest.raises(Exception, match="cannot be read on from offset"):
            run(broker)
    assert counted(spark, str(path)) == {"orders": 200}
    with FakeBroker(record, end=END) as broker:
        run(broker)
    assert counted(spark, str(path)) == {"orders": END}
    assert archived_bodies(path) == dict.fromkeys((b"%010d" % number for number in range(END)), 1)
