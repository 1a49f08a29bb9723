"""From tokens to a condition: operator precedence, loops instead of recursion wherever the grammar chains.

From weak to strong: OR, AND, then = <> IS, then > >= < <= BETWEEN IN LIKE CONTAINS …, then signs and NOT.
So NOT binds to the next operand only, as in Java: `NOT (a = 1)` needs its parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from orbitmq.broker.filter.lexer import Kind, Token, tokens
from orbitmq.broker.filter.like import pattern_problem
from orbitmq.broker.filter.syntax import (
    CONDITIONS,
    MAX_DEPTH,
    MAX_HEIGHT,
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
    height,
)
from orbitmq.broker.filter.values import compare

_OR, _AND, _EQUALITY, _COMPARISON, _UNARY = range(5)
_EQUALITY_SIGNS = frozenset({"=", "<>"})
_ORDER_SIGNS = frozenset({">", ">=", "<", "<="})
_PARTS = {part.value: part for part in Part}
_NAMED_OPERATORS = frozenset({"LIKE", *_PARTS})
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_WHOLE = re.compile(r"(0|[1-9][0-9]*)[lL]?").fullmatch
_FLOATING = re.compile(r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+").fullmatch
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1


def parse(text: str) -> Condition:
    parser = _Parser(text)
    value, at = parser.expression(_OR)
    end = parser.token
    if end.kind is not Kind.END:
        raise parser.error(
            end.position, f"expected an operator or the end of the expression, found {end.shown()}"
        )
    found = parser.condition(value, at)
    if height(found) > MAX_HEIGHT:
        raise parser.error(
            at, f"more than {MAX_HEIGHT} operators are nested; a flat row of AND or OR can be longer"
        )
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._index = 0
        self._open = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._index]

    def error(self, position: int, problem: str) -> FilterSyntaxError:
        return FilterSyntaxError(self._text, position, problem)

    def condition(self, value: Value, at: int) -> Condition:
        """The value where only a condition makes sense."""
        if isinstance(value, Property):
            return Truth(value)
        if isinstance(value, CONDITIONS):
            return value
        raise self.error(at, f"{_shown(value)} alone is no condition; compare it with something")

    def expression(self, weakest: int) -> tuple[Value, int]:
        """The longest run of operators not weaker than asked for, and where it begins."""
        left, at = self._operand()
        while True:
            level, build = self._operator()
            if level < weakest:
                return left, at
            left = build(left, at)

    def _operator(self) -> tuple[int, Callable[[Value, int], Condition]]:
        """What may follow a value here; a level below all others when nothing does."""
        kind, word, _ = self.token
        if kind is Kind.WORD:
            if word == "OR":
                return _OR, lambda left, at: self._chain(left, at, "OR", _AND)
            if word == "AND":
                return _AND, lambda left, at: self._chain(left, at, "AND", _EQUALITY)
            if word == "IS":
                return _EQUALITY, self._is_null
            if word in ("BETWEEN", "IN", "NOT"):
                return _COMPARISON, self._named
        elif kind is Kind.SIGN:
            if word in _EQUALITY_SIGNS:
                return _EQUALITY, self._equality
            if word in _ORDER_SIGNS:
                return _COMPARISON, self._order
        elif kind is Kind.NAME and word.upper() in _NAMED_OPERATORS:
            return _COMPARISON, self._named
        return -1, self._nothing

    def _nothing(self, left: Value, at: int) -> Condition:
        raise self.error(at, "no operator follows")

    def _chain(self, left: Value, at: int, word: str, stronger: int) -> Condition:
        parts = [self.condition(left, at)]
        while self.token.kind is Kind.WORD and self.token.text == word:
            self._index += 1
            parts.append(self.condition(*self.expression(stronger)))
        return Logic(word == "AND", tuple(parts))

    def _is_null(self, left: Value, at: int) -> Condition:
        self._index += 1
        negated = self._take("NOT")
        if not self._take("NULL"):
            raise self.error(
                self.token.position, f"IS is followed by NULL or NOT NULL, found {self.token.shown()}"
            )
        return Not(IsNull(left)) if negated else IsNull(left)

    def _equality(self, left: Value, at: int) -> Condition:
        sign = self._next()
        right, right_at = self.expression(_COMPARISON)
        for value, where in ((left, at), (right, right_at)):
            if value == Constant(None):
                raise self.error(where, "nothing equals NULL; write IS NULL or IS NOT NULL")
        for value, other, where in ((left, right, at), (right, left, right_at)):
            if isinstance(value, CONDITIONS) and isinstance(other, Number | Text):
                raise self.error(
                    where,
                    f"this is a condition and cannot equal {_shown(other)}; to negate a comparison, put it "
                    "in parentheses: NOT (a = 1)",
                )
        equal = Equal(left, right)
        return equal if sign.text == "=" else Not(equal)

    def _order(self, left: Value, at: int) -> Condition:
        sign = self._next()
        right, right_at = self._operand()
        return self._ordered(sign.text, left, at, right, right_at)

    def _ordered(self, sign: str, left: Value, at: int, right: Value, right_at: int) -> Order:
        for value, where in ((left, at), (right, right_at)):
            if not isinstance(value, Property | Number):
                raise self.error(
                    where, f"only properties and numbers are compared with {sign}, not {_shown(value)}"
                )
        return Order(sign, left, right)

    def _named(self, left: Value, at: int) -> Condition:
        """BETWEEN, IN, LIKE and the tests for a part, each also with NOT in front."""
        negated = self._take("NOT")
        operator = self._next()
        word = operator.text.upper()
        if word == "BETWEEN":
            return self._between(left, at, negated)
        if word == "IN" or word in _NAMED_OPERATORS:
            if not isinstance(left, Property):
                raise self.error(at, f"{word} needs the name of a property on its left, not {_shown(left)}")
            if word == "IN":
                return OneOf(left, self._texts(), negated)
            if word == "LIKE":
                return self._like(left, negated)
            return HasPart(_PARTS[word], left, self._quoted(word).text, negated)
        raise self.error(
            operator.position,
            f"NOT behind a value is followed by BETWEEN, IN, LIKE, CONTAINS, STARTSWITH or ENDSWITH, "
            f"found {operator.shown()}",
        )

    def _between(self, left: Value, at: int, negated: bool) -> Condition:
        low, low_at = self._operand()
        if not self._take("AND"):
            raise self.error(
                self.token.position, f"BETWEEN x AND y: expected AND, found {self.token.shown()}"
            )
        high, high_at = self._operand()
        over = self._ordered(">=", left, at, low, low_at)
        under = self._ordered("<=", left, at, high, high_at)
        if negated:
            return Logic(False, (Order("<", over.left, low), Order(">", under.left, high)))
        if isinstance(low, Number) and isinstance(high, Number) and compare(low.value, high.value) > 0:
            raise self.error(low_at, f"nothing is BETWEEN {low.value} AND {high.value}: swap them")
        return Between(left, low, high)

    def _texts(self) -> tuple[str, ...]:
        self._sign("(", "IN is followed by a list such as ('a', 'b')")
        texts = [self._quoted("IN").text]
        while self.token.text == "," and self.token.kind is Kind.SIGN:
            self._index += 1
            texts.append(self._quoted("IN").text)
        self._sign(")", "the list of IN goes on with a comma or ends with )")
        return tuple(texts)

    def _like(self, left: Property, negated: bool) -> Condition:
        pattern = self._quoted("LIKE")
        escape = None
        if self.token.kind is Kind.NAME and self.token.text.upper() == "ESCAPE":
            self._index += 1
            given = self._quoted("ESCAPE")
            escape = given.text
            if len(escape) != 1:
                raise self.error(given.position, f"ESCAPE takes one character, not {len(escape)}")
        problem = pattern_problem(pattern.text, escape)
        if problem:
            raise self.error(pattern.position, problem)
        return Like(left, pattern.text, escape, negated)

    def _operand(self) -> tuple[Value, int]:
        """Signs and NOTs in front of one plain value."""
        prefixes: list[Token] = []
        while self._is_prefix(self.token):
            prefixes.append(self._next())
            if len(prefixes) > MAX_DEPTH:
                raise self.error(self.token.position, f"more than {MAX_DEPTH} signs or NOTs in a row")
        value, at = self._plain()
        for prefix in reversed(prefixes):
            at = prefix.position
            if prefix.text == "NOT":
                value = Not(self.condition(value, at))
            elif prefix.text == "-":
                if not isinstance(value, Number):
                    raise self.error(at, f"only numbers can be negated, not {_shown(value)}")
                value = Number(-value.value, value.kind)
        return value, at

    @staticmethod
    def _is_prefix(token: Token) -> bool:
        return (token.kind is Kind.SIGN and token.text in "+-") or (
            token.kind is Kind.WORD and token.text == "NOT"
        )

    def _plain(self) -> tuple[Value, int]:
        token = self._next()
        if token.kind is Kind.NAME:
            return Property(token.text), token.position
        if token.kind is Kind.TEXT:
            return Text(token.text), token.position
        if token.kind is Kind.NUMBER:
            return self._number(token), token.position
        if token.kind is Kind.WORD and token.text in _CONSTANTS:
            return Constant(_CONSTANTS[token.text]), token.position
        if token.kind is Kind.SIGN and token.text == "(":
            return self._parenthesis(token)
        raise self.error(token.position, f"expected a property, a number, a text or (, found {token.shown()}")

    def _parenthesis(self, token: Token) -> tuple[Value, int]:
        self._open += 1
        if self._open > MAX_DEPTH:
            raise self.error(token.position, f"more than {MAX_DEPTH} parentheses are open at once")
        value, _ = self.expression(_OR)
        if self.token.text != ")" or self.token.kind is not Kind.SIGN:
            raise self.error(
                self.token.position,
                f"expected ) for the ( at character {token.position + 1}, found {self.token.shown()}",
            )
        self._index += 1
        self._open -= 1
        return value, token.position

    def _number(self, token: Token) -> Number:
        if whole := _WHOLE(token.text):
            digits = whole[1]
            if len(digits) > len(str(_LONG_MAX)) or int(digits) > _LONG_MAX:
                raise self.error(
                    token.position, f"{digits[:24]} is larger than {_LONG_MAX}, the largest whole number"
                )
            value = int(digits)
            return Number(value, NumberKind.INT if value <= _INT_MAX else NumberKind.LONG)
        if _FLOATING(token.text):
            number = float(token.text)
            if number == float("inf"):
                raise self.error(
                    token.position, f"{token.text[:24]} is larger than the largest floating number"
                )
            return Number(number, NumberKind.DOUBLE)
        raise self.error(
            token.position,
            f"`{token.text[:24]}` is no number; write 7, 7.5 or 7.5e3, without leading zeros; other texts "
            "in single quotes",
        )

    def _next(self) -> Token:
        token = self.token
        if token.kind is not Kind.END:
            self._index += 1
        return token

    def _take(self, word: str) -> bool:
        found = self.token.kind is Kind.WORD and self.token.text == word
        self._index += found
        return found

    def _sign(self, sign: str, problem: str) -> None:
        if self.token.kind is not Kind.SIGN or self.token.text != sign:
            raise self.error(self.token.position, f"{problem}, found {self.token.shown()}")
        self._index += 1

    def _quoted(self, operator: str) -> Token:
        token = self._next()
        if token.kind is not Kind.TEXT:
            raise self.error(
                token.position, f"{operator} takes a text in single quotes, found {token.shown()}"
            )
        return token


def _shown(value: Value) -> str:
    if isinstance(value, Property):
        return f"the property {value.name}"
    if isinstance(value, Text):
        return f"the text {value.value[:24]!r}"
    if isinstance(value, Number):
        return f"the number {value.value}"
    if isinstance(value, Constant):
        return "NULL" if value.value is None else str(value.value).upper()
    return "a condition"
