from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.broker.filter import FilterSyntaxError, compile_sql
from orbitmq.broker.filter.compiler import compile_condition
from orbitmq.broker.filter.parser import parse
from orbitmq.broker.filter.syntax import (
    Between,
    Condition,
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
)
from orbitmq.wire.message import MESSAGE_MAGIC_V2, encode_record
from orbitmq.wire.properties import encode_properties
from tests.broker.filter.reference import Failed, evaluate, matches

JAVA_ANSWERS: list[tuple[str, dict[str, str], str]] = json.loads(
    Path(__file__).with_name("java_answers.json").read_text()
)


def record(properties: dict[str, str], **fields: Any) -> bytes:
    return encode_record(
        topic="TopicA", body=b"b\x02a\x011", properties=encode_properties(properties), **fields
    )


def accepts(expression: str, **properties: str) -> bool:
    return compile_sql(expression)(record(properties))


def test_java_gave_these_answers() -> None:
    """Expressions and properties made at random, answered by rocketmq-filter 4.9.7."""
    wrong = []
    for expression, properties, answer in JAVA_ANSWERS:
        try:
            ours = {True: "true", False: "false", None: "NULL"}[evaluate(parse(expression), properties)]  # type: ignore[index]
            matched = compile_sql(expression)(record(properties))
        except FilterSyntaxError:
            ours, matched = "REFUSED", False
        except Failed:
            ours, matched = "ERROR", compile_sql(expression)(record(properties))
        if ours != answer or matched is not (answer == "true"):
            wrong.append((expression, properties, answer, ours, matched))
    assert not wrong
    assert len(JAVA_ANSWERS) > 400


@pytest.mark.parametrize(
    ("expression", "matched"),
    [
        ("a BETWEEN 3 AND 6", True),
        ("a > 7 AND TAGS = 'Even'", False),
        ("color IN ('red', 'blue')", True),
        ("color IS NULL AND a <= 1", False),
        ("(a = 2 OR a = 4) AND color IS NOT NULL", True),
        ("TAGS IS NOT NULL AND NOT (a < 9)", False),
        ("color LIKE 'r%'", True),
        ("color NOT LIKE '_e_'", False),
        ("note LIKE '100!%%' ESCAPE '!'", True),
        ("color CONTAINS 'e' AND color STARTSWITH 're' AND color ENDSWITH 'ed'", True),
        ("color NOT CONTAINS 'x'", True),
        ("missing NOT CONTAINS 'x'", False),
        ("missing LIKE '%'", False),
        ("NOT (missing LIKE '%')", False),
        ("missing <> 'x'", False),
        ("a = '4'", True),
        ("a = 4.0", True),
        ("a > 3.5", True),
        ("3 < a", True),
        ("half > 1", False),
        ("half > 1.0", True),
        ("flag = TRUE", True),
    ],
)
def test_conditions_as_people_write_them(expression: str, matched: bool) -> None:
    properties = {
        "a": "4",
        "color": "red",
        "TAGS": "Even",
        "half": "3.5",
        "flag": "True",
        "note": "100% sure",
    }
    assert accepts(expression, **properties) is matched


def test_an_unreadable_number_makes_the_message_not_match_however_it_is_negated() -> None:
    for expression in ("a > 1", "NOT (a > 1)", "a <> 1", "a > 1 OR b = 'x'", "a NOT BETWEEN 1 AND 2"):
        assert not accepts(expression, a="many", b="x")
    assert accepts("b = 'x' OR a > 1", a="many", b="x")


@pytest.mark.parametrize(
    "hosts", [("1.2.3.4:5", "6.7.8.9:1"), ("[::1]:5", "6.7.8.9:1"), ("[::1]:5", "[::2]:1")]
)
@pytest.mark.parametrize("magic", [None, MESSAGE_MAGIC_V2])
def test_properties_are_found_in_every_form_of_record(hosts: tuple[str, str], magic: int | None) -> None:
    more = {} if magic is None else {"magic": magic}
    stored = record({"a": "5"}, born_host=hosts[0], store_host=hosts[1], **more)
    assert compile_sql("a = 5")(stored)
    assert not compile_sql("a = 1")(stored)  # the body only looks like a property


