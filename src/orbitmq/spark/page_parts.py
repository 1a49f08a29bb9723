"""Pages of which a broker sends only what the wanted columns are made of: decision 019, layout in `accel/page_parts.h`.

Bodies then arrive as Arrow has them and are never copied here; whoever counts messages receives none of their bytes. An
OrbitMQ broker with its accelerator cuts pages of plain messages; everything else comes as records, which `columns`
decodes and which are the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from orbitmq.spark.columns import HeadColumns
from orbitmq.spark.records import HEAD_BYTES
from orbitmq.spark.schema import ALL_COLUMNS, arrow_schema
from orbitmq.wire.codes import PagePart
from orbitmq.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    import numpy.typing as npt

    from orbitmq.spark.columns import PropertyTexts

_KNOWN: Final = frozenset(("topic", "broker", "queue_id", "queue_offset"))
"""What the pull itself says."""
_OF_PROPERTIES: Final = frozenset(("tags", "keys", "properties"))
_NEEDED: Final = (
    dict.fromkeys(ALL_COLUMNS, PagePart.HEADS)
    | dict.fromkeys(_KNOWN, 0)
    | dict.fromkeys(_OF_PROPERTIES, PagePart.PROPERTIES)
    | {"body": PagePart.BODIES, "msg_id": PagePart.HEADS | PagePart.PROPERTIES}
)
_COUNTS_BYTES: Final = 8
_LENGTH_BYTES: Final = 2


class PageParts:
    """For one queue and these columns; `wanted` is what to ask for."""

    def __init__(self, columns: Sequence[str], queue: MessageQueue) -> None:
        self._columns = columns
        self._queue = queue
        self._schema = arrow_schema(columns)
        self.wanted = 0
        for name in columns:
            self.wanted |= _NEEDED[name]

    def batch(self, page: npt.NDArray[np.uint8], start: int, following: int) -> tuple[int, pa.RecordBatch]:
        """How many bytes the records of a page have in the log, and their columns; ValueError if it is not sound."""
        cut = _cut(page, self.wanted)
        if cut.rows != following - start:
            raise ValueError(f"{cut.rows} messages instead of {following - start}")
        made = _PartColumns(cut, self._queue, start, all_properties="properties" in self._columns)
        arrays = [made.column(name) for name in self._columns]
        return cut.record_bytes, pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Run(NamedTuple):
    """Texts one behind the other."""

    ends: npt.NDArray[np.int32]
    """From a first 0 on, one more than there are texts."""
    data: npt.NDArray[np.uint8]


class _Cut(NamedTuple):
    rows: int
    record_bytes: int
    heads: npt.NDArray[np.uint8]
    bodies: _Run | None
    properties: _Run | None


def _cut(page: npt.NDArray[np.uint8], parts: int) -> _Cut:
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
    runs: dict[int, _Run] = {}
    for part, places in ends.items():
        runs[part] = _Run(places, page[at : at + int(places[-1])])
        at += int(places[-1])
    return _Cut(rows, record_bytes, heads, runs.get(PagePart.BODIES), runs.get(PagePart.PROPERTIES))


class _PartColumns(HeadColumns):
    """What the pull says is not looked for in heads, which may not be there."""

    def __init__(self, cut: _Cut, queue: MessageQueue, start: int, *, all_properties: bool) -> None:
        super().__init__(cut.heads, queue.topic, queue.broker_name, all_properties=all_properties)
        self._cut = cut
        self._queue_id = queue.queue_id
        self._start = start

    def __len__(self) -> int:
        return self._cut.rows

    def queue_id(self) -> pa.Array:
        return pa.array(np.full(len(self), self._queue_id, np.int32))

    def queue_offset(self) -> pa.Array:
        return pa.array(np.arange(self._start, self._start + len(self), dtype=np.int64))

    def body(self) -> pa.Array:
        assert self._cut.bodies is not None
        ends, data = self._cut.bodies
        return pa.Array.from_buffers(pa.binary(), len(self), [None, pa.py_buffer(ends), pa.py_buffer(data)])

    def _property_texts(self) -> PropertyTexts:
        assert self._cut.properties is not None
        ends, data = self._cut.properties
        places = ends.astype(np.int64)
        return data, places[:-1] + _LENGTH_BYTES, places[1:]
