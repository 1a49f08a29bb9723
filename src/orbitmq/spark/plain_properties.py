"""Batches of a store's plain messages with columns of properties and heads: the accelerator takes these alone.

As `plain_bodies` does it with bodies: each record is reached once, and what follows looks at little that lies together.
What is not plain is not taken; `columns` decodes it, knows every form, and is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from orbitmq import accel
from orbitmq.spark.columns import PART_BYTES
from orbitmq.spark.part_columns import PartColumns, Parts, TextRun, parts_of
from orbitmq.spark.records import HEAD_BYTES
from orbitmq.spark.schema import arrow_schema
from orbitmq.spark.store_queues import UNITS_AT_ONCE
from orbitmq.wire.codes import PagePart

if TYPE_CHECKING:
    import numpy.typing as npt

    from orbitmq.store.log_scan import FileBytes


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

    def of_units(
        self,
        units: npt.NDArray[np.void],
        row: int,
        number: int,
        queue_id: int,
        mapped: FileBytes,
        base: int,
        limit: int,
    ) -> pa.RecordBatch | None:
        """As that of `PlainBodies`."""
        assert accel.unit_properties is not None
        most = min(len(units) - row, UNITS_AT_ONCE)
        heads = np.empty(most * HEAD_BYTES, np.uint8) if self._with_heads else None
        texts, ends = np.empty(PART_BYTES, np.uint8), np.empty(most + 1, np.int32)
        rows, size = accel.unit_properties(
            units, row, number, queue_id, mapped, base, limit, heads, texts, ends
        )
        if not rows:
            return None
        taken = np.empty(0, np.uint8) if heads is None else heads[: rows * HEAD_BYTES]
        parts = Parts(rows, taken, None, TextRun(ends[: rows + 1], texts[:size]))
        made = PartColumns(parts, self._topic, self._broker, queue_id, number, self._columns)
        arrays = [made.column(name) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
