"""How settings work: declared as dataclass fields, read from RocketMQ's keys, refused with a reason.

A settings table is a dataclass whose fields are made by `setting(key, default, doc)`. `Settings` gives such a
dataclass its way in (`from_properties`, `update`) and out (`to_properties`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from enum import StrEnum
from typing import Any, NamedTuple, Self, TypeVar, get_type_hints

T = TypeVar("T")

DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
QUEUE_UNIT_BYTES = 20


class ConfigError(ValueError):
    """A setting has a value it cannot have: names the key, the value and what was expected."""


class FlushDiskType(StrEnum):
    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class BrokerRole(StrEnum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class Mismatch(StrEnum):
    """What happens to a consumer whose subscription differs from that of its group."""

    WARN = "warn"
    REFUSE = "refuse"


class Range(NamedTuple):
    low: int
    high: int | None = None

    def __str__(self) -> str:
        return f"{self.low} to {self.high}" if self.high is not None else f"{self.low} or more"


Check = Callable[[Any], str | None]
"""Looks at a parsed value; returns what was expected when it will not do."""


class Key(NamedTuple):
    """One row of a settings table, as the mechanism sees it."""

    name: str
    attribute: str
    kind: type[Any]
    default: Any
    doc: str
    within: Range | None
    check: Check | None
    inert: str
    alias: str

    def parse(self, text: str) -> Any:
        text = text.strip()
        value = _parse(self.kind, text)
        if value is None:
            raise self._refused(text, _expected(self.kind))
        if self.within is not None and not self._in_range(value):
            raise self._refused(text, f"a whole number, {self.within}")
        if self.check is not None and (expected := self.check(value)) is not None:
            raise self._refused(text, expected)
        return value

    def _in_range(self, value: int) -> bool:
        low, high = self.within or (value, None)
        return low <= value and (high is None or value <= high)

    def _refused(self, text: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.name}={text}: expected {expected}")


def setting(
    key: str,
    default: T,
    doc: str,
    *,
    within: Range | None = None,
    check: Check | None = None,
    inert: str = "",
    alias: str = "",
) -> T:
    """A field of a settings table. `inert` says why a setting of RocketMQ's has no effect here."""
    row = {"key": key, "doc": doc, "within": within, "check": check, "inert": inert, "alias": alias}
    made: T = field(default=default, metadata=row)
    return made


def keys_of(table: type[Any]) -> tuple[Key, ...]:
    kinds = get_type_hints(table)
    return tuple(
        Key(
            name=f.metadata["key"],
            attribute=f.name,
            kind=kinds[f.name],
            default=f.default,
            doc=f.metadata["doc"],
            within=f.metadata["within"],
            check=f.metadata["check"],
            inert=f.metadata["inert"],
            alias=f.metadata["alias"],
        )
        for f in fields(table)
    )


def keys_by_name(table: type[Any]) -> Mapping[str, Key]:
    return {name: key for key in keys_of(table) for name in (key.alias, key.name) if name}


class Settings:
    """The methods of a settings table; a table's dataclass inherits the rows and this."""

    __slots__ = ()

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> tuple[Self, list[str]]:
        """The settings, and the keys that this table does not know. Raises ConfigError."""
        config = cls()
        return config, config.update(properties)

    def update(self, properties: Mapping[str, str]) -> list[str]:
        """Takes over all values or, when one of them is wrong, none; returns the keys not known."""
        known = keys_by_name(type(self))
        parsed = {
            known[name].attribute: known[name].parse(text)
            for name, text in properties.items()
            if name in known
        }
        for attribute, value in parsed.items():
            setattr(self, attribute, value)
        return [name for name in properties if name not in known]

    def to_properties(self) -> dict[str, str]:
        return {key.name: _text(getattr(self, key.attribute)) for key in keys_of(type(self))}


def delays(text: str) -> str | None:
    if delay_levels_ms(text):
        return None
    return "delays such as '1s 5s 10m 2h 1d', with units s, m, h, d and blanks between"


def delay_levels_ms(text: str) -> tuple[int, ...]:
    """Milliseconds of level 1, 2, …; empty when the text is not a list of delays."""
    words = text.split()
    if not all(w[-1] in DELAY_UNITS_MS and w[:-1].isascii() and w[:-1].isdigit() for w in words):
        return ()
    return tuple(int(w[:-1]) * DELAY_UNITS_MS[w[-1]] for w in words)


def hours(text: str) -> str | None:
    words = text.split(";")
    if all(word.isascii() and word.isdigit() and int(word) <= 23 for word in words):
        return None
    return "hours of the day from 00 to 23 with `;` between, such as '04' or '02;14'"


def whole_units(size_bytes: int) -> str | None:
    if size_bytes > 0 and size_bytes % QUEUE_UNIT_BYTES == 0:
        return None
    return f"a multiple of {QUEUE_UNIT_BYTES}, the bytes of a queue entry"


def _parse(kind: type[Any], text: str) -> Any:
    """The value, or None when the text is not one of this kind."""
    if kind is str:
        return text
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower())
    if kind is int:
        digits = text.removeprefix("-")
        return int(text) if digits.isascii() and digits.isdigit() else None
    return next((member for member in kind if member.value.lower() == text.lower()), None)


def _expected(kind: type[Any]) -> str:
    if kind is bool:
        return "true or false"
    if kind is int:
        return "a whole number"
    names = [member.value for member in kind]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
