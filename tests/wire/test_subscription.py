from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.errors import WireError
from orbitmq.wire.java_hash import string_hash
from orbitmq.wire.subscription import build_subscription, matches_code, matches_tag, split_tags

VERSION_MS = 1700000000000

tags = st.text(
    st.characters(min_codepoint=0x21, exclude_characters="|*", exclude_categories=["Cs"]), min_size=1
)


def test_the_reference_subscription() -> None:
    subscription = build_subscription("TopicA", "TagA || TagB", version_ms=VERSION_MS)
    assert subscription.topic == "TopicA"
    assert subscription.sub_string == "TagA || TagB"
    assert set(subscription.tags_set) == {"TagA", "TagB"}
    assert set(subscription.code_set) == {2598919, 2598920}
    assert subscription.sub_version == VERSION_MS
    assert subscription.expression_type == "TAG"
    assert subscription.class_filter_mode is False


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything(expression: str | None) -> None:
    subscription = build_subscription("TopicA", expression, version_ms=VERSION_MS)
    assert subscription.sub_string == "*"
    assert not subscription.tags_set
    assert not subscription.code_set
    assert matches_code(subscription, 0)
    assert matches_code(subscription, 42)
    assert matches_tag(subscription, None)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("A", ["A"]),
        ("A||B", ["A", "B"]),
        ("  A  ||\tB\n||  ", ["A", "B"]),
        ("||A", ["A"]),
        ("A||A || A", ["A"]),
        ("A|B", ["A|B"]),
        ("A|||B", ["A", "|B"]),
        ("|||", ["|"]),
        ("* || A", ["*", "A"]),
        ("\u00a0A", ["\u00a0A"]),
        ("   ", []),
    ],
)
def test_the_corners_of_tag_expressions(expression: str, expected: list[str]) -> None:
    assert split_tags(expression) == expected


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_separators_alone_are_refused(expression: str) -> None:
    with pytest.raises(WireError, match="separators only"):
        build_subscription("TopicA", expression, version_ms=VERSION_MS)


@given(st.lists(tags, min_size=1, max_size=5, unique=True), st.sampled_from(["||", " || ", "|| \t"]))
def test_each_tag_and_its_code_are_found(wanted: list[str], separator: str) -> None:
    subscription = build_subscription("TopicA", separator.join(wanted), version_ms=VERSION_MS)
    assert set(subscription.tags_set) == set(wanted)
    assert set(subscription.code_set) == set(map(string_hash, wanted))
    for tag in wanted:
        assert matches_code(subscription, string_hash(tag))
        assert matches_tag(subscription, tag)
    assert not matches_tag(subscription, None)
    assert not matches_tag(subscription, "".join(wanted) + "other")


def test_tags_with_one_code_are_told_apart_by_the_client() -> None:
    subscription = build_subscription("TopicA", "Aa", version_ms=VERSION_MS)
    assert matches_code(subscription, string_hash("BB"))
    assert not matches_tag(subscription, "BB")
    assert len(build_subscription("TopicA", "Aa || BB", version_ms=VERSION_MS).code_set) == 1


def test_sql_expressions_are_kept_as_they_are() -> None:
    subscription = build_subscription("TopicA", "a > 1 || TagA", "SQL92", version_ms=VERSION_MS)
    assert (subscription.sub_string, subscription.expression_type) == ("a > 1 || TagA", "SQL92")
    assert not subscription.tags_set
    for empty in (None, ""):
        with pytest.raises(WireError, match="has no expression"):
            build_subscription("TopicA", empty, "SQL92", version_ms=VERSION_MS)
