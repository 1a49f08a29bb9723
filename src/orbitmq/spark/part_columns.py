"""Columns of plain messages of which only some parts are there, each kind side by side: heads, bodies, properties.

Brokers send pages so (`page_parts`), and the accelerator takes them so from a store's log (`plain_properties`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from orbitmq.spark.columns import HeadColumns
from orbitmq.spark.schema import ALL_COLUMNS
from orbitmq.wire.codes import PagePart

if TYPE_CHECKING:
    import numpy.typing as npt

    from orbitmq.spark.columns import PropertyTexts

_KNOWN: Final = frozenset(("topic", "broker", "queue_id", "queue_offset"))
"""Where the messages were asked for says it."""
_OF_PROPERTIES: Final = frozenset(("tags", "keys", "properties"))
_NEEDED: Final = (
    dict.fromkeys(ALL_COLUMNS, PagePart.HEADS)
    | dict.fromkeys(_KNOWN, 0)
    | dict.fromkeys(_OF_PROPERTIES, PagePart.PROPERTIES)
    | {"body": PagePart.BODIES, "msg_id": PagePart.HEADS | PagePart.PROPERTIES}
)
_LENGTH_BYTES: Final = 2


def parts_of(columns: Sequence[str]) -> int:
    """The bits of `PagePart` that they are made of."""
    parts = 0
    for name in columns:
        parts |= _NEEDED[name]
    return parts


class TextRun(NamedTuple):
    """Texts one behind the other."""

    ends: npt.NDArray[np.int32]
    """From a first 0 on, one more than there are texts."""
    data: npt.NDArray[np.uint8]


class Parts(NamedTuple):
    rows: int
    heads: npt.NDArray[np.uint8]
    bodies: TextRun | None
    properties: TextRun | None
    """Each behind its length."""


class PartColumns(HeadColumns):
    """Of messages that follow each other in a queue. What that says is not looked for in heads: there may be none."""

    def __init__(
        self,
        parts: Parts,
        topic: str,
        broker: str | None,
        queue_id: int,
        start: int,
        columns: Sequence[str],
    ) -> None:
        super().__init__(parts.heads, topic, broker, all_properties="properties" in columns)
        self._parts = parts
        self._queue_id = queue_id
        self._start = start

    def __len__(self) -> int:
        return self._parts.rows

    def queue_id(self) -> pa.Array:
        return pa.array(np.full(len(self), self._queue_id, np.int32))

    def queue_offset(self) -> pa.Array:
        return pa.array(np.arange(self._start, self._start + len(self), dtype=np.int64))

    def body(self) -> pa.Array:
        assert self._parts.bodies is not None
        ends, data = self._parts.bodies
        return pa.Array.from_buffers(pa.binary(), len(self), [None, pa.py_buffer(ends), pa.py_buffer(data)])

    def _property_texts(self) -> PropertyTexts:
        assert self._parts.properties is not None
        ends, data = self._parts.properties
        places = ends.astype(np.int64)
        return data, places[:-1] + _LENGTH_BYTES, places[1:]
