"""Places of bodies instead of bodies: who gets which, and what Java makes of them. Damage: `test_plain_bodies.py`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from orbitmq import accel
from orbitmq.spark.errors import BadOption
from orbitmq.spark.extension import is_in_columns
from orbitmq.spark.placed_bodies import PLACED, STORE, BodyForm, asked_form
from orbitmq.spark.schema import columns_of
from orbitmq.spark.store_batch import StoreReader
from orbitmq.spark.store_source import StoreSource
from tests.spark.placed import placed_rows_of, taken_from_the_log
from tests.spark.test_store_reader import rows_of
from tests.support.stores import GOLDEN, fill, make_clean, open_small

PLACED_TYPE = StructType(
    [
        StructField("place", LongType()),
        StructField("size", IntegerType()),
        StructField("bytes", BinaryType()),
    ]
)


def asked(store: str | None) -> StructType:
    metadata = {} if store is None else {STORE: store}
    return StructType(
        [StructField("queue_id", IntegerType()), StructField("body", PLACED_TYPE, True, metadata)]
    )


def test_places_are_for_whoever_reads_the_same_directory() -> None:
    plain = StructType([StructField("body", BinaryType())])
    assert PLACED_TYPE.simpleString() == PLACED
    assert asked_form(plain, "/data") is BodyForm.BYTES
    assert asked_form(asked("/data"), "/data") is BodyForm.PLACES
    assert asked_form(asked("/elsewhere"), "/data") is BodyForm.WHOLE
    assert asked_form(asked(None), "/data") is BodyForm.WHOLE


def test_only_the_store_s_source_takes_the_type(tmp_path: Path) -> None:
    reader = StoreSource({"path": str(tmp_path)}).reader(asked(str(tmp_path)))
    assert isinstance(reader, StoreReader)
    with pytest.raises(BadOption, match=r"'body' is binary here, not struct<place"):
        columns_of(asked("/data"))


def test_what_is_small_or_not_plain_comes_whole() -> None:
    assert accel.unit_places is not None
    columns = ("topic", "body")
    expected = rows_of(GOLDEN, columns)
    for form, least, kinds in (
        (BodyForm.PLACES, 0, {True, False}),
        (BodyForm.PLACES, 512, {True, False}),
        (BodyForm.PLACES, 1 << 30, {True}),
        (BodyForm.WHOLE, 0, {True}),
    ):
        rows = placed_rows_of(GOLDEN, columns, form, least)
        assert {row["body"]["bytes"] is not None for row in rows} == kinds
        assert taken_from_the_log(GOLDEN, rows) == expected
        if least == 512:
            placed = {row["topic"] for row in rows if row["body"]["bytes"] is None}
            assert "GoldenBulk" in placed, "its bodies have two kilobytes"
            assert "GoldenBatch" not in placed


def test_java_takes_them_from_all_files_of_a_log(spark: SparkSession, tmp_path: Path) -> None:
    store = open_small(tmp_path / "s")
    fill(store, 400)
    store.durability.kick()
    try:
        # Also by a name that is not the shortest, and with the last messages only in the log.
        named = os.path.join(str(tmp_path), "other", "..", "s")
        assert len(list((tmp_path / "s" / "commitlog").iterdir())) > 3
        for columns in (("body",), ("topic", "queue_id", "queue_offset", "body")):
            table = spark.read.format("orbitmq-store").load(named).select(*columns)
            assert is_in_columns(table)
            found = [row.asDict() | {"body": bytes(row.body)} for row in table.collect()]
            order = repr if len(columns) == 1 else place_of
            assert sorted(found, key=order) == sorted(rows_of(tmp_path / "s", columns), key=order)
    finally:
        store.close()


def place_of(row: dict[str, Any]) -> Any:
    return row["topic"], row["queue_id"], row["queue_offset"]


def test_conditions_about_bodies_are_spark_s_own(spark: SparkSession) -> None:
    table = spark.read.format("orbitmq-store").option("subscribe", "GoldenBulk").load(str(GOLDEN))
    body = bytes(table.select("body").first().body)  # type: ignore[union-attr]
    assert table.where(table.body == body).count() >= 1
    assert table.where("body is null").count() == 0
    assert table.where("length(body) > 100 and queue_id = 0").select("queue_offset").count() > 0


def test_a_log_file_that_is_gone_or_too_short_is_an_error_that_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    make_clean(tmp_path / "s")
    java: Any = spark.sparkContext._jvm
    log = getattr(java.orbitmq.spark, "PlacedBodies$Log")(str(tmp_path / "s"))
    files = sorted((tmp_path / "s" / "commitlog").iterdir())
    content, second = files[0].read_bytes(), int(files[1].name)
    assert bytes(log.read(100, 50)) == content[100:150]
    files[0].unlink()
    assert bytes(log.read(second + 4, 4)) == files[1].read_bytes()[4:8]
    assert bytes(log.read(0, 10)) == content[:10], "what was opened stays"
    fresh = getattr(java.orbitmq.spark, "PlacedBodies$Log")(str(tmp_path / "s"))
    with pytest.raises(
        Exception, match=r"held a message at 100 is gone: it was cleaned away while it was read"
    ):
        fresh.read(100, 50)
    with pytest.raises(Exception, match=r"ends before a message at"):
        fresh.read(int(files[-1].name) + len(files[-1].read_bytes()) - 5, 10)
