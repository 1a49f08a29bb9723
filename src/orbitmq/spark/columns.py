"""Records to an Arrow record batch, column by column. Only the columns asked for are computed.

    batch = decode_page(page, columns=("queue_offset", "body"), topic="orders", broker="broker-a")

`page` is what a pull brought, or a mapped file of the log together with the positions of its records. The plain
twin of this module is `wire.message.decode_records`; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orbitmq.spark.alike_properties import alike_values
from orbitmq.spark.errors import SourceError
from orbitmq.spark.property_columns import PropertyColumns
from orbitmq.spark.records import HEAD_BYTES, Heads, Records, layout_groups, record_starts
from orbitmq.spark.schema import ALL_COLUMNS, arrow_schema
from orbitmq.spark.spans import as_bytes, constant, take_spans
from orbitmq.spark.unwrap import INNER_BATCH_FLAGS, unwrapped
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.compression import decompress
from orbitmq.wire.errors import WireError
from orbitmq.wire.message import BORN_HOST_AT, SYS_FLAG_AT
from orbitmq.wire.message_id import unpack_host

if TYPE_CHECKING:
    import numpy.typing as npt

    PropertyTexts = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]
    """Where the text of each message's properties begins and ends in one run of bytes."""

# Spark's timestamps go from year 1 to 9999; a producer may have written anything.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999

PART_BYTES: Final = 2 << 20
"""Of bodies in a batch. With a quarter of it or less, what each batch costs in Python was more than it saved."""

_HEX: Final = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), dtype=np.uint16)


def decode_page(
    page: Any,
    *,
    columns: Sequence[str] = ALL_COLUMNS,
    topic: str | None = None,
    broker: str | None = None,
    heads: Heads | None = None,
    window: tuple[int, int] | None = None,
    tags: frozenset[str] = frozenset(),
) -> pa.RecordBatch:
    """The records of a page as a table.

    `heads` are the records in rising order, found by walking the page if they are not given.
    `topic` is that of all records, if it is known. `window` keeps only queue offsets from its first up to before
    its second number; `tags` only messages with one of these.
    """
    wanted = (*columns, "tags") if tags and "tags" not in columns else columns
    batch = _decoded(_groups(page, heads), wanted, topic, broker, window)
    if tags:
        chosen = pc.is_in(batch.column("tags"), pa.array(sorted(tags), pa.string()))
        batch = batch.filter(chosen).select(list(columns))
    return batch


