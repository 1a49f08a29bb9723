"""Pages of which a broker sends only what the wanted columns are made of: decision 019, layout in `accel/page_parts.h`.

Bodies then arrive as Arrow has them and are never copied here; whoever counts messages receives none of their bytes. An
OrbitMQ broker with its accelerator cuts pages of plain messages; everything else comes as records, which `columns`
decodes and which are the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from orbitmq.spark.part_columns import PartColumns, Parts, TextRun, parts_of
from orbitmq.spark.records import HEAD_BYTES
from orbitmq.spark.schema import arrow_schema
from orbitmq.wire.codes import PagePart
from orbitmq.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    import numpy.typing as npt

_COUNTS_BYTES: Final = 8


class PageParts:
    """For one queue and these columns; `wanted` is what to ask for."""

    def __init__(self, columns: Sequence[str], queue: MessageQueue) -> None:
        self._columns = columns
        self._queue = queue
        self._schema = arrow_schema(columns)
        self.wanted = parts_of(columns)

    def batch(self, page: npt.NDArray[np.uint8], start: int, following: int) -> tuple[int, pa.RecordBatch]:
        """How many bytes the records of a page have in the log, and their columns; ValueError if it is not sound."""
        record_bytes, parts = _cut(page, self.wanted)
        if parts.rows != following - start:
            raise ValueError(f"{parts.rows} messages instead of {following - start}")
        made = PartColumns(
            parts, self._queue.topic, self._queue.broker_name, self._queue.queue_id, start, self._columns
        )
        arrays = [made.column(name) for name in self._columns]
        return record_bytes, pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _cut(page: npt.NDArray[np.uint8], parts: int) -> tuple[int, Parts]:
    """How many bytes the records have in the log, and what was sent of them."""
    if len(page) < _COUNTS_BYTES:
        raise ValueError("it has no beginning")
    rows, record_bytes = (int(count) for count in page[:_COUNTS_BYTES].view("<i4"))
    at = _COUNTS_BYTES
    ends: dict[int, npt.NDArray[np.int32]] = {}
    for part in (PagePart.BODIES, PagePart.PROPERTIES):
        if parts & part:
            size = 4 * (rows + 1)
            if rows < 0 or len(page) - at < size:
                raise ValueError("it ends before its parts")
            ends[part] = page[at : at + size].view("<i4").astype(np.int32, copy=False)
            at += size
            if ends[part][0] or (ends[part][1:] < ends[part][:-1]).any():
                raise ValueError("its parts overlap")
    head_bytes = rows * HEAD_BYTES if parts & PagePart.HEADS else 0
    if at + head_bytes + sum(int(each[-1]) for each in ends.values()) != len(page):
        raise ValueError("its parts have another length")
    heads = page[at : at + head_bytes]
    at += head_bytes
    runs: dict[int, TextRun] = {}
    for part, places in ends.items():
        runs[part] = TextRun(places, page[at : at + int(places[-1])])
        at += int(places[-1])
    return record_bytes, Parts(rows, heads, runs.get(PagePart.BODIES), runs.get(PagePart.PROPERTIES))
