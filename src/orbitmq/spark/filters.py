"""Conditions that Spark pushes down, as bounds on what is read. They only narrow: Spark checks every row again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from orbitmq.spark.pull_client import QueueSlice
from orbitmq.wire.fastjson import MessageQueue

# A broker's clock can step back, and its messages are then not in order of their store times.
MARGIN_MS: Final = 60_000
_MOST_TAGS: Final = 16


@dataclass(frozen=True)
class Narrow:
    """What rows can be wanted. None and empty mean: any."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    from_ms: int | None = None
    before_ms: int | None = None

    def wants(self, queue: MessageQueue) -> bool:
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker_name in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
        )

    def cut(self, piece: QueueSlice) -> QueueSlice:
        start = max(piece.start, self.first_offset) if self.first_offset is not None else piece.start
        end = min(piece.end, self.end_offset) if self.end_offset is not None else piece.end
        return QueueSlice(piece.queue, start, max(start, end))

    @property
    def tag_expression(self) -> str | None:
        """The tags as a subscription, where all of them can be written as one."""
        if not self.tags or len(self.tags) > _MOST_TAGS:
            return None
        if any(not tag or tag != tag.strip() or "|" in tag or tag == "*" for tag in self.tags):
            return None
        return " || ".join(sorted(self.tags))


def narrow(filters: Iterable[Any]) -> Narrow:
    """The bounds that hold if all these conditions do. What is not understood bounds nothing."""
    bounds = Narrow()
    for condition in filters:
        path: tuple[str, ...] = getattr(condition, "attribute", ())
        if len(path) == 1:
            bounds = _narrowed(bounds, type(condition).__name__, path[0], getattr(condition, "value", None))
    return bounds


def _narrowed(bounds: Narrow, kind: str, column: str, value: Any) -> Narrow:
    if value is None:
        return bounds
    if column in _SETS and kind in ("EqualTo", "EqualNullSafe", "In"):
        values = frozenset(value if kind == "In" else (value,))
        known = getattr(bounds, _SETS[column])
        changed: dict[str, Any] = {_SETS[column]: values if known is None else known & values}
        return replace(bounds, **changed)
    if column == "queue_offset":
        return _offset_bounds(bounds, kind, value)
    if column == "store_time" and isinstance(value, datetime):
        return _time_bounds(bounds, kind, value)
    return bounds


_SETS: Final = {"topic": "topics", "broker": "brokers", "queue_id": "queue_ids", "tags": "tags"}


def _offset_bounds(bounds: Narrow, kind: str, value: Any) -> Narrow:
    low: int | None = None
    high: int | None = None
    if kind in ("EqualTo", "EqualNullSafe"):
        low, high = value, value + 1
    elif kind == "In" and value and None not in value:
        low, high = min(value), max(value) + 1
    elif kind in ("GreaterThan", "GreaterThanOrEqual"):
        low = value + (kind == "GreaterThan")
    elif kind in ("LessThan", "LessThanOrEqual"):
        high = value + (kind == "LessThanOrEqual")
    return replace(
        bounds, first_offset=_largest(bounds.first_offset, low), end_offset=_smallest(bounds.end_offset, high)
    )


def _time_bounds(bounds: Narrow, kind: str, value: datetime) -> Narrow:
    # Spark hands over moments in UTC, with or without saying so.
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    ms = int(moment.timestamp() * 1000)
    low = (
        ms - MARGIN_MS if kind in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual") else None
    )
    high = ms + MARGIN_MS if kind in ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual") else None
    return replace(bounds, from_ms=_largest(bounds.from_ms, low), before_ms=_smallest(bounds.before_ms, high))


def _largest(known: int | None, other: int | None) -> int | None:
    return known if other is None else other if known is None else max(known, other)


def _smallest(known: int | None, other: int | None) -> int | None:
    return known if other is None else other if known is None else min(known, other)
