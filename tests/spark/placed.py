"""What Spark's Java side makes of places of bodies, plainly: the reference for `jvm/PlacedBodies.java`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

from orbitmq.spark import placed_bodies
from orbitmq.spark.placed_bodies import BodyForm
from orbitmq.spark.store_batch import StorePartition, StoreReader
from orbitmq.spark.store_reader import read_store
from orbitmq.spark.store_source import parse_store_options
from tests.spark.plain import batch_rows

Rows = list[dict[str, Any]]


def placed_rows_of(directory: Path, columns: tuple[str, ...], form: BodyForm, least: int = 0) -> Rows:
    """The rows of a store with their bodies as they are handed to Java."""
    reader = StoreReader(parse_store_options({"path": str(directory)}), columns, form)
    rows: Rows = []
    with patch.object(placed_bodies, "SMALL_RECORD_BYTES", least):
        for partition in reader.partitions():
            assert isinstance(partition, StorePartition)
            for batch in read_store(partition.settings, partition.slices):
                assert batch.schema == placed_bodies.placed_schema(columns)
                batch.validate(full=True)
                rows += batch_rows(batch)
    return rows


def taken_from_the_log(directory: Path, rows: Rows) -> Rows:
    """The same with each body itself."""
    return [{**row, "body": _body(directory / "commitlog", row["body"])} for row in rows]


def _body(log: Path, given: dict[str, Any]) -> bytes | None:
    if given["bytes"] is not None:
        assert (given["place"], given["size"]) == (-1, -1)
        return bytes(given["bytes"])
    begins = max(int(path.name) for path in log.iterdir() if int(path.name) <= given["place"])
    content = (log / f"{begins:020d}").read_bytes()
    body = content[given["place"] - begins :][: given["size"]]
    assert len(body) == given["size"]
    return body
