"""Moments and places as people write them: `2026-11-15 10:00`, `15m` (ago), `first`, an offset."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple

from orbitmq.cli.output import CommandError, ExitCode

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-?(\d+)(ms|s|m|h|d)(?: ago)?").fullmatch
# From here on a bare number is a time in milliseconds (the year 2001); no queue has that many messages.
_FIRST_EPOCH_MS: Final = 10**12
# The form that mqadmin takes.
_MQADMIN_TIME = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d)(?::(\d{3}))?").fullmatch

TIME_HELP = "2026-11-15T10:00 (local), a time with zone, milliseconds since 1970, or 15m, 2h, 3d (ago)"


class Place(NamedTuple):
    """Where in a queue to begin: `kind` is first, last, time (value in ms) or offset."""

    kind: str
    value: int = 0


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970."""
    text = text.strip()
    if text == "now":
        return now_ms
    if match := _AGO(text):
        return now_ms - int(match[1]) * _UNITS_MS[match[2]]
    if text.isdigit() and int(text) >= _FIRST_EPOCH_MS:
        return int(text)
    if match := _MQADMIN_TIME(text):
        text = f"{match[1]}T{match[2]}.{match[3] or '000'}"
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise CommandError(
            f"'{text}' is not a time", hint=f"write {TIME_HELP}", exit_code=ExitCode.USAGE
        ) from None


def parse_duration(text: str) -> int:
    """Milliseconds of `90s`, `15m`, `2h` or `40d`."""
    match = _AGO(text.strip())
    if match is None or "ago" in text or text.strip().startswith("-"):
        raise CommandError(
            f"'{text}' is not a span of time",
            hint="write a number and ms, s, m, h or d, such as 90s or 15m",
            exit_code=ExitCode.USAGE,
        )
    return int(match[1]) * _UNITS_MS[match[2]]


def parse_place(text: str, now_ms: int) -> Place:
    """`first`, `last`, an offset, or a time."""
    text = text.strip()
    if text in ("first", "last"):
        return Place(text)
    if text.isdigit() and int(text) < _FIRST_EPOCH_MS:
        return Place("offset", int(text))
    try:
        return Place("time", parse_time(text, now_ms))
    except CommandError:
        raise CommandError(
            f"'{text}' is not a place in a queue",
            hint=f"write first, last, an offset, or a time: {TIME_HELP}",
            exit_code=ExitCode.USAGE,
        ) from None


def parse_pairs(words: list[str], what: str) -> dict[str, str]:
    """`name=value` words of an option that can be repeated."""
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise CommandError(f"'{word}' is not a {what}", hint="write name=value", exit_code=ExitCode.USAGE)
        pairs[name] = value
    return pairs
