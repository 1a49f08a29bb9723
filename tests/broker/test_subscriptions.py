from __future__ import annotations

import pytest

from orbitmq.broker.subscriptions import Mismatch, common_shape, differences, expression_meaning, shape_of
from tests.broker.fakes import subscribe


@pytest.mark.parametrize(
    ("one", "other"),
    [("A || B", "B||A"), ("A", " A "), ("*", ""), ("A || *", "*"), ("A || A", "A")],
)
def test_the_same_tags_written_differently_mean_the_same(one: str, other: str) -> None:
    assert expression_meaning(subscribe("t", one)) == expression_meaning(subscribe("t", other))


@pytest.mark.parametrize(("one", "other"), [("A", "B"), ("A", "*"), ("A || B", "A")])
def test_different_tags_mean_different_things(one: str, other: str) -> None:
    assert expression_meaning(subscribe("t", one)) != expression_meaning(subscribe("t", other))


def test_the_kind_of_an_expression_matters() -> None:
    assert expression_meaning(subscribe("t", "a", kind="SQL92")) != expression_meaning(subscribe("t", "a"))


def test_versions_and_the_retry_topic_do_not_matter() -> None:
    one = shape_of([subscribe("orders", version=1), subscribe("%RETRY%billing")])
    assert one == shape_of([subscribe("orders", version=9)])


def test_the_majority_decides_and_the_oldest_a_tie() -> None:
    a, b = shape_of([subscribe("orders", "A")]), shape_of([subscribe("orders", "B")])
    assert common_shape([a, b, b]) == b
    assert common_shape([a, b]) == a


def test_differences_are_named_topic_by_topic() -> None:
    theirs = shape_of([subscribe("orders", "A"), subscribe("extra")])
    groups = shape_of([subscribe("orders", "B"), subscribe("refunds")])
    found = differences("c1", theirs, groups)
    assert found == [
        Mismatch("c1", "extra", "*", None),
        Mismatch("c1", "orders", "A", "B"),
        Mismatch("c1", "refunds", None, "*"),
    ]
    assert str(found[1]) == "client c1 subscribes with 'A' to topic orders where the group uses 'B'"
    assert str(found[2]) == "client c1 does not subscribe to topic refunds where the group uses '*'"
    assert str(found[0]) == "client c1 subscribes with '*' to topic extra where the group does not"
