"""Tables read in columns by Spark's Java side: the same rows, fewer columns, and no trouble where it cannot be had."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from orbitmq.spark import extension
from orbitmq.spark.extension import EXTENSION, SETTING, extension_jar, extension_settings, is_in_columns
from orbitmq.spark.java import find_java
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.compression import Compression, compress
from tests.spark.topics import Out, Topics, numbered
from tests.support.server_process import ServerProcess
from tests.support.stores import GOLDEN

Load = Callable[[], DataFrame]
COUNT = 600


@contextmanager
def in_rows(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(SETTING, "false")
    try:
        yield
    finally:
        spark.conf.unset(SETTING)


def read_columns(table: DataFrame) -> list[str]:
    """What the plan reads of its one table."""
    plan: Any = table._jdf.queryExecution()
    (columns,) = re.findall(r"BatchScan \S+?\[(.*?)\] \(Python", plan.executedPlan().toString())
    return re.findall(r"(\w+)#", columns)


def as_rows(table: DataFrame) -> list[str]:
    return sorted(repr(sorted(row.asDict().items())) for row in table.collect())


@pytest.fixture(scope="module")
def mixed_topic(topics: Topics) -> str:
    """Two queues of plain messages, and one with compressed ones, without tags, keys or properties between them."""
    topics.create("InColumns", 3)
    topics.fill("InColumns", 0, numbered(COUNT, tag="a"))
    topics.fill("InColumns", 1, numbered(COUNT, COUNT, tag="b", size=2000))
    for number in range(20):
        body = compress(b"packed %d" % number * 50, Compression.ZLIB)
        topics.send("InColumns", 2, Out(body), sys_flag=SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB)
        topics.send("InColumns", 2, Out(b"", {"TAGS": "c"}))
    return "InColumns"


@pytest.fixture(params=["broker", "store"])
def load(
    request: pytest.FixtureRequest, spark: SparkSession, server: ServerProcess, mixed_topic: str
) -> Load:
    if request.param == "store":
        return lambda: spark.read.format("orbitmq-store").load(str(GOLDEN))
    reader = spark.read.format("orbitmq").options(namesrv=server.namesrv, subscribe=mixed_topic)
    return reader.load


def test_every_column_is_the_same_either_way(spark: SparkSession, load: Load) -> None:
    with in_rows(spark):
        plain = load()
        assert not is_in_columns(plain)
        expected = as_rows(plain)
    assert is_in_columns(load())
    assert len(expected) > COUNT
    assert as_rows(load()) == expected


Query = Callable[[DataFrame], DataFrame]
QUERIES: dict[str, tuple[Query, list[str]]] = {
    "count": (lambda t: t.groupBy().count(), ["queue_id"]),
    "one": (lambda t: t.select("tags"), ["tags"]),
    "order": (lambda t: t.select("tags", "queue_id", "tags", "body"), ["queue_id", "body", "tags"]),
    "sum": (lambda t: t.selectExpr("sum(length(body))"), ["body"]),
    "condition": (
        lambda t: t.where("store_time > timestamp'2020-01-01' and length(body) > 3").select("keys"),
        ["body", "keys", "store_time"],
    ),
    "pushed": (lambda t: t.where("queue_id = 1 and queue_offset >= 5").groupBy().count(), None),  # type: ignore[dict-item]
    "property": (lambda t: t.selectExpr("properties['n']", "size(properties)"), ["properties"]),
    "group": (lambda t: t.groupBy("topic", "tags").agg(F.max("born_time")), ["topic", "tags", "born_time"]),
    "udf": (lambda t: t.select(F.upper("msg_id"), F.hex("body")), ["msg_id", "body"]),
    "arrow": (
        lambda t: t.select("tags", "body").mapInArrow(lambda given: given, "tags string, body binary"),
        ["tags", "body"],
    ),
    "distinct": (lambda t: t.select("queue_id", "sys_flag").distinct(), ["queue_id", "sys_flag"]),
}


@pytest.mark.parametrize("name", QUERIES)
def test_only_what_a_query_needs_is_read_and_its_answer_is_the_same(
    spark: SparkSession, load: Load, name: str
) -> None:
    query, columns = QUERIES[name]
    with in_rows(spark):
        expected = as_rows(query(load()))
    table = query(load())
    if columns is not None:
        assert sorted(read_columns(table)) == sorted(columns)
    assert as_rows(table) == expected
    assert expected


def test_given_columns_are_the_most_that_is_read(
    spark: SparkSession, server: ServerProcess, mixed_topic: str
) -> None:
    reader = spark.read.format("orbitmq").options(namesrv=server.namesrv, subscribe=mixed_topic)
    assert read_columns(reader.option("columns", "tags,keys").load().groupBy().count()) == ["tags", "keys"]
    assert read_columns(reader.schema("body binary, tags string").load().select("tags")) == ["tags"]


def test_each_action_reads_what_is_there_then(
    spark: SparkSession, server: ServerProcess, topics: Topics
) -> None:
    """In rows Spark keeps what it planned for the first one."""
    topics.create("Growing", 1)
    topics.fill("Growing", 0, numbered(10))
    table = spark.read.format("orbitmq").options(namesrv=server.namesrv, subscribe="Growing").load()
    assert table.count() == 10
    topics.fill("Growing", 0, numbered(5, 10))
    assert table.count() == 15
    assert table.join(table.select("queue_offset"), "queue_offset").count() == 15
    kept = table.select("body").cache()
    assert kept.count() == 15
    topics.fill("Growing", 0, numbered(1, 15))
    assert kept.count() == 15
    kept.unpersist()


def test_a_query_that_stops_early_leaves_nothing_behind(spark: SparkSession, load: Load) -> None:
    table = load()
    for _ in range(25):
        assert len(table.limit(3).collect()) == 3
    assert table.count() > COUNT


def test_a_file_of_the_table_s_columns_is_written(spark: SparkSession, load: Load, tmp_path: Path) -> None:
    load().write.parquet(str(tmp_path / "out"))
    assert as_rows(spark.read.parquet(str(tmp_path / "out"))) == as_rows(load())


def test_streams_give_the_same_either_way(
    spark: SparkSession, server: ServerProcess, mixed_topic: str, tmp_path: Path
) -> None:
    def read(name: str) -> tuple[list[str], int]:
        table = (
            spark.readStream.format("orbitmq")
            .options(namesrv=server.namesrv, subscribe=mixed_topic, startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", 500)
            .load()
        )
        found: list[str] = []

        def take(batch: DataFrame, number: int) -> None:
            found.extend(as_rows(batch))

        query = (
            table.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        internal: Any = query._jsq  # type: ignore[attr-defined]
        assert ("ColumnarToRow" in internal.explainInternal(False)) == (name == "columns")
        return sorted(found), sum(int(progress["numInputRows"]) for progress in query.recentProgress)

    with in_rows(spark):
        expected = read("rows")
    assert expected[1] == 2 * COUNT + 40
    assert read("columns") == expected


# --- how it is made ---------------------------------------------------------------------------------------------


def test_the_jar_is_made_once(tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    java = find_java(os.environ)
    jar = extension_jar(java, environ)
    assert jar is not None
    assert [path.name for path in jar.parent.iterdir()] == [jar.name]
    made = jar.stat().st_mtime_ns
    assert extension_jar(java, environ) == jar
    assert jar.stat().st_mtime_ns == made


def test_what_cannot_be_made_is_told_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    sources = tmp_path / "jvm"
    shutil.copytree(extension.SOURCES, sources)
    (sources / "Wrong.java").write_text("package orbitmq.spark; class Wrong { NoSuchThing thing; }\n")
    monkeypatch.setattr(extension, "SOURCES", sources)
    with caplog.at_level(logging.WARNING, "orbitmq.spark"):
        assert extension_jar(find_java(os.environ), environ) is None
    assert "in rows, which is slower" in caplog.text
    assert "NoSuchThing" in caplog.text
    assert not list((tmp_path / "cache").rglob("*.jar"))

    (tmp_path / "file").write_text("")
    environ["XDG_CACHE_HOME"] = str(tmp_path / "file")
    assert extension_jar(find_java(os.environ), environ) is None


def test_another_spark_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    for name in ("spark-sql_2.13-4.9.0.jar", "py4j-0.10.9.9.jar"):
        (tmp_path / "jars" / name).write_text("")
    assert extension_jar(find_java(os.environ), {"SPARK_HOME": str(tmp_path)}) is None


def test_settings_of_the_user_stay(spark: SparkSession, tmp_path: Path) -> None:
    """In this process Java runs, and has it."""
    java, environ = find_java(os.environ), dict(os.environ)
    jar = str(extension_jar(java, environ))
    assert extension_settings(java, {}, environ) == {"spark.jars": jar, "spark.sql.extensions": EXTENSION}
    given = {"spark.jars": "/a.jar,/b.jar", "spark.sql.extensions": "a.B"}
    assert extension_settings(java, given, environ) == {
        "spark.jars": f"/a.jar,/b.jar,{jar}",
        "spark.sql.extensions": f"a.B,{EXTENSION}",
    }
    (tmp_path / "spark-defaults.conf").write_text(
        "# theirs\n\nspark.jars  /c.jar\nspark.sql.extensions=c.D\nodd\n"
    )
    environ["SPARK_CONF_DIR"] = str(tmp_path)
    assert extension_settings(java, {}, environ) == {
        "spark.jars": f"/c.jar,{jar}",
        "spark.sql.extensions": f"c.D,{EXTENSION}",
    }
    assert extension_settings(java, given, environ)["spark.jars"] == f"/a.jar,/b.jar,{jar}"
    assert extension_settings(java, {SETTING: False}, environ) == {}
    assert spark.conf.get("spark.sql.extensions") == EXTENSION
