"""Times and places as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from orbitmq.cli.output import CommandError, ExitCode
from orbitmq.cli.times import Place, parse_pairs, parse_place, parse_time

NOW = 1_794_000_000_000


def local_ms(*parts: int) -> int:
    return round(datetime(*parts).timestamp() * 1000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("15m", NOW - 15 * 60_000),
        ("-15m", NOW - 15 * 60_000),
        ("2h ago", NOW - 2 * 3_600_000),
        ("3d", NOW - 3 * 86_400_000),
        ("10s", NOW - 10_000),
        ("250ms", NOW - 250),
        ("1700000000000", 1_700_000_000_000),
        ("2026-11-15", local_ms(2026, 11, 15)),
        ("2026-11-15 10:30", local_ms(2026, 11, 15, 10, 30)),
        ("2026-11-15T10:30:05", local_ms(2026, 11, 15, 10, 30, 5)),
        ("2026-11-15#10:30:05:250", local_ms(2026, 11, 15, 10, 30, 5) + 250),
        (
            "2026-11-15T10:30:00Z",
            round(datetime(2026, 11, 15, 10, 30, tzinfo=UTC).timestamp() * 1000),
        ),
        (
            "2026-11-15T10:30:00+02:00",
            round(datetime(2026, 11, 15, 8, 30, tzinfo=UTC).timestamp() * 1000),
        ),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert parse_time(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "15x", "2026-13-01", "12:99", "1700000000", "first"])
def test_what_is_no_time_is_wrong_use(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_time(text, NOW)
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("first", Place("first")),
        ("last", Place("last")),
        ("0", Place("offset", 0)),
        ("123456", Place("offset", 123456)),
        ("1700000000000", Place("time", 1_700_000_000_000)),
        ("5m", Place("time", NOW - 300_000)),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert parse_place(text, NOW) == place


def test_what_is_no_place_lists_the_choices() -> None:
    with pytest.raises(CommandError) as caught:
        parse_place("middle", NOW)
    assert "first, last, an offset" in caught.value.hint


def test_pairs() -> None:
    assert parse_pairs(["a=1", "b=x=y", "c="], "property") == {"a": "1", "b": "x=y", "c": ""}
    for bad in ("a", "=1"):
        with pytest.raises(CommandError, match="is not a property"):
            parse_pairs([bad], "property")
