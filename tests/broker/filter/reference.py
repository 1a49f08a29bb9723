"""What a condition means, written down slowly: a walk over the tree with decoded properties."""

from __future__ import annotations

import re

from orbitmq.broker.filter.syntax import (
    Between,
    Constant,
    Equal,
    HasPart,
    IsNull,
    Like,
    Logic,
    Not,
    Number,
    NumberKind,
    OneOf,
    Order,
    Part,
    Property,
    Text,
    Truth,
    Value,
)

Answer = str | bool | Number | None


class Failed(Exception):
    """Java would throw: the message does not match, whatever else the condition says."""


def matches(node: Value, properties: dict[str, str]) -> bool:
    try:
        return evaluate(node, properties) is True
    except Failed:
        return False


def evaluate(node: Value, properties: dict[str, str]) -> Answer:
    def of(child: Value) -> Answer:
        return evaluate(child, properties)

    if isinstance(node, Property):
        return properties.get(node.name)
    if isinstance(node, Text | Constant):
        return node.value
    if isinstance(node, Number):
        return node
    if isinstance(node, Truth):
        return None if of(node.operand) is None else False
    if isinstance(node, Not):
        value = of(node.operand)
        return None if value is None else not value
    if isinstance(node, Logic):
        so_far: Answer = of(node.parts[0])
        for part in node.parts[1:]:
            so_far = _and(so_far, part, properties) if node.conjunction else _or(so_far, part, properties)
        return so_far
    if isinstance(node, IsNull):
        return of(node.operand) is None
    if isinstance(node, Equal):
        return _equal(of(node.left), of(node.right))
    if isinstance(node, Order):
        return _order(node.sign, of(node.left), of(node.right))
    if isinstance(node, Between):
        low = _order(">=", of(node.operand), of(node.low))
        return False if low is False else _and(low, Order("<=", node.operand, node.high), properties)
    value = of(node.operand)
    if isinstance(node, HasPart):
        if not isinstance(value, str) or not node.text:
            return False
        found = {
            Part.CONTAINS: node.text in value,
            Part.STARTSWITH: value.startswith(node.text),
            Part.ENDSWITH: value.endswith(node.text),
        }[node.part]
        return found != node.negated
    if value is None:
        return None
    assert isinstance(value, str)
    if isinstance(node, OneOf):
        return (value in node.texts) != node.negated
    assert isinstance(node, Like)
    return naive_like(value, node.pattern, node.escape) != node.negated


def _and(left: Answer, right: Value, properties: dict[str, str]) -> Answer:
    if left is False:
        return False
    value = evaluate(right, properties)
    if value is False:
        return False
    return None if left is None or value is None else True


def _or(left: Answer, right: Value, properties: dict[str, str]) -> Answer:
    if left is True:
        return True
    value = evaluate(right, properties)
    if value is True:
        return True
    return None if left is None or value is None else False


def _equal(left: Answer, right: Answer) -> Answer:
    if left is None and right is None:
        return True
    if left is None:
        return None
    if right is None:
        return False
    if isinstance(left, str) and isinstance(right, bool):
        return (left.lower() == "true") is right
    if isinstance(left, bool) and isinstance(right, str):
        raise Failed
    if isinstance(left, Number) or isinstance(right, Number):
        return _compared(left, right) == 0
    return left == right


def _order(sign: str, left: Answer, right: Answer) -> Answer:
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        left, right = (Number(_read(text, NumberKind.DOUBLE), NumberKind.DOUBLE) for text in (left, right))
    answer = _compared(left, right)
    return {">": answer > 0, ">=": answer >= 0, "<": answer < 0, "<=": answer <= 0}[sign]


def _compared(left: Answer, right: Answer) -> int:
    if isinstance(left, str) and isinstance(right, Number):
        left = Number(_read(left, right.kind), right.kind)
    if isinstance(right, str) and isinstance(left, Number):
        right = Number(_read(right, left.kind), left.kind)
    assert isinstance(left, Number)
    assert isinstance(right, Number)
    one, other = left.value, right.value
    if NumberKind.DOUBLE in (left.kind, right.kind):
        one, other = float(one), float(other)
        # Java's order of floating numbers: -0.0 before 0.0, NaN behind everything.
        keys = [(2, 0.0, 0) if x != x else (1, x, 0 if str(x) == "-0.0" else 1) for x in (one, other)]
        return (keys[0] > keys[1]) - (keys[0] < keys[1])
    return (one > other) - (one < other)


def _read(text: str, kind: NumberKind) -> int | float:
    if kind is NumberKind.DOUBLE:
        text = text.strip("".join(map(chr, range(33))))
        sign = -1.0 if text.startswith("-") else 1.0
        bare = re.sub(r"^[+-]", "", text)
        if bare in ("NaN", "Infinity"):
            return sign * float(bare)
        if re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?", bare):
            return sign * float(re.sub(r"[fFdD]$", "", bare))
        if re.fullmatch(r"0[xX][0-9a-fA-F]+[pP][+-]?[0-9]+", bare):
            return sign * float.fromhex(bare)
        raise Failed
    if not re.fullmatch(r"[+-]?\d+", text):
        raise Failed
    number = int(text)
    if not -(1 << kind.value - 1) <= number < 1 << kind.value - 1:
        raise Failed
    return number


def naive_like(value: str, pattern: str, escape: str | None) -> bool:
    """By trying every way: exponential, and obviously right."""
    if not pattern:
        return not value
    head, rest = pattern[0], pattern[1:]
    if head == escape:
        return value[:1] == rest[0] and naive_like(value[1:], rest[1:], escape)
    if head == "%":
        return any(naive_like(value[at:], rest, escape) for at in range(len(value) + 1))
    return bool(value) and head in ("_", value[0]) and naive_like(value[1:], rest, escape)
