"""Rows to messages: which columns a table may have, and what each row asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orbitmq.client.errors import BadRequest
from orbitmq.spark.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Column, the Spark types it may have, and what it is for.
COLUMNS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "topic": (
        ("string",),
        "where the message goes; the option `topic` stands in for a column that is absent",
    ),
    "body": (("binary", "string"), "the message itself; text is written as UTF-8"),
    "tags": (("string",), "its tag"),
    "keys": (("string", "array<string>"), "its keys; in a text they are separated by blanks"),
    "properties": (("map<string,string>",), "its user properties"),
    "order_key": (
        ("string", "int", "bigint", "binary"),
        "messages with the same key go to the same queue, in the order of the rows of a partition",
    ),
    "deliver_at": (("timestamp",), "not delivered before this time"),
    "delay_level": (("int", "bigint", "smallint", "tinyint"), "delivered after the delay of this level"),
}


class BadTable(SourceError, BadRequest):
    """The table does not fit: the text names the column."""


class BadRow(SourceError, BadRequest):
    """A row that cannot become a message; the text names the row."""


class Row(NamedTuple):
    topic: str
    body: bytes
    tag: str | None
    keys: Sequence[str]
    properties: dict[str, str]
    order_key: str | None
    deliver_ms: int | None
    delay_level: int

    @property
    def is_delayed(self) -> bool:
        return self.deliver_ms is not None or self.delay_level > 0


def check_schema(schema: StructType, default_topic: str | None) -> None:
    """Refuses a table whose columns or types do not fit, naming the column and what it may be."""
    for field in schema.fields:
        known = COLUMNS.get(field.name)
        if known is None:
            raise BadTable(
                f"column '{field.name}' ({field.dataType.simpleString()}) is not one that the orbitmq sink writes",
                hint=f"drop it or rename it; the columns are {', '.join(COLUMNS)}",
            )
        types, meaning = known
        if field.dataType.simpleString() not in types:
            raise BadTable(
                f"column '{field.name}' has the type {field.dataType.simpleString()}, "
                f"allowed is {' or '.join(types)}",
                hint=f"cast it; it is {meaning}",
            )
    names = {field.name for field in schema.fields}
    if "body" not in names:
        raise BadTable(
            "there is no column 'body'",
            hint="name the column that holds the message `body` (binary or string)",
        )
    if "topic" not in names and default_topic is None:
        raise BadTable(
            "there is neither a column 'topic' nor an option 'topic'",
            hint='add .option("topic", NAME), or a column that names the topic of each row',
        )
    if {"deliver_at", "delay_level"} <= names:
        raise BadTable(
            "there are a column 'deliver_at' and a column 'delay_level'",
            hint="a message has one delay: keep one",
        )


def rows_of(batch: pa.RecordBatch, default_topic: str | None, first_row: int, task: int) -> Iterator[Row]:
    """The rows of one Arrow batch; `first_row` and `task` only serve to name a row that is wrong."""
    columns: dict[str, Any] = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    size = batch.num_rows
    nothing: list[Any] = [None] * size
    topics = columns.get("topic") or nothing
    tags = columns.get("tags") or nothing
    keys = columns.get("keys") or nothing
    properties = columns.get("properties") or nothing
    order_keys = columns.get("order_key") or nothing
    times = columns.get("deliver_at") or nothing
    levels = columns.get("delay_level") or nothing
    for index, body in enumerate(columns["body"]):
        topic = topics[index] or default_topic
        if not topic:
            raise BadRow(
                f"row {first_row + index} of task {task} has no topic (column 'topic' is null)",
                hint="fill the column, or give the option 'topic' for such rows",
            )
        if body is None:
            raise BadRow(
                f"row {first_row + index} of task {task} (topic {topic}) has no body (column 'body' is null)",
                hint="leave such rows out: a message needs at least one byte",
            )
        yield Row(
            topic,
            body.encode() if isinstance(body, str) else body,
            tags[index],
            keys_of(keys[index]),
            _properties(properties[index]),
            _order_key(order_keys[index]),
            _epoch_ms(times[index]),
            levels[index] or 0,
        )


def name_of(row: Row, number: int, task: int) -> str:
    """How an error names a row: where it is, and what a person can look for."""
    keys = f", keys {' '.join(row.keys)}" if row.keys else ""
    return f"row {number} of task {task} (topic {row.topic}{keys})"


def keys_of(value: str | list[str | None] | None) -> Sequence[str]:
    if value is None:
        return ()
    if isinstance(value, str):
        return value.split()
    return [key for key in value if key]


def _properties(value: Any) -> dict[str, str]:
    # Arrow gives a map as a list of pairs; an empty value cannot be stored and is the same as none.
    return {name: text for name, text in value or () if text}


def _order_key(value: Any) -> str | None:
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else str(value)


def _epoch_ms(value: datetime | None) -> int | None:
    return None if value is None else round(value.timestamp() * 1000)
