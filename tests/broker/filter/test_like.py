from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.broker.filter.like import like_matcher, pattern_problem
from tests.broker.filter.reference import naive_like

LETTERS = st.text(st.sampled_from("abé%_!"), max_size=8)
PATTERNS = st.lists(st.sampled_from(["a", "b", "é", "%", "_", "ab"]), max_size=9).map("".join)
ESCAPED = st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!"]), max_size=9).map("".join)


@pytest.mark.parametrize(
    ("value", "pattern", "expected"),
    [
        ("order-42", "order-%", True),
        ("order-42", "%-42", True),
        ("order-42", "%der%", True),
        ("order-42", "order-__", True),
        ("order-42", "order-_", False),
        ("order", "order", True),
        ("ORDER", "order", False),
        ("", "%", True),
        ("", "_", False),
        ("", "", True),
        ("a", "", False),
        ("aba", "ab%ba", False),
        ("abba", "ab%ba", True),
        ("日本語", "日_語", True),
        ("日本語", "___", True),
        ("日本語", "____", False),
    ],
)
def test_like_as_people_read_it(value: str, pattern: str, expected: bool) -> None:
    assert like_matcher(pattern)(value.encode()) is expected


@given(LETTERS, PATTERNS)
def test_like_is_what_trying_every_way_gives(value: str, pattern: str) -> None:
    assert like_matcher(pattern)(value.encode()) is naive_like(value, pattern, None)


@given(LETTERS, ESCAPED)
def test_like_with_an_escape_character_is_what_trying_every_way_gives(value: str, pattern: str) -> None:
    assert pattern_problem(pattern, "!") == ""
    assert like_matcher(pattern, "!")(value.encode()) is naive_like(value, pattern, "!")


@pytest.mark.parametrize("pattern", ["a!", "a!b", "!!!"])
def test_an_escape_character_that_escapes_nothing_is_refused(pattern: str) -> None:
    assert "must be followed by" in pattern_problem(pattern, "!")


@pytest.mark.parametrize("pattern", ["%a" * 40 + "b", "%a_" * 40 + "b", "%" * 60 + "_b", "_%" * 60 + "b"])
def test_no_pattern_takes_more_than_linear_time(pattern: str) -> None:
    match = like_matcher(pattern)
    value = b"a" * 32_000
    started = time.process_time()
    assert not match(value)
    assert time.process_time() - started < 0.5  # with backtracking this would not end
