"""JSON as Java's fastjson 1.2 writes and reads it.

The dialect differs from JSON in the keys of maps: integers stand bare (`{0:"a"}`) and so do objects
(`{{"brokerName":"b","queueId":0,"topic":"T"}:3}`). Reading takes strict JSON through msgspec and everything
else through a small recursive parser, which also accepts unquoted names, single quotes and raw control
characters. Writing is in `fastjson_write` and offered here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from orbitmq.wire.errors import BadBody
from orbitmq.wire.fastjson_write import MessageQueue, dumps, dumps_pretty, dumps_strict

__all__ = [
    "MAX_DEPTH",
    "MessageQueue",
    "as_queue",
    "dumps",
    "dumps_pretty",
    "dumps_strict",
    "loads",
    "loads_tolerant",
    "parse_int",
]

# Real bodies nest about eight deep; the bound keeps a hostile one from exhausting the interpreter's stack.
MAX_DEPTH: Final = 100
_MAX_INT_DIGITS: Final = 40
_SHOWN_CHARS: Final = 30


_QUEUE_KEYS: Final = frozenset(MessageQueue._fields)

_strict: Final = msgspec.json.Decoder()
_space: Final[Callable[..., re.Match[str]]] = re.compile(r"[ \t\r\n\f\b\ufeff]*").match  # type: ignore[assignment]
_number: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?").match
_word: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*").match
_plain: Final = {'"': re.compile(r'[^"\\]*').match, "'": re.compile(r"[^'\\]*").match}
_integer: Final = re.compile(rf"[+-]?[0-9]{{1,{_MAX_INT_DIGITS}}}").fullmatch
_LITERALS: Final = {"true": True, "false": False, "null": None, "NaN": None, "undefined": None}
_ESCAPES: Final = {
    '"': '"', "'": "'", "\\": "\\", "/": "/", "0": "\0",
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_HEX: Final = re.compile(r"[0-9a-fA-F]+").fullmatch


def loads(data: bytes | bytearray | memoryview | str) -> Any:
    """Read one value. Bare integer keys become ints, queue keys `MessageQueue`; quoted keys stay strings."""
    try:
        return _strict.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return loads_tolerant(data)
    except RecursionError as error:
        raise BadBody("JSON is nested too deeply") from error


def loads_tolerant(data: bytes | bytearray | memoryview | str) -> Any:
    """The plain twin of `loads`, which never takes the strict short cut."""
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
    except UnicodeDecodeError as error:
        raise BadBody(f"JSON is not UTF-8: {error}") from error
    value, pos = _value(text, _space(text, 0).end(), MAX_DEPTH)
    pos = _space(text, pos).end()
    if pos != len(text):
        raise _unexpected(text, pos, "the end of the text")
    return value


def parse_int(text: str) -> int | None:
    """The integer a text stands for, blanks around it ignored; None if it is none (no `1_000`, no `１`)."""
    text = text.strip()
    return int(text) if _integer(text) else None


def as_queue(value: Any) -> MessageQueue | None:
    """The queue that a decoded key or value stands for, whichever form the peer chose; None if it is none."""
    if isinstance(value, MessageQueue):
        return value
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = loads(value)
        except BadBody:
            return None
    if isinstance(value, dict) and value.keys() >= _QUEUE_KEYS:
        topic, broker, queue_id = value["topic"], value["brokerName"], value["queueId"]
        if isinstance(queue_id, str):
            queue_id = parse_int(queue_id)
        if isinstance(topic, str) and isinstance(broker, str) and type(queue_id) is int:
            return MessageQueue(topic, broker, queue_id)
    return None


def _unexpected(text: str, pos: int, wanted: str) -> BadBody:
    if pos >= len(text):
        return BadBody(f"JSON ends at character {len(text)} where {wanted} should be")
    return BadBody(f"JSON has {text[pos : pos + _SHOWN_CHARS]!r} at character {pos} where {wanted} should be")


def _value(text: str, pos: int, depth: int) -> tuple[Any, int]:
    """The value that starts at pos (no blank there), and the position after it."""
    char = text[pos : pos + 1]
    if char == "{":
        return _object(text, pos + 1, depth - 1)
    if char == "[":
        return _array(text, pos + 1, depth - 1)
    if char == '"' or char == "'":
        return _string(text, pos + 1, char)
    match = _number(text, pos)
    if match is not None:
        return _to_number(match), match.end()
    match = _word(text, pos)
    if match is not None and match[0] in _LITERALS:
        return _LITERALS[match[0]], match.end()
    raise _unexpected(text, pos, "a value")


def _to_number(match: re.Match[str]) -> int | float:
    if match[1] or match[2]:
        return float(match[0])
    if len(match[0]) > _MAX_INT_DIGITS:
        raise BadBody(f"JSON holds an integer of {len(match[0])} digits")
    return int(match[0])


def _object(text: str, pos: int, depth: int) -> tuple[dict[Any, Any], int]:
    if depth < 0:
        raise BadBody(f"JSON is nested deeper than {MAX_DEPTH}")
    result: dict[Any, Any] = {}
    pos = _space(text, pos).end()
    if text[pos : pos + 1] == "}":
        return result, pos + 1
    while True:
        key, pos = _key(text, pos, depth)
        pos = _space(text, pos).end()
        if text[pos : pos + 1] != ":":
            raise _unexpected(text, pos, "':'")
        result[key], pos = _value(text, _space(text, pos + 1).end(), depth)
        pos = _space(text, pos).end()
        char = text[pos : pos + 1]
        if char == "}":
            return result, pos + 1
        if char != ",":
            raise _unexpected(text, pos, "',' or '}'")
        pos = _space(text, pos + 1).end()


def _key(text: str, pos: int, depth: int) -> tuple[Any, int]:
    char = text[pos : pos + 1]
    if char == '"' or char == "'":
        return _string(text, pos + 1, char)
    if char == "{":
        value, pos = _object(text, pos + 1, depth - 1)
        # An object that is no queue (a "$ref", say) is kept as its text, the way strict writers quote it.
        return as_queue(value) or dumps(value).decode(), pos
    match = _number(text, pos)
    if match is not None:
        number = _to_number(match)
        return number if isinstance(number, int) else match[0], match.end()
    match = _word(text, pos)
    if match is not None:
        return match[0], match.end()
    raise _unexpected(text, pos, "a key")


def _array(text: str, pos: int, depth: int) -> tuple[list[Any], int]:
    if depth < 0:
        raise BadBody(f"JSON is nested deeper than {MAX_DEPTH}")
    result: list[Any] = []
    pos = _space(text, pos).end()
    if text[pos : pos + 1] == "]":
        return result, pos + 1
    while True:
        value, pos = _value(text, pos, depth)
        result.append(value)
        pos = _space(text, pos).end()
        char = text[pos : pos + 1]
        if char == "]":
            return result, pos + 1
        if char != ",":
            raise _unexpected(text, pos, "',' or ']'")
        pos = _space(text, pos + 1).end()


def _string(text: str, pos: int, quote: str) -> tuple[str, int]:
    plain = _plain[quote]
    parts: list[str] = []
    start = pos - 1
    while True:
        match = plain(text, pos)
        assert match is not None  # the pattern matches the empty text
        parts.append(match[0])
        pos = match.end()
        char = text[pos : pos + 1]
        if char == quote:
            break
        if not char:
            raise BadBody(f"JSON has a text that starts at character {start} and does not end")
        part, pos = _escape(text, pos + 1)
        parts.append(part)
    if len(parts) == 1:
        return parts[0], pos + 1
    joined = "".join(parts)
    try:
        # Escaped surrogates come in pairs; joining them is what a UTF-16 round trip does.
        return joined.encode("utf-16-be", "surrogatepass").decode("utf-16-be"), pos + 1
    except UnicodeDecodeError as error:
        raise BadBody(f"JSON has a lone surrogate in the text that starts at character {start}") from error


def _escape(text: str, pos: int) -> tuple[str, int]:
    char = text[pos : pos + 1]
    if char in ("u", "x"):
        end = pos + (5 if char == "u" else 3)
        digits = text[pos + 1 : end]
        if len(digits) == end - pos - 1 and _HEX(digits):
            return chr(int(digits, 16)), end
    elif char in _ESCAPES:
        return _ESCAPES[char], pos + 1
    raise BadBody(f"JSON has an unknown escape {text[pos - 1 : pos + 5]!r} at character {pos - 1}")
