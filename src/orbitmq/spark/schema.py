"""The columns of a topic as a table: their names, their types in Spark and in Arrow, and which are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from orbitmq.spark.errors import BadOption

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final[dict[str, str]] = {
    "topic": "string",
    "broker": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "msg_id": "string",
    "offset_msg_id": "string",
    "body": "binary",
    "tags": "string",
    "keys": "string",
    "properties": "map<string,string>",
    "born_time": "timestamp",
    "store_time": "timestamp",
    "born_host": "string",
    "store_host": "string",
    "reconsume_times": "int",
    "sys_flag": "int",
}
"""Name to Spark type, in the order of the table. All may be null in Spark's eyes; most never are."""

ALL_COLUMNS: Final = tuple(COLUMNS)


def parse_columns(text: str) -> tuple[str, ...]:
    """The value of the option `columns`: names separated by commas, in the order wanted; empty or `*` for all."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names or names == ("*",):
        return ALL_COLUMNS
    for name in names:
        if name not in COLUMNS:
            raise BadOption(
                "columns", f"there is no column {name!r}", hint=f"choose from {', '.join(COLUMNS)}"
            )
    return names


def ddl(columns: Iterable[str]) -> str:
    """The schema as Spark's SQL writes it."""
    return ", ".join(f"{name} {COLUMNS[name]}" for name in columns)


def arrow_type(name: str) -> pa.DataType:
    import pyarrow as pa

    types: dict[str, Any] = {
        "string": pa.string,
        "int": pa.int32,
        "bigint": pa.int64,
        "binary": pa.binary,
        "timestamp": lambda: pa.timestamp("us", tz="UTC"),
        "map<string,string>": lambda: pa.map_(pa.string(), pa.string()),
    }
    made: pa.DataType = types[COLUMNS[name]]()
    return made


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """What Spark expects of record batches with these columns: it compares the types to the letter."""
    return _schema_of(tuple(columns))


@cache
def _schema_of(columns: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(name, arrow_type(name)) for name in columns])


def columns_of(schema: Any, others: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The names of a Spark schema, after checking that a schema given by the user fits this table.

    `others` are columns that may have another type.
    """
    types = COLUMNS | dict(others or {})
    names = []
    for field in schema.fields:
        wanted = types.get(field.name)
        given = field.dataType.simpleString()
        if wanted is None or given != wanted:
            problem = "is no column of this source" if wanted is None else f"is {wanted} here, not {given}"
            raise BadOption(
                "schema", f"the column {field.name!r} {problem}", hint=f"choose from: {ddl(COLUMNS)}"
            )
        names.append(field.name)
    return tuple(names)
