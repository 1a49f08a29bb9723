"""Property texts read as Java reads them, and numbers compared as Java compares them.

A filter must give the same answer as the broker a group came from, so Python's own readers, which know
other forms (`1_000`, `inf`), are only used on texts whose form was checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from orbitmq.broker.filter.syntax import NumberKind


class Unreadable(Exception):
    """A property does not read as the number it is compared with: the message does not match."""


_TRIMMED = bytes(range(0x21))
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?").fullmatch
_HEXADECIMAL = re.compile(
    rb"[+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+"
).fullmatch
_NAMED = {
    b"NaN": math.nan,
    b"+NaN": math.nan,
    b"-NaN": math.nan,
    b"Infinity": math.inf,
    b"+Infinity": math.inf,
    b"-Infinity": -math.inf,
}
_MAX_DIGITS = 19
_INT_END = 1 << 31
_LONG_END = 1 << 63


def read_int(text: bytes) -> int:
    """Integer.valueOf."""
    value = text if text.isdigit() and len(text) < 10 else None
    number = int(value) if value else _whole(text)
    if -_INT_END <= number < _INT_END:
        return number
    raise Unreadable


def read_long(text: bytes) -> int:
    """Long.valueOf."""
    number = _whole(text)
    if -_LONG_END <= number < _LONG_END:
        return number
    raise Unreadable


def _whole(text: bytes) -> int:
    """Digits with an optional sign, nothing else; digits of any script, as in Java."""
    digits = text[1:] if text[:1] in (b"+", b"-") else text
    if not digits.isdigit():
        digits = _ascii_digits(digits)
    digits = digits.lstrip(b"0") or b"0"
    if len(digits) > _MAX_DIGITS:
        raise Unreadable
    return -int(digits) if text[:1] == b"-" else int(digits)


def _ascii_digits(raw: bytes) -> bytes:
    text = raw.decode("utf-8", "replace")
    # Java looks at UTF-16 units, so digits beyond the first plane are none to it.
    if not text.isdecimal() or max(text) > "\uffff":
        raise Unreadable
    return b"".join(b"%d" % int(char) for char in text)


def read_double(text: bytes) -> float:
    """Double.valueOf."""
    text = text.strip(_TRIMMED)
    named = _NAMED.get(text)
    if named is not None:
        return named
    digits = text[:-1] if text[-1:] in b"fFdD" and text else text
    if _DECIMAL(digits):
        return float(digits)
    if _HEXADECIMAL(digits):
        try:
            return float.fromhex(digits.decode())
        except OverflowError:
            return -math.inf if digits[:1] == b"-" else math.inf
    raise Unreadable


def read_boolean(text: bytes) -> bool:
    """Boolean.valueOf."""
    return text.lower() == b"true"


READERS: dict[NumberKind, Callable[[bytes], int | float]] = {
    NumberKind.INT: read_int,
    NumberKind.LONG: read_long,
    NumberKind.DOUBLE: read_double,
}


def compare(left: int | float, right: int | float) -> int:
    """compareTo after Java's widening: with a floating number both are, and NaN is the largest of all."""
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    left, right = float(left), float(right)
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def _rank(number: float) -> int:
    """Tells apart what neither < nor > does: -0.0, 0.0 and everything equal, NaN."""
    if number != number:
        return 2
    return 0 if number == 0 and math.copysign(1, number) < 0 else 1
