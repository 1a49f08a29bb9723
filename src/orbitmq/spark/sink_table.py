"""Arrow batches whose rows may all travel together, column by column: what most writes are made of.

Nothing is made for a single row but its place in a request, which takes a third of the time. Whatever is not as simple
(several topics, properties, a delay, a row that is wrong) goes the way of single rows, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from orbitmq.client.core.batches import cut
from orbitmq.client.errors import BadRequest
from orbitmq.client.fast_send import PLAIN_ENTRY_BYTES, encode_entries
from orbitmq.client.outgoing import property_text
from orbitmq.client.receipt import IdRun
from orbitmq.spark.sink_batches import Numbered, RowBatch, limits, longest_body, takes_batches
from orbitmq.spark.sink_rows import keys_of, rows_of
from orbitmq.wire.message_id import UniqIdFactory

if TYPE_CHECKING:
    import pyarrow as pa

_WISHES: Final = ("properties", "order_key", "deliver_at", "delay_level")


class PlainTable:
    """To `TaskSender` what `Sorting` is for rows."""

    alone: Sequence[Numbered] = ()

    def __init__(self, batch: pa.RecordBatch, topic: str, bodies: list[bytes], texts: list[bytes]) -> None:
        self._batch = batch
        self._topic = topic
        self._bodies = bodies
        self._texts = texts
        self.rows = len(bodies)

    @classmethod
    def of(cls, batch: pa.RecordBatch, default_topic: str | None, max_body_bytes: int) -> Self | None:
        """None when not every row is plain."""
        if not batch.num_rows or any(_has_values(batch, name) for name in _WISHES):
            return None
        topic = _one_topic(batch, default_topic)
        if topic is None or not takes_batches(topic):
            return None
        bodies = _bodies(batch)
        if bodies is None or not 0 < len(min(bodies, key=len)) <= len(max(bodies, key=len)) <= longest_body(
            max_body_bytes
        ):
            return None
        try:
            return cls(batch, topic, bodies, _texts(batch))
        except (BadRequest, UnicodeEncodeError):
            return None

    def batches(self, max_in_flight: int, ids: UniqIdFactory) -> Iterator[RowBatch]:
        sizes = [
            PLAIN_ENTRY_BYTES + len(body) + len(text)
            for body, text in zip(self._bodies, self._texts, strict=True)
        ]
        for start, stop in cut(sizes, limits(max_in_flight)):
            stamp, first = ids.reserve(stop - start)
            entries = zip(self._bodies[start:stop], self._texts[start:stop], strict=True)
            yield RowBatch(
                self._topic,
                stop - start,
                IdRun(stamp, first),
                encode_entries(entries, stamp, first),
                partial(self._numbered, start, stop),
            )

    def _numbered(self, start: int, stop: int) -> list[Numbered]:
        found = rows_of(self._batch.slice(start, stop - start), self._topic, 0, 0)
        return [Numbered(number, row) for number, row in enumerate(found, start)]


def _has_values(batch: pa.RecordBatch, name: str) -> bool:
    return name in batch.schema.names and batch.column(name).null_count < batch.num_rows


def _one_topic(batch: pa.RecordBatch, default: str | None) -> str | None:
    topics = set(batch.column("topic").to_pylist()) if "topic" in batch.schema.names else {None}
    if len(topics) > 1:
        return None
    return topics.pop() or default


def _bodies(batch: pa.RecordBatch) -> list[bytes] | None:
    column = batch.column("body")
    if column.null_count:
        return None
    values: list[Any] = column.to_pylist()
    return [value.encode() for value in values] if isinstance(values[0], str) else values


def _texts(batch: pa.RecordBatch) -> list[bytes]:
    """The properties of each row as they go over the wire."""
    nothing: list[Any] = [None] * batch.num_rows
    tags = batch.column("tags").to_pylist() if "tags" in batch.schema.names else nothing
    if not _has_values(batch, "keys"):
        of_tag = {tag: property_text(tag or None, None, None).encode() for tag in set(tags)}
        return [of_tag[tag] for tag in tags]
    keys = batch.column("keys").to_pylist()
    return [
        property_text(tag or None, keys_of(value), None).encode()
        for tag, value in zip(tags, keys, strict=True)
    ]
