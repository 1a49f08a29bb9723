"""Rows that may travel together: many messages in one request, plain or as one half message.

A batch is stored as a whole or not at all, in one queue, so it takes no row that has a wish of its own: a delay, an
order, a body that is worth compressing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from orbitmq.client.core.batches import Limits, cut
from orbitmq.client.errors import BadRequest
from orbitmq.client.fast_send import PLAIN_ENTRY_BYTES, encode_entries
from orbitmq.client.outgoing import property_text
from orbitmq.client.receipt import IdRun
from orbitmq.client.sender import COMPRESS_FROM_BYTES
from orbitmq.spark.sink_rows import Row
from orbitmq.wire.batch import MAX_HALF_BATCH
from orbitmq.wire.message_id import UniqIdFactory
from orbitmq.wire.topics import RETRY_PREFIX, is_send_forbidden, validate_topic

BATCH_BYTES: Final = 256 * 1024
BATCHES_AT_ONCE: Final = 4
"""Batches of a task under way, or fewer: together they hold `maxInFlight` messages at most."""


class Numbered(NamedTuple):
    number: int
    row: Row


class RowBatch(NamedTuple):
    topic: str
    size: int
    ids: IdRun
    body: bytes
    rows: Callable[[], Sequence[Numbered]]
    """For those that have to be sent one by one after all."""


class _Entry(NamedTuple):
    numbered: Numbered
    properties: bytes


class Sorting:
    """Rows of one Arrow batch: by topic those that may travel together, and the others."""

    def __init__(self, rows: Iterable[Numbered], max_body_bytes: int, *, in_batches: bool = True) -> None:
        """`in_batches`: whether any row may travel with others."""
        self.alone: list[Numbered] = []
        self._of_topic: dict[str, list[_Entry]] = {}
        self._longest = longest_body(max_body_bytes)
        for numbered in rows:
            entry = self._entry(numbered) if in_batches else None
            if entry is None:
                self.alone.append(numbered)
            else:
                self._of_topic[numbered.row.topic].append(entry)

    def _entry(self, numbered: Numbered) -> _Entry | None:
        """None for a row that goes alone, or that is wrong: whoever prepares it alone says what is."""
        row = numbered.row
        if row.is_delayed or row.order_key is not None or not 0 < len(row.body) <= self._longest:
            return None
        if row.topic not in self._of_topic:
            if not takes_batches(row.topic):
                return None
            self._of_topic[row.topic] = []
        try:
            return _Entry(numbered, property_text(row.tag or None, row.keys, row.properties).encode())
        except (BadRequest, UnicodeEncodeError):
            return None

    def batches(self, max_in_flight: int, ids: UniqIdFactory) -> Iterator[RowBatch]:
        for topic, entries in self._of_topic.items():
            sizes = [PLAIN_ENTRY_BYTES + len(e.numbered.row.body) + len(e.properties) for e in entries]
            for start, stop in cut(sizes, limits(max_in_flight)):
                stamp, first = ids.reserve(stop - start)
                part = entries[start:stop]
                body = encode_entries([(e.numbered.row.body, e.properties) for e in part], stamp, first)
                yield RowBatch(topic, len(part), IdRun(stamp, first), body, partial(_numbered, part))


def _numbered(entries: Sequence[_Entry]) -> list[Numbered]:
    return [entry.numbered for entry in entries]


def limits(max_in_flight: int) -> Limits:
    return Limits(BATCH_BYTES, max(1, min(max_in_flight // BATCHES_AT_ONCE, MAX_HALF_BATCH)))


def longest_body(max_body_bytes: int) -> int:
    return min(max_body_bytes, COMPRESS_FROM_BYTES - 1)


def takes_batches(topic: str) -> bool:
    return not (validate_topic(topic) or is_send_forbidden(topic) or topic.startswith(RETRY_PREFIX))
