"""An expression as a row of tokens. One pass, no backtracking, every token knows its place."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from orbitmq.broker.filter.syntax import MAX_CHARS, FilterSyntaxError


class Kind(Enum):
    NAME = "a name"
    NUMBER = "a number"
    TEXT = "a text"
    WORD = "a reserved word"
    SIGN = "a sign"
    END = "the end of the expression"


class Token(NamedTuple):
    kind: Kind
    text: str
    position: int

    def shown(self) -> str:
        return (
            self.kind.value
            if self.kind is Kind.END
            else repr(self.text)
            if self.kind is Kind.TEXT
            else f"`{self.text}`"
        )


# LIKE, ESCAPE, CONTAINS … are not here: they are names unless they stand where an operator is expected,
# because expressions written for a 4.9 broker may use them for properties.
WORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})

_BLANKS = " \t\n\r\f"
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
# Whatever looks like a number up to the next separator, so that 007 or 12x is one wrong number and not two
# tokens.
_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[A-Za-z0-9_$.]*")
_SIGNS = ("<>", ">=", "<=", "=", ">", "<", "(", ")", ",", "+", "-")


def tokens(text: str) -> list[Token]:
    if len(text) > MAX_CHARS:
        raise FilterSyntaxError(
            text, MAX_CHARS, f"the expression has {len(text)} characters, {MAX_CHARS} are allowed"
        )
    found: list[Token] = []
    position = 0
    while True:
        position = _skip(text, position)
        if position == len(text):
            found.append(Token(Kind.END, "", position))
            return found
        token, position = _next(text, position)
        found.append(token)


def _skip(text: str, position: int) -> int:
    """Past blanks and comments."""
    while position < len(text):
        if text[position] in _BLANKS:
            position += 1
        elif text.startswith("--", position):
            ends = [end for end in (text.find("\n", position), text.find("\r", position)) if end >= 0]
            position = min(ends) + 1 if ends else len(text)
        elif text.startswith("/*", position):
            end = text.find("*/", position + 2)
            if end < 0:
                raise FilterSyntaxError(text, position, "the comment is not closed by */")
            position = end + 2
        else:
            break
    return position


def _next(text: str, position: int) -> tuple[Token, int]:
    char = text[position]
    if char == "'":
        return _quoted(text, position)
    if match := _NAME.match(text, position):
        word = match[0].upper()
        if word in WORDS:
            return Token(Kind.WORD, word, position), match.end()
        return Token(Kind.NAME, match[0], position), match.end()
    if match := _NUMBER.match(text, position):
        return Token(Kind.NUMBER, match[0], position), match.end()
    for sign in _SIGNS:
        if text.startswith(sign, position):
            return Token(Kind.SIGN, sign, position), position + len(sign)
    raise FilterSyntaxError(text, position, _unexpected(text, position))


def _quoted(text: str, start: int) -> tuple[Token, int]:
    parts: list[str] = []
    position = start + 1
    while True:
        end = text.find("'", position)
        if end < 0:
            raise FilterSyntaxError(text, start, "the text is not closed by a single quote")
        parts.append(text[position:end])
        if text[end + 1 : end + 2] != "'":
            return Token(Kind.TEXT, "'".join(parts), start), end + 1
        position = end + 2


def _unexpected(text: str, position: int) -> str:
    if text[position] == '"':
        return 'texts are written in single quotes, not in "'
    if text.startswith("!=", position):
        return "`!=` is not SQL92; write `<>`"
    return f"the character {text[position]!r} has no meaning here"
