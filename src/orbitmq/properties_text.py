"""Java properties text: what configuration files and the configuration requests (25, 26, 318, 319) carry.

The rules are those of java.util.Properties: `#` and `!` comments, `=`, `:` or blanks between key and value,
backslash escapes with \\uXXXX, a backslash at the end of a line continues it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

BLANKS = " \t\f"
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
WRITTEN_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


class PropertiesError(ValueError):
    """The text is not Java properties; the message names the line."""


def load_properties(text: str) -> dict[str, str]:
    """Keys and values in the order of the text; a repeated key keeps its last value, as in Java."""
    found: dict[str, str] = {}
    for number, _, logical in logical_lines(text):
        key, value = _split(logical, number)
        found[key] = value
    return found


def dump_properties(properties: Mapping[str, str]) -> str:
    return "".join(f"{_escape_key(key)}={_escape_value(value)}\n" for key, value in properties.items())


def merge_properties(text: str, changes: Mapping[str, str]) -> str:
    """The text with the changed keys rewritten in place and new ones at the end.

    A configuration file belongs to its operator: comments, order and untouched lines stay as they are.
    """
    left = dict(changes)
    lines = _physical_lines(text)
    merged: list[str] = []
    copied = 0
    for number, count, logical in logical_lines(text):
        first = number - 1
        merged += lines[copied:first]
        copied = first + count
        key, _ = _split(logical, number)
        if key not in changes:
            merged += lines[first:copied]
        elif key in left:
            merged.append(dump_properties({key: left.pop(key)}).rstrip("\n"))
    merged += lines[copied:]
    merged += _physical_lines(dump_properties(left))
    return "".join(line + "\n" for line in merged)


def logical_lines(text: str) -> Iterator[tuple[int, int, str]]:
    """(number of the first line, count of lines, joined text) of each line that is not blank or a comment."""
    lines = _physical_lines(text)
    at = 0
    while at < len(lines):
        start = at
        logical = lines[at].lstrip(BLANKS)
        at += 1
        if not logical or logical[0] in "#!":
            continue
        while _continues(logical):
            logical = logical[:-1]
            if at == len(lines):
                break
            logical += lines[at].lstrip(BLANKS)
            at += 1
        yield start + 1, at - start, logical


def _physical_lines(text: str) -> list[str]:
    # Not str.splitlines: Java ends a line at \n, \r or \r\n only, and values may hold other separators.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(logical: str, number: int) -> tuple[str, str]:
    end = 0
    while end < len(logical) and logical[end] not in "=:" + BLANKS:
        end += 2 if logical[end] == "\\" else 1
    value = logical[end:].lstrip(BLANKS)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(BLANKS)
    return _unescape(logical[:end], number), _unescape(value, number)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    chars = iter(enumerate(text))
    for at, char in chars:
        if char != "\\":
            out.append(char)
            continue
        escaped = text[at + 1 : at + 2]
        next(chars, None)
        if escaped != "u":
            out.append(ESCAPES.get(escaped, escaped))
            continue
        digits = text[at + 2 : at + 6]
        if len(digits) < 4 or not all(d in "0123456789abcdefABCDEF" for d in digits):
            raise PropertiesError(
                f"line {number}: \\u must be followed by four hexadecimal digits, got {digits!r}"
            )
        out.append(chr(int(digits, 16)))
        for _ in range(4):
            next(chars)
    # Characters outside the basic plane arrive as two escaped surrogates.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape_value(text: str) -> str:
    escaped = _escape(text)
    # Only a leading blank would be lost: blanks inside and after a value are kept by every reader.
    return "\\" + escaped if escaped.startswith(" ") else escaped


def _escape_key(text: str) -> str:
    return "".join("\\" + char if char in "=: #!" else char for char in _escape(text))


def _escape(text: str) -> str:
    return "".join(WRITTEN_ESCAPES.get(char) or _ascii(char) for char in text)


def _ascii(char: str) -> str:
    # Java reads the bytes of a properties text as Latin-1: anything else only survives as an escape.
    if char.isascii():
        return char
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
