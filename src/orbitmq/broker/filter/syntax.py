"""The shapes a condition takes between text and function, and the error that says why it has none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MAX_CHARS = 16 * 1024
"""Longest expression; clients repeat it with every heartbeat."""
MAX_DEPTH = 50
"""Parentheses open at once, or signs in a row. The parser calls itself about ten times for each."""
MAX_HEIGHT = 200
"""Operators nested in each other: so deep do compiled conditions call each other."""
SHOWN_CHARS = 40


class FilterSyntaxError(ValueError):
    """An expression that cannot be a filter: where, why, and around which text."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        start = max(0, position - SHOWN_CHARS // 2)
        excerpt = " ".join(text[start : start + SHOWN_CHARS].split())
        dots = "…" if start else "", "…" if start + SHOWN_CHARS < len(text) else ""
        super().__init__(
            f"SQL92 error at character {position + 1}: {problem}; in: {dots[0]}{excerpt}{dots[1]}"
        )
        self.position = position
        self.problem = problem


class NumberKind(Enum):
    """Java's type of a number literal, which is also how a property compared with it is read."""

    INT = 32
    LONG = 64
    DOUBLE = 0


@dataclass(frozen=True, slots=True)
class Property:
    name: str


@dataclass(frozen=True, slots=True)
class Text:
    value: str


@dataclass(frozen=True, slots=True)
class Number:
    value: int | float
    kind: NumberKind


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE or NULL: conditions that depend on nothing."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Truth:
    """A property where a condition is expected: unknown without it, false with it, since its value is only
    text.
    """

    operand: Property


@dataclass(frozen=True, slots=True)
class Not:
    operand: Condition


@dataclass(frozen=True, slots=True)
class Logic:
    """Two or more conditions joined by AND (or OR); a chain is flat, however long."""

    conjunction: bool
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Equal:
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Order:
    """`sign` is one of > >= < <=."""

    sign: str
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Between:
    operand: Value
    low: Value
    high: Value


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Value


@dataclass(frozen=True, slots=True)
class OneOf:
    operand: Property
    texts: tuple[str, ...]
    negated: bool


class Part(Enum):
    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class HasPart:
    """False without the property, also when negated: so do 5.x brokers."""

    part: Part
    operand: Property
    text: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Like:
    operand: Property
    pattern: str
    escape: str | None
    negated: bool


Condition = Constant | Truth | Not | Logic | Equal | Order | Between | IsNull | OneOf | HasPart | Like
Value = Property | Text | Number | Condition
CONDITIONS = (Constant, Truth, Not, Logic, Equal, Order, Between, IsNull, OneOf, HasPart, Like)


def children(node: Value) -> tuple[Value, ...]:
    match node:
        case Not(operand) | IsNull(operand):
            return (operand,)
        case Logic(_, parts):
            return parts
        case Equal(left, right) | Order(_, left, right):
            return left, right
        case Between(operand, low, high):
            return operand, low, high
    return ()


def height(node: Value) -> int:
    """How deep a tree is. With a list of what is left to see: the tree may be deeper than the stack."""
    deepest = 0
    left = [(node, 1)]
    while left:
        current, depth = left.pop()
        deepest = max(deepest, depth)
        left += [(child, depth + 1) for child in children(current)]
    return deepest
