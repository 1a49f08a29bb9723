"""Batches of plain messages, whose bodies the accelerator lays side by side while it looks at their records.

In numpy the heads of many records are looked at first, and by the time their bodies are copied the processor's cache
has lost them again; here each record is reached once. What is not plain (compressed bodies, IPv6 hosts, damage, …) is
not taken: `columns` decodes it, knows every form, and is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from orbitmq import accel
from orbitmq.spark.columns import PART_BYTES, HeadColumns
from orbitmq.spark.records import HEAD_BYTES
from orbitmq.spark.schema import ALL_COLUMNS, arrow_schema
from orbitmq.spark.store_queues import UNITS_AT_ONCE

if TYPE_CHECKING:
    import numpy.typing as npt

    from orbitmq.store.log_scan import FileBytes

OF_PROPERTIES: Final = frozenset(("msg_id", "tags", "keys", "properties"))
OF_HEADS: Final = frozenset(ALL_COLUMNS) - OF_PROPERTIES


class UnitRun(NamedTuple):
    """Units of a queue from a row on, as the accelerator takes them, and the file of the log that they point into."""

    units: npt.NDArray[np.void]
    row: int
    number: int
    """The queue offset of that row."""
    queue_id: int
    mapped: FileBytes
    base: int
    """Where in the log the file begins."""
    limit: int
    """Messages from here on in the log are left to the other way."""

    @property
    def most(self) -> int:
        return min(len(self.units) - self.row, UNITS_AT_ONCE)


class PlainBodies:
    """For one queue. `able` says whether these columns can be made, and whether there is an accelerator."""

    def __init__(self, columns: Sequence[str], topic: str, broker: str | None) -> None:
        self._columns = columns
        self._topic = topic
        self._broker = broker
        self._schema = arrow_schema(columns)
        self.able = "body" in columns and OF_HEADS.issuperset(columns) and accel.unit_bodies is not None

    def of_units(self, run: UnitRun) -> pa.RecordBatch | None:
        """As many as fit into a batch, from the first on; None if that one is not plain."""
        assert accel.unit_bodies is not None
        heads, bodies, ends = self._room(run.most, PART_BYTES)
        rows, size = accel.unit_bodies(*run, heads, bodies, ends)
        return self._batch(rows, size, heads, bodies, ends) if rows else None

    def of_page(self, page: npt.NDArray[np.uint8], start: int, stop: int) -> pa.RecordBatch | None:
        """All messages of a page, if they are just those with the queue offsets `start` up to before `stop`."""
        assert accel.page_bodies is not None
        heads, bodies, ends = self._room(stop - start, len(page))
        rows, size, left = accel.page_bodies(page, start, heads, bodies, ends)
        return None if left or rows != stop - start else self._batch(rows, size, heads, bodies, ends)

    def _room(
        self, rows: int, size: int
    ) -> tuple[npt.NDArray[np.uint8] | None, npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        heads = np.empty(rows * HEAD_BYTES, np.uint8) if len(self._columns) > 1 else None
        return heads, np.empty(size, np.uint8), np.empty(rows + 1, np.int32)

    def _batch(
        self,
        rows: int,
        size: int,
        heads: npt.NDArray[np.uint8] | None,
        bodies: npt.NDArray[np.uint8],
        ends: npt.NDArray[np.int32],
    ) -> pa.RecordBatch:
        buffers = [None, pa.py_buffer(ends[: rows + 1]), pa.py_buffer(bodies[:size])]
        body = pa.Array.from_buffers(pa.binary(), rows, buffers)
        if heads is None:
            return pa.RecordBatch.from_arrays([body], schema=self._schema)
        made = HeadColumns(heads[: rows * HEAD_BYTES], self._topic, self._broker)
        arrays = [body if name == "body" else made.column(name) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