def decode_parts(
    page: Any, *, columns: Sequence[str], topic: str | None, broker: str | None, heads: Heads
) -> Iterable[pa.RecordBatch]:
    """The same in batches of about `PART_BYTES`. All that can be wrong with the page is found before the first."""
    groups = _groups(page, heads)
    records = groups[0][0]
    made = _Columns(records, topic, broker, all_properties="properties" in columns)
    if len(groups) > 1 or "body" not in columns or made.packed.any():
        return (_decoded(groups, columns, topic, broker, None),)
    size = int((records.body_ends - records.body_begins).sum())
    arrays = [None if name == "body" else made.column(name) for name in columns]
    return _parts(made, arrays, arrow_schema(columns), min(-(-size // PART_BYTES), len(records)))


def _parts(
    made: _Columns, arrays: Sequence[pa.Array | None], schema: pa.Schema, count: int
) -> Iterator[pa.RecordBatch]:
    rows = len(made)
    borders = [rows * number // count for number in range(count + 1)] if count else [0, rows]
    for first, last in pairwise(borders):
        columns = [
            made.stored_bodies(slice(first, last)) if array is None else array.slice(first, last - first)
            for array in arrays
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _groups(page: Any, heads: Heads | None) -> list[tuple[Records, npt.NDArray[np.int64]]]:
    data = as_bytes(page)
    if heads is None:
        heads = Heads(data, record_starts(page))
    inner = heads.field(SYS_FLAG_AT, ">i4") & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS
    if inner.any():
        data, starts = unwrapped(data, heads.starts, inner)
        heads = Heads(data, starts)
    return layout_groups(data, heads)


def _decoded(
    groups: Sequence[tuple[Records, npt.NDArray[np.int64]]],
    columns: Sequence[str],
    topic: str | None,
    broker: str | None,
    window: tuple[int, int] | None,
) -> pa.RecordBatch:
    schema = arrow_schema(columns)
    batches: list[pa.RecordBatch] = []
    order: list[npt.NDArray[np.int64]] = []
    for records, rows in groups:
        if window is not None:
            offsets = records.queue_offsets
            inside = (offsets >= window[0]) & (offsets < window[1])
            if not inside.all():
                records, rows = records.subset(inside), rows[inside]
        made = _Columns(records, topic, broker, all_properties="properties" in columns)
        batches.append(pa.RecordBatch.from_arrays([made.column(name) for name in columns], schema=schema))
        order.append(rows)
    if len(batches) == 1:
        return batches[0]
    joined = pa.concat_batches(batches)
    return joined.take(pa.array(np.argsort(np.concatenate(order), kind="stable")))


class _Columns:
    """The columns of records of one layout."""

    def __init__(
        self, records: Records, topic: str | None, broker: str | None, *, all_properties: bool
    ) -> None:
        self._records = records
        self._topic = topic
        self._broker = broker
        self._all_properties = all_properties

    def __len__(self) -> int:
        return len(self._records)

    def column(self, name: str) -> pa.Array:
        build: Callable[[], pa.Array] = getattr(self, name)
        return build()

    def _property_texts(self) -> PropertyTexts:
        records = self._records
        return records.data, records.properties_begins, records.properties_ends

    @cached_property
    def _properties(self) -> PropertyColumns:
        return PropertyColumns(*self._property_texts())

    def _property(self, name: bytes) -> pa.Array:
        if not self._all_properties:  # which are split once for all of them
            found = alike_values(*self._property_texts(), name)
            if found is not None:
                return found
        return self._properties.value(name)

    def topic(self) -> pa.Array:
        records = self._records
        if self._topic is not None:
            return constant(self._topic, len(self))
        raw = take_spans(records.data, records.topic_begins, records.topic_ends, pa.binary())
        return _texts(raw)

    def broker(self) -> pa.Array:
        return constant(self._broker, len(self))

    def queue_id(self) -> pa.Array:
        return pa.array(self._records.queue_ids)

    def queue_offset(self) -> pa.Array:
        return pa.array(self._records.queue_offsets)

    def msg_id(self) -> pa.Array:
        ids = self._property(b"UNIQ_KEY")
        return pc.coalesce(ids, self.offset_msg_id()) if ids.null_count else ids

    def offset_msg_id(self) -> pa.Array:
        records = self._records
        size = records.store_host_bytes + 8
        raw = np.empty((len(records), size), dtype=np.uint8)
        raw[:, :-8] = records.raw(records.store_host_at, records.store_host_bytes)
        raw[:, -8:] = records.physical_offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
        text = _HEX[raw.ravel()]
        offsets = np.arange(len(records) + 1, dtype=np.int32) * (2 * size)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(records), buffers)

    def body(self) -> pa.Array:
        bodies = self.stored_bodies(slice(None))
        if not self.packed.any():
            return bodies
        places = np.flatnonzero(self.packed)
        plain = [self._unpacked(int(place), bodies[int(place)].as_py()) for place in places]
        return pc.replace_with_mask(bodies, pa.array(self.packed), pa.array(plain, pa.binary()))

    def stored_bodies(self, rows: slice) -> pa.Array:
        """As they lie in the records."""
        records = self._records
        return take_spans(records.data, records.body_begins[rows], records.body_ends[rows], pa.binary())

    @cached_property
    def packed(self) -> npt.NDArray[np.bool_]:
        """Which bodies are compressed."""
        found: npt.NDArray[np.bool_] = self._records.sys_flags & SysFlag.COMPRESSED != 0
        return found

    def _unpacked(self, row: int, body: bytes) -> bytes:
        records = self._records
        try:
            return decompress(body, int(records.sys_flags[row]))
        except WireError as error:
            raise SourceError(
                f"the body of the message at queue {records.queue_ids[row]} offset {records.queue_offsets[row]}"
                f"{f' of topic {self._topic!r}' if self._topic else ''} cannot be read: {error}",
                hint="leave the column body out, or read around this message with startingOffsets",
            ) from error

    def tags(self) -> pa.Array:
        return self._property(b"TAGS")

    def keys(self) -> pa.Array:
        return self._property(b"KEYS")

    def properties(self) -> pa.Array:
        return self._properties.maps

    def born_time(self) -> pa.Array:
        return _moments(self._records.born_ms)

    def store_time(self) -> pa.Array:
        return _moments(self._records.store_ms)

    def born_host(self) -> pa.Array:
        return _hosts(self._records.raw(BORN_HOST_AT, self._records.born_host_bytes))

    def store_host(self) -> pa.Array:
        records = self._records
        return _hosts(records.raw(records.store_host_at, records.store_host_bytes))

    def reconsume_times(self) -> pa.Array:
        return pa.array(self._records.reconsume_times)

    def sys_flag(self) -> pa.Array:
        return pa.array(self._records.sys_flags)


class HeadColumns(_Columns):
    """Columns of plain records of which nothing but the heads is there, one behind the other."""

    def __init__(
        self,
        heads: npt.NDArray[np.uint8],
        topic: str,
        broker: str | None,
        *,
        all_properties: bool = False,
    ) -> None:
        starts = np.arange(0, len(heads), HEAD_BYTES, dtype=np.int64)
        block = heads.view(f"V{HEAD_BYTES}")
        super().__init__(
            Records(heads, Heads(heads, starts, block)), topic, broker, all_properties=all_properties
        )


def _moments(ms: npt.NDArray[np.int64]) -> pa.Array:
    kind = pa.timestamp("us", tz="UTC")
    strange = (ms < _FIRST_MS) | (ms > _LAST_MS)
    if strange.any():
        return pa.array(np.where(strange, 0, ms) * 1000, mask=strange).cast(kind)
    return pa.array(ms * 1000).view(kind)


def _hosts(raw: npt.NDArray[np.uint8]) -> pa.Array:
    """Few hosts send many messages, so each address is written out once."""
    count, size = raw.shape
    if count == 0:
        return pa.nulls(0, pa.string())
    if (raw == raw[0]).all():
        return constant(unpack_host(raw[0].tobytes()), count)
    fixed = pa.Array.from_buffers(pa.binary(size), count, [None, pa.py_buffer(np.ascontiguousarray(raw))])
    encoded = pc.dictionary_encode(fixed)
    names = pa.array([unpack_host(host) for host in encoded.dictionary.to_pylist()], pa.string())
    return names.take(encoded.indices)


def _texts(raw: pa.Array) -> pa.Array:
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in raw.to_pylist()], pa.string())
