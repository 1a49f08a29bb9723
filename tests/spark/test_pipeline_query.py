"""`query` over an archive and what is live: nothing is counted twice, and nothing is missing without a word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.cli.main import main
from orbitmq.client.errors import NotFound
from orbitmq.spark.errors import SourceError
from orbitmq.spark.pipelines.archive import archive
from orbitmq.spark.pipelines.query import query
from orbitmq.wire.message import encode_record
from orbitmq.wire.properties import encode_properties
from tests.spark.fake_broker import FakeBroker
from tests.spark.topics import Topics, numbered
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS = (
    "SELECT topic, count(*) AS n, count(DISTINCT body) AS bodies FROM messages GROUP BY topic ORDER BY topic"
)


def record(generation: str) -> Callable[[int], bytes]:
    def made(offset: int) -> bytes:
        return encode_record(
            topic="orders",
            body=f"{generation}{offset}".encode(),
            queue_offset=offset,
            store_ms=1_700_000_000_000 + offset,
            properties=encode_properties({"UNIQ_KEY": f"{generation}{offset:030X}"}),
        )

    return made


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "archive")


def counts(
    spark: SparkSession, namesrv: str, place: str, names: Sequence[str] = ("orders",), **more: Any
) -> dict[str, tuple[int, int]]:
    report = query(spark, COUNTS, names, namesrv=namesrv, archive=place, **more)
    return {row["topic"]: (row["n"], row["bodies"]) for row in report.rows}


@pytest.mark.parametrize("checkpoint", [True, False], ids=["with its checkpoint", "without"])
def test_what_was_cleaned_before_it_was_archived_is_an_error_that_names_it(
    spark: SparkSession, place: str, capsys: pytest.CaptureFixture[str], checkpoint: bool
) -> None:
    with FakeBroker(record("a"), end=100) as broker:
        archive(spark, ["orders"], place, namesrv=broker.addr)
        if not checkpoint:
            shutil.rmtree(f"{place}/_checkpoint")
        broker.first, broker.end = 100, 120
        assert counts(spark, broker.addr, place) == {"orders": (120, 120)}, "cleaned after it was archived"
        broker.first, broker.end = 130, 150
        with pytest.raises(
            SourceError, match="neither in the archive nor live: offsets 100 to 129 of orders/broker-a/0"
        ):
            counts(spark, broker.addr, place)
        words = ["spark", "query", COUNTS, "-t", "orders", "--archive", place, "-n", broker.addr]
        assert main(words) == 1
        assert "(here: --accept-data-loss)" in capsys.readouterr().err
        assert main([*words, "--accept-data-loss", "--json"]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["rows"][0]["n"] == 120
        assert "offsets 100 to 129" in printed.err


def test_what_a_filter_left_out_of_the_archive_is_no_hole(spark: SparkSession, place: str) -> None:
    with FakeBroker(record("a"), end=100) as broker:
        archive(spark, ["orders"], place, namesrv=broker.addr, tags="none")
        broker.first, broker.end = 90, 110
        assert counts(spark, broker.addr, place) == {"orders": (10, 10)}


def test_a_topic_that_was_made_anew_is_read_from_its_first_message(spark: SparkSession, place: str) -> None:
    with FakeBroker(record("a"), end=100) as broker:
        archive(spark, ["orders"], place, namesrv=broker.addr)
        broker.end = 60
        assert counts(spark, broker.addr, place) == {"orders": (100, 100)}, "only a member that lags"
        broker.record = record("b")
        assert counts(spark, broker.addr, place) == {"orders": (160, 160)}


def test_a_topic_that_is_gone_is_read_from_the_archive(
    spark: SparkSession, server: ServerProcess, topics: Topics, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("QueryGone", "QueryKept"):
        topics.create(name, 1)
        topics.fill(name, 0, numbered(10))
    archive(spark, ["Query(Gone|Kept)"], place, namesrv=server.namesrv)
    topics.delete("QueryGone")
    topics.fill("QueryKept", 0, numbered(5, 10))
    both = {"QueryGone": (10, 10), "QueryKept": (15, 15)}
    assert counts(spark, server.namesrv, place, ["QueryGone,QueryKept"]) == both
    assert counts(spark, server.namesrv, place, ["Query(Gone|Kept)"]) == both
    common = ["-t", "QueryGone", "--archive", place, "-n", server.namesrv]
    assert main(["spark", "query", COUNTS, *common]) == 0
    printed = capsys.readouterr()
    assert "QueryGone  10" in printed.out and "in the archive only" in printed.err
    with pytest.raises(NotFound, match="'QueryNever' does not exist, and the archive has nothing of it"):
        counts(spark, server.namesrv, place, ["QueryNever"])


def test_an_archive_without_a_message_yet(
    spark: SparkSession, server: ServerProcess, topics: Topics, place: str
) -> None:
    topics.create("QueryEmpty", 1)
    report = archive(spark, ["QueryEmpty"], place, namesrv=server.namesrv)
    assert (report.messages, report.in_archive) == (0, {})
    topics.fill("QueryEmpty", 0, numbered(5))
    assert counts(spark, server.namesrv, place, ["QueryEmpty"]) == {"QueryEmpty": (5, 5)}
    with pytest.raises(Exception, match="PATH_NOT_FOUND"):
        counts(spark, server.namesrv, f"{place}-mistyped", ["QueryEmpty"])
