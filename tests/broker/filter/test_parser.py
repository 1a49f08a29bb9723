from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.broker.filter.parser import parse
from orbitmq.broker.filter.syntax import (
    MAX_CHARS,
    MAX_DEPTH,
    Between,
    Constant,
    Equal,
    FilterSyntaxError,
    IsNull,
    Like,
    Logic,
    Not,
    Number,
    NumberKind,
    OneOf,
    Order,
    Property,
    Text,
    Truth,
)

A, B = Property("a"), Property("b")
WORDS = (
    "a", "b", "1", "2.5", "'x'", "(", ")", "=", "<>", ">", "AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN",
    "LIKE", "ESCAPE", ",", "-", "+", "TRUE", "CONTAINS", "/*", "*/", "--", "'", "é",
)  # fmt: skip


def whole(value: int) -> Number:
    return Number(value, NumberKind.INT)


def test_precedence_from_or_to_not() -> None:
    assert parse("a = 1 OR b > 2 AND NOT (a < 3)") == Logic(
        False,
        (
            Equal(A, whole(1)),
            Logic(True, (Order(">", B, whole(2)), Not(Order("<", A, whole(3))))),
        ),
    )


def test_not_belongs_to_the_next_operand_only() -> None:
    assert parse("NOT a IS NULL") == IsNull(Not(Truth(A)))
    assert parse("NOT (a IS NULL)") == Not(IsNull(A))


def test_words_in_any_case_and_names_as_written() -> None:
    assert parse("Type In ('x') and NOT (b iS nOt NuLl)") == Logic(
        True, (OneOf(Property("Type"), ("x",), False), Not(Not(IsNull(B))))
    )


@pytest.mark.parametrize("word", ["like", "escape", "contains", "startswith", "ENDSWITH"])
def test_words_of_newer_brokers_are_still_names(word: str) -> None:
    assert parse(f"{word} = '1'") == Equal(Property(word), Text("1"))
    assert parse(f"{word} LIKE '1'") == Like(Property(word), "1", None, False)


def test_comments_and_white_space() -> None:
    assert parse("/* x\n* */ a -- rest\n\t=\f1 -- end") == Equal(A, whole(1))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", whole(0)),
        ("-5", whole(-5)),
        ("+ - -5", whole(5)),
        ("5L", whole(5)),
        ("2147483648", Number(2**31, NumberKind.LONG)),
        ("-2147483648", Number(-(2**31), NumberKind.LONG)),
        ("5.", Number(5.0, NumberKind.DOUBLE)),
        (".5", Number(0.5, NumberKind.DOUBLE)),
        ("1E2", Number(100.0, NumberKind.DOUBLE)),
        ("0.0", Number(0.0, NumberKind.DOUBLE)),
    ],
)
def test_numbers(text: str, number: Number) -> None:
    assert parse(f"a = {text}") == Equal(A, number)


def test_texts_and_their_quotes() -> None:
    assert parse("a = 'it''s'") == Equal(A, Text("it's"))
    assert parse("a = ''''") == Equal(A, Text("'"))
    assert parse("a = ''") == Equal(A, Text(""))


def test_between_and_its_opposite() -> None:
    assert parse("a BETWEEN 1 AND 2 AND b = 3") == Logic(
        True, (Between(A, whole(1), whole(2)), Equal(B, whole(3)))
    )
    assert parse("a NOT BETWEEN 1 AND 2") == Logic(False, (Order("<", A, whole(1)), Order(">", A, whole(2))))


def test_constants_are_conditions() -> None:
    assert parse("TRUE") == Constant(True)
    assert parse("a = false") == Equal(A, Constant(False))


@pytest.mark.parametrize(
    ("text", "character", "cause"),
    [
        ("", 1, "expected a property"),
        ("a > > 3", 5, "found `>`"),
        ("a > 3 garbage", 7, "expected an operator or the end"),
        ("a =", 4, "the end of the expression"),
        ("(a = 1", 7, "expected ) for the ( at character 1"),
        ("a = 1)", 6, "found `)`"),
        ("a = 'x", 5, "not closed by a single quote"),
        ("a = 1 /* x", 7, "not closed by */"),
        ('a = "x"', 5, "single quotes"),
        ("a != 1", 3, "write `<>`"),
        ("a == 1", 4, "found `=`"),
        ("a # 1", 3, "has no meaning here"),
        ("a = 007", 5, "is no number"),
        ("a = 12x", 5, "is no number"),
        ("a = 9223372036854775808", 5, "largest whole number"),
        ("a = 1e999", 5, "largest floating number"),
        ("a > 'x'", 5, "only properties and numbers"),
        ("a > TRUE", 5, "only properties and numbers"),
        ("(a = 1) > 2", 1, "only properties and numbers"),
        ("a = NULL", 5, "write IS NULL"),
        ("NOT a = 1", 1, "NOT (a = 1)"),
        ("a IS 1", 6, "IS is followed by NULL"),
        ("a NOT 1", 7, "NOT behind a value"),
        ("a IN ()", 7, "takes a text in single quotes"),
        ("a IN (1)", 7, "takes a text in single quotes"),
        ("a IN ('x'", 10, "ends with )"),
        ("'x' IN ('x')", 1, "name of a property"),
        ("a BETWEEN 5 AND 1", 11, "swap them"),
        ("a BETWEEN 5 OR 1", 13, "expected AND"),
        ("a LIKE 5", 8, "takes a text"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "must be followed by"),
        ("a LIKE 'x' ESCAPE '!!'", 19, "one character"),
        ("-a > 1", 1, "only numbers can be negated"),
        ("5", 1, "no condition"),
        ("a = 1 AND 'x'", 11, "no condition"),
        ("x.y = 1", 2, "has no meaning"),
    ],
)
def test_what_is_wrong_and_where(text: str, character: int, cause: str) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        parse(text)
    assert f"at character {character}:" in str(caught.value)
    assert cause in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1),
        "(" * 8000,
        "NOT " * 4000 + "a",
        "- " * 8000 + "1",
        "a" + " = b" * 4000,
        "a" + " IS NULL" * 2000,
        ("NOT " * 40 + "(") * 20 + "a" + ")" * 20,
        "x" * (MAX_CHARS + 1),
    ],
)
def test_monsters_are_refused_quickly(text: str) -> None:
    started = time.process_time()
    with pytest.raises(FilterSyntaxError) as caught:
        parse(text)
    assert time.process_time() - started < 1
    assert len(str(caught.value)) < 300


def test_the_deepest_nesting_that_is_taken_can_be_parsed_far_down_the_stack() -> None:
    text = "a OR b AND a = (" * (MAX_DEPTH - 1) + "a" + ")" * (MAX_DEPTH - 1)

    def down(frames: int) -> object:
        return parse(text) if frames == 0 else down(frames - 1)

    assert down(100)


def test_a_long_flat_row_is_no_problem() -> None:
    row = parse(" OR ".join(["a = 1"] * 1500))
    assert isinstance(row, Logic)
    assert len(row.parts) == 1500


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(WORDS),
        max_size=12,
    ).map(" ".join)
)
def test_any_row_of_words_is_a_condition_or_a_named_error(text: str) -> None:
    try:
        parse(text)
    except FilterSyntaxError as error:
        assert 0 <= error.position <= len(text)
        assert error.problem
