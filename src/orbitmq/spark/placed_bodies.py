"""Batches with the places of bodies in the log instead of the bodies: Spark's Java side takes them from there.

`jvm/PlacedBodies.java` asks for them, by the type of the column, and names the store that it will read from. What is
not simply bytes in the log is handed over whole, as is everything if it means another store than ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from orbitmq import accel
from orbitmq.spark.columns import HeadColumns
from orbitmq.spark.plain_bodies import OF_HEADS, PlainBodies, UnitRun
from orbitmq.spark.records import HEAD_BYTES
from orbitmq.spark.schema import arrow_schema

BODY: Final = "body"
PLACED: Final = "struct<place:bigint,size:int,bytes:binary>"
STORE: Final = "orbitmq.store"
"""In the metadata of the column: the directory that Java will read from."""

SMALL_RECORD_BYTES: Final = 512
"""With head, topic and properties."""

_FIELDS: Final = [pa.field("place", pa.int64()), pa.field("size", pa.int32()), pa.field("bytes", pa.binary())]


class BodyForm(Enum):
    """What a batch holds of its bodies."""

    BYTES = "bytes"
    PLACES = "places"
    """In Java's type: where they lie, wherever they lie there as they are."""
    WHOLE = "whole"
    """In Java's type, but all of them as bytes."""


def asked_form(schema: Any, store: str) -> BodyForm:
    """What the side that asks with this schema wants of a reader of this store."""
    for field in schema.fields:
        if field.name == BODY and field.dataType.simpleString() == PLACED:
            return BodyForm.PLACES if field.metadata.get(STORE) == store else BodyForm.WHOLE
    return BodyForm.BYTES


def placed_schema(columns: Sequence[str]) -> pa.Schema:
    schema = arrow_schema(columns)
    return schema.set(schema.get_field_index(BODY), pa.field(BODY, pa.struct(_FIELDS)))


def with_whole_bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same in Java's type."""
    nowhere = np.full(len(batch), -1, np.int64)
    index = batch.schema.get_field_index(BODY)
    parts = [pa.array(nowhere), pa.array(nowhere.astype(np.int32)), batch.column(index)]
    return batch.set_column(
        index, pa.field(BODY, pa.struct(_FIELDS)), pa.StructArray.from_arrays(parts, fields=_FIELDS)
    )


class PlainPlaces:
    """As `PlainBodies`, with places; bodies that are small, on the mean, are cheaper copied than found again."""

    def __init__(self, columns: Sequence[str], topic: str, broker: str | None) -> None:
        self._small = PlainBodies(columns, topic, broker)
        self._columns = columns
        self._topic = topic
        self._broker = broker
        self._schema = placed_schema(columns)
        self.able = OF_HEADS.issuperset(columns) and accel.unit_places is not None

    def of_units(self, run: UnitRun) -> pa.RecordBatch | None:
        assert accel.unit_places is not None
        if run.units["size"][run.row : run.row + run.most].mean() < SMALL_RECORD_BYTES:
            small = self._small.of_units(run)
            return with_whole_bodies(small) if small is not None else None
        most = run.most
        heads = np.empty(most * HEAD_BYTES, np.uint8) if len(self._columns) > 1 else None
        places, sizes = np.empty(most, np.int64), np.empty(most, np.int32)
        rows = accel.unit_places(*run, heads, places, sizes)
        if not rows:
            return None
        parts = [pa.array(places[:rows]), pa.array(sizes[:rows]), pa.nulls(rows, pa.binary())]
        body = pa.StructArray.from_arrays(parts, fields=_FIELDS)
        if heads is None:
            return pa.RecordBatch.from_arrays([body], schema=self._schema)
        made = HeadColumns(heads[: rows * HEAD_BYTES], self._topic, self._broker)
        arrays = [body if name == BODY else made.column(name) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