def test_the_last_of_two_equal_names_counts_and_an_empty_one_does_not() -> None:
    for text, value in ((b"a\x011\x02a\x012", 2), (b"a\x011\x02a\x01", 1), (b"a\x011\x02a\x01\x02", 1)):
        stored = encode_record(topic="T", body=b"", properties=text)
        assert compile_sql(f"a = {value}")(stored)
    assert not compile_sql("a IS NULL")(encode_record(topic="T", body=b"", properties=b"xa\x012\x02a\x011"))
    assert compile_sql("a IS NULL")(encode_record(topic="T", body=b"", properties=b"xa\x012\x02ax\x011"))


def test_a_wrong_expression_is_refused_again_and_again_with_the_same_words() -> None:
    texts = set()
    for _ in range(3):
        with pytest.raises(FilterSyntaxError) as caught:
            compile_sql("a > > 3")
        texts.add(str(caught.value))
    assert len(texts) == 1


NAMES = st.sampled_from("abc").map(Property)
VALUES = st.sampled_from((
    "1", "2", "-5", "+7", "3.5", "x", "true", "red", "é", "2147483648", "NaN", "Infinity", "-0.0", "0.0",
    " 4 ", "1e2", "5.", "9223372036854775808", "1d", "1_0", "%", "a%b",
))  # fmt: skip
TEXTS = st.sampled_from(["x", "red", "1", "true", "", "é", "e", "r", "a%b"])
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, -5, 7]).map(lambda n: Number(n, NumberKind.INT)),
    st.sampled_from([2**31, -(2**31), 2**63 - 1]).map(lambda n: Number(n, NumberKind.LONG)),
    st.sampled_from([0.0, -0.0, 1.5, 100.0, 4.0]).map(lambda n: Number(n, NumberKind.DOUBLE)),
)
ORDERED = st.one_of(NAMES, NUMBERS)
LEAVES: st.SearchStrategy[Condition] = st.one_of(
    st.builds(Constant, st.sampled_from([True, False, None])),
    st.builds(Truth, NAMES),
    st.builds(Order, st.sampled_from([">", ">=", "<", "<="]), ORDERED, ORDERED),
    st.builds(Between, ORDERED, ORDERED, ORDERED),
    st.builds(Equal, st.one_of(NAMES, NUMBERS, TEXTS.map(Text)), st.one_of(NAMES, NUMBERS, TEXTS.map(Text))),
    st.builds(IsNull, NAMES),
    st.builds(OneOf, NAMES, st.lists(TEXTS, min_size=1, max_size=6).map(tuple), st.booleans()),
    st.builds(HasPart, st.sampled_from(Part), NAMES, TEXTS, st.booleans()),
    st.builds(Like, NAMES, st.sampled_from(["r%", "_", "%e%", "a!%b", "%"]), st.just("!"), st.booleans()),
)


def larger(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    return st.one_of(
        st.builds(Not, inner),
        st.builds(Logic, st.booleans(), st.lists(inner, min_size=2, max_size=4).map(tuple)),
        st.builds(IsNull, inner),
        st.builds(Equal, inner, st.one_of(inner, NAMES)),
        st.builds(Equal, NAMES, inner),
    )


@settings(max_examples=600, deadline=None)
@given(st.recursive(LEAVES, larger, max_leaves=8), st.dictionaries(st.sampled_from("abcd"), VALUES))
def test_a_compiled_condition_means_what_its_tree_means(
    condition: Condition, properties: dict[str, str]
) -> None:
    text = encode_properties(properties)
    assert compile_condition(condition)(text, 0) is matches(condition, properties)
