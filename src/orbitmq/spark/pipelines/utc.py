"""Moments of Spark's tables, the same wherever the driver stands.

Spark hands out timestamps as naive datetimes in the time zone of the driver's machine, where an hour of autumn comes
twice. As numbers they need no zone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def collected(table: DataFrame) -> list[dict[str, Any]]:
    """All rows; columns that are timestamps as datetimes in UTC."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import TimestampType

    times = {field.name for field in table.schema.fields if isinstance(field.dataType, TimestampType)}
    plain = table.select(
        *[F.unix_micros(name).alias(name) if name in times else F.col(name) for name in table.columns]
    )
    return [
        {name: _moment(value) if name in times else value for name, value in row.asDict().items()}
        for row in plain.collect()
    ]


def instant(when: datetime) -> Column:
    """A moment as a value in a query, to the millisecond, as brokers and clients write times."""
    from pyspark.sql import functions as F

    return F.timestamp_millis(F.lit(round(when.timestamp() * 1000)))


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)
