"""Batches of a store's plain messages with columns of properties and heads: the accelerator takes these alone.

As `plain_bodies` does it with bodies: each record is reached once, and what follows looks at little that lies together.
What is not plain is not taken; `columns` decodes it, knows every form, and is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from orbitmq import accel
from orbitmq.spark.columns import PART_BYTES
from orbitmq.spark.part_columns import PartColumns, Parts, TextRun, parts_of
from orbitmq.spark.plain_bodies import UnitRun
from orbitmq.spark.records import HEAD_BYTES
from orbitmq.spark.schema import arrow_schema
from orbitmq.wire.codes import PagePart


class PlainProperties:
    """For one queue. `able` says whether these columns can be made so, and whether there is an accelerator."""

    def __init__(self, columns: Sequence[str], topic: str, broker: str | None) -> None:
        self._columns = columns
        self._topic = topic
        self._broker = broker
        self._schema = arrow_schema(columns)
        wanted = parts_of(columns)
        self._with_heads = bool(wanted & PagePart.HEADS)
        made_so = wanted & (PagePart.PROPERTIES | PagePart.BODIES) == PagePart.PROPERTIES
        self.able = made_so and accel.unit_properties is not None

    def of_units(self, run: UnitRun) -> pa.RecordBatch | None:
        """As that of `PlainBodies`."""
        assert accel.unit_properties is not None
        most = run.most
        heads = np.empty(most * HEAD_BYTES, np.uint8) if self._with_heads else None
        texts, ends = np.empty(PART_BYTES, np.uint8), np.empty(most + 1, np.int32)
        rows, size = accel.unit_properties(*run, heads, texts, ends)
        if not rows:
            return None
        taken = np.empty(0, np.uint8) if heads is None else heads[: rows * HEAD_BYTES]
        parts = Parts(rows, taken, None, TextRun(ends[: rows + 1], texts[:size]))
        made = PartColumns(parts, self._topic, self._broker, run.queue_id, run.number, self._columns)
        arrays = [made.column(name) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
