"""From a condition to a function over records.

A compiled condition takes a record and where its property text begins, and answers True, False or None for
unknown; `Unreadable` says that the message cannot match at all. Nothing is decoded, or even copied, but the
properties that are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import assert_never

from orbitmq.broker.filter.like import like_matcher
from orbitmq.broker.filter.parser import parse
from orbitmq.broker.filter.record import properties_at
from orbitmq.broker.filter.syntax import (
    Between,
    Condition,
    Constant,
    Equal,
    FilterSyntaxError,
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
    children,
)
from orbitmq.broker.filter.values import READERS, Unreadable, compare, read_boolean, read_double
from orbitmq.wire.properties import find_property

Compiled = Callable[[bytes, int], bool | None]
Getter = Callable[[bytes, int], bytes | None]
Accept = Callable[[bytes], bool]

_SIGNS: dict[str, Callable[[int | float, int | float], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le}
_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


def compile_sql(text: str) -> Accept:
    """Whether a stored record matches; FilterSyntaxError when the text is no condition."""
    found = _remembered(text)
    if isinstance(found, FilterSyntaxError):
        raise found.with_traceback(None)
    return found


def properties_of(text: str) -> frozenset[str]:
    """The properties that a condition looks at: nothing else of a message decides whether it matches."""
    found: set[str] = set()
    left: list[Value] = [parse(text)]
    while left:
        node = left.pop()
        if isinstance(node, Property):
            found.add(node.name)
        elif isinstance(node, Truth | OneOf | HasPart | Like):
            found.add(node.operand.name)
        left += children(node)
    return frozenset(found)


@lru_cache(maxsize=512)
def _remembered(text: str) -> Accept | FilterSyntaxError:
    """Pulls repeat their expression, wrong ones too."""
    try:
        matches = compile_condition(parse(text))
    except FilterSyntaxError as error:
        return error

    def accept(record: bytes) -> bool:
        return matches(record, properties_at(record))

    return accept


def compile_condition(condition: Condition) -> Callable[[bytes, int], bool]:
    """The whole condition. At the top only True counts, so AND may stop at the first that is not."""
    parts = condition.parts if isinstance(condition, Logic) and condition.conjunction else (condition,)
    first, *others = [_compile(part) for part in parts]

    def matches(record: bytes, at: int) -> bool:
        try:
            if not first(record, at):
                return False
            for part in others:
                if not part(record, at):
                    return False
        except Unreadable:
            return False
        return True

    return matches


def _compile(node: Condition) -> Compiled:
    match node:
        case Constant(value):
            return lambda record, at: value
        case Truth(Property(name)):
            present = _getter(name)
            return lambda record, at: None if present(record, at) is None else False
        case Not(operand):
            return _not(_compile(operand))
        case Logic(conjunction, parts):
            return _logic([_compile(part) for part in parts], stops_at=not conjunction)
        case Equal(left, right):
            return _equal(left, right)
        case Order(sign, left, right):
            return _order(sign, left, right)
        case Between():
            return _between(node)
        case IsNull(operand):
            return _is_null(operand)
        case OneOf(Property(name), texts, negated):
            return _one_of(
                _getter(name), frozenset(text.encode("utf-8", "replace") for text in texts), negated
            )
        case HasPart(part, Property(name), searched, negated):
            return _has_part(part, _getter(name), searched.encode("utf-8", "replace"), negated)
        case Like(Property(name), pattern, escape, negated):
            return _like(_getter(name), like_matcher(pattern, escape), negated)
        case _:
            assert_never(node)


def _getter(name: str) -> Getter:
    """The value of a property; the last one if there are several, never an empty one."""
    encoded = name.encode()
    head = encoded + b"\x01"
    pattern = b"\x02" + head
    length = len(pattern)

    def get(record: bytes, at: int) -> bytes | None:
        start = record.rfind(pattern, at)
        if start < 0:
            if not record.startswith(head, at):
                return None
            start = at - 1
        start += length
        end = record.find(b"\x02", start)
        value = record[start:] if end < 0 else record[start:end]
        return value or find_property(record[at:], encoded)

    return get


def _not(inner: Compiled) -> Compiled:
    def negated(record: bytes, at: int) -> bool | None:
        value = inner(record, at)
        return None if value is None else not value

    return negated


def _logic(parts: list[Compiled], stops_at: bool) -> Compiled:
    """AND stops at the first False, OR at the first True; an unknown one makes the rest undecided."""

    def joined(record: bytes, at: int) -> bool | None:
        unknown = False
        for part in parts:
            value = part(record, at)
            if value is stops_at:
                return stops_at
            if value is None:
                unknown = True
        return None if unknown else not stops_at

    return joined


def _equal(left: Value, right: Value) -> Compiled:
    """A missing left side is unknown, a missing right side is False, and two missing ones are equal: Java's
    rule.
    """
    match left, right:
        case Property(name), Text(value):
            return _equal_text(_getter(name), value.encode("utf-8", "replace"), missing=None)
        case Text(value), Property(name):
            return _equal_text(_getter(name), value.encode("utf-8", "replace"), missing=False)
        case Property(name), Number(number, kind):
            return _equal_number(_getter(name), number, kind, missing=None)
        case Number(number, kind), Property(name):
            return _equal_number(_getter(name), number, kind, missing=False)
    return _equal_any(_value(left), _value(right))


def _equal_text(get: Getter, wanted: bytes, missing: bool | None) -> Compiled:
    def equal(record: bytes, at: int) -> bool | None:
        value = get(record, at)
        return missing if value is None else value == wanted

    return equal


def _equal_number(get: Getter, wanted: int | float, kind: NumberKind, missing: bool | None) -> Compiled:
    read = READERS[kind]
    if kind is NumberKind.DOUBLE:

        def equal_double(record: bytes, at: int) -> bool | None:
            value = get(record, at)
            return missing if value is None else compare(read(value), wanted) == 0

        return equal_double

    def equal(record: bytes, at: int) -> bool | None:
        value = get(record, at)
        return missing if value is None else read(value) == wanted

    return equal


Loaded = bytes | bool | Number | None


def _value(node: Value) -> Callable[[bytes, int], Loaded]:
    if isinstance(node, Property):
        return _getter(node.name)
    if isinstance(node, Text):
        encoded = node.value.encode("utf-8", "replace")
        return lambda record, at: encoded
    if isinstance(node, Number):
        return lambda record, at: node
    return _compile(node)


def _equal_any(
    get_left: Callable[[bytes, int], Loaded], get_right: Callable[[bytes, int], Loaded]
) -> Compiled:
    def equal(record: bytes, at: int) -> bool | None:
        left, right = get_left(record, at), get_right(record, at)
        if left is None or right is None:
            return True if left is right else None if left is None else False
        return _same(left, right)

    return equal


def _same(left: bytes | bool | Number, right: bytes | bool | Number) -> bool:
    """Two present values. Java reads a text on the left as the type of the right, and a number's side never
    moves.
    """
    match left, right:
        case bytes(), bytes():
            return left == right
        case Number(), Number():
            return compare(left.value, right.value) == 0
        case bytes(), Number():
            return compare(READERS[right.kind](left), right.value) == 0
        case Number(), bytes():
            return compare(left.value, READERS[left.kind](right)) == 0
        case bytes(), bool():
            return read_boolean(left) == right
        case bool(), bytes():
            raise Unreadable  # Java tries to take the condition for a text
    return left is right


def _order(sign: str, left: Value, right: Value) -> Compiled:
    match left, right:
        case Property(name), Number(number, kind):
            return _order_number(_getter(name), sign, number, kind)
        case Number(number, kind), Property(name):
            return _order_number(_getter(name), _MIRRORED[sign], number, kind)
        case Property(name), Property(other):
            return _order_properties(_getter(name), sign, _getter(other))
        case Number(number), Number(other_number):
            fixed = _SIGNS[sign](compare(number, other_number), 0)
            return lambda record, at: fixed
    raise AssertionError("the parser lets only properties and numbers be ordered")


def _order_number(get: Getter, sign: str, limit: int | float, kind: NumberKind) -> Compiled:
    holds = _SIGNS[sign]
    read = READERS[kind]
    if kind is NumberKind.DOUBLE:

        def ordered_double(record: bytes, at: int) -> bool | None:
            value = get(record, at)
            return None if value is None else holds(compare(read(value), limit), 0)

        return ordered_double

    def ordered(record: bytes, at: int) -> bool | None:
        value = get(record, at)
        return None if value is None else holds(read(value), limit)

    return ordered


def _order_properties(get_left: Getter, sign: str, get_right: Getter) -> Compiled:
    holds = _SIGNS[sign]

    def ordered(record: bytes, at: int) -> bool | None:
        left, right = get_left(record, at), get_right(record, at)
        if left is None or right is None:
            return None
        return holds(compare(read_double(left), read_double(right)), 0)

    return ordered


def _between(node: Between) -> Compiled:
    match node:
        case Between(Property(name), Number(low, kind), Number(high, other_kind)) if kind is other_kind:
            return _between_numbers(_getter(name), low, high, kind)
    over, under = Order(">=", node.operand, node.low), Order("<=", node.operand, node.high)
    return _logic([_compile(over), _compile(under)], stops_at=False)


def _between_numbers(get: Getter, low: int | float, high: int | float, kind: NumberKind) -> Compiled:
    read = READERS[kind]
    if kind is NumberKind.DOUBLE:

        def between_doubles(record: bytes, at: int) -> bool | None:
            value = get(record, at)
            if value is None:
                return None
            number = read(value)
            return compare(number, low) >= 0 and compare(number, high) <= 0

        return between_doubles

    def between(record: bytes, at: int) -> bool | None:
        value = get(record, at)
        return None if value is None else low <= read(value) <= high

    return between


def _is_null(operand: Value) -> Compiled:
    get = _value(operand)
    return lambda record, at: get(record, at) is None


def _one_of(get: Getter, texts: frozenset[bytes], negated: bool) -> Compiled:
    def one_of(record: bytes, at: int) -> bool | None:
        value = get(record, at)
        return None if value is None else (value in texts) is not negated

    return one_of


def _contains(value: bytes, searched: bytes) -> bool:
    return searched in value


_PART_TESTS: dict[Part, Callable[[bytes, bytes], bool]] = {
    Part.CONTAINS: _contains,
    Part.STARTSWITH: bytes.startswith,
    Part.ENDSWITH: bytes.endswith,
}


def _has_part(part: Part, get: Getter, searched: bytes, negated: bool) -> Compiled:
    test = _PART_TESTS[part]

    def has_part(record: bytes, at: int) -> bool | None:
        value = get(record, at)
        return value is not None and searched != b"" and test(value, searched) is not negated

    return has_part


def _like(get: Getter, matches: Callable[[bytes], bool], negated: bool) -> Compiled:
    def like(record: bytes, at: int) -> bool | None:
        value = get(record, at)
        return None if value is None else matches(value) is not negated

    return like
