"""Durations and moments as people write them: `timedelta` or seconds, and `datetime` with a time zone."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from orbitmq.client.errors import BadRequest

Duration = timedelta | float


def seconds(value: Duration, what: str, *, zero: bool = False) -> float:
    """A duration in seconds; it must be positive, or at least not negative if `zero` is allowed."""
    number = _number(value)
    if number is None:
        raise BadRequest(
            f"{what} is {type(value).__name__}, not a duration",
            hint=f"pass seconds or a timedelta, for example {what}=2.5",
        )
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise BadRequest(f"{what} is {number:g} s", hint="pass a positive number of seconds or a timedelta")
    return number


def millis(value: Duration, what: str, *, zero: bool = False) -> int:
    return round(seconds(value, what, zero=zero) * 1000)


def moment_ms(value: datetime, what: str) -> int:
    """A moment in milliseconds since 1970; without a time zone nobody knows which moment is meant."""
    if not _is_datetime(value):
        raise BadRequest(
            f"{what} is {type(value).__name__}, not a datetime",
            hint=f"pass a datetime with a time zone, for example {what}=datetime.now(UTC) + timedelta(hours=1)",
        )
    if value.tzinfo is None:
        raise BadRequest(
            f"{what} has no time zone", hint="use datetime.now(UTC) or datetime(..., tzinfo=ZoneInfo(...))"
        )
    return round(value.timestamp() * 1000)


def _number(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None


def _is_datetime(value: object) -> bool:
    return isinstance(value, datetime)
