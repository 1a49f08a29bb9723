"""What is subscribed to, and whether two members agree."""

from __future__ import annotations

import pytest

from orbitmq.client.admin.members import GroupMembers, Member
from orbitmq.client.errors import BadRequest
from orbitmq.client.subscriptions import Sql, Topics, difference, expressions, subscriptions_of


def subscribed(topics: Topics, **options: object) -> dict[str, str]:
    values = {"tags": None, "sql": None, "broadcast": False, "now_ms": 5, **options}
    return {topic: data.sub_string for topic, data in subscriptions_of("g", topics, **values).items()}  # type: ignore[arg-type]


def test_topics_in_every_form() -> None:
    assert subscribed("a") == {"a": "*", "%RETRY%g": "*"}
    assert subscribed("a", broadcast=True) == {"a": "*"}
    assert subscribed(["a", "b"], tags="x || y", broadcast=True) == {"a": "x || y", "b": "x || y"}
    assert subscribed({"a": None, "b": "x", "c": Sql("n > 1")}, broadcast=True) == {
        "a": "*",
        "b": "x",
        "c": "n > 1",
    }
    data = subscriptions_of("g", "a", tags=None, sql="n > 1", broadcast=False, now_ms=5)
    assert data["a"].expression_type == "SQL92" and data["%RETRY%g"].expression_type == "TAG"
    assert data["a"].sub_version == 5


def test_a_filter_beside_a_mapping_is_refused() -> None:
    with pytest.raises(BadRequest, match="beside a mapping of topics") as caught:
        subscribed({"a": "x"}, tags="y")
    assert '{"orders": "paid || refund"}' in caught.value.hint


def group(*members: tuple[str, dict[str, str] | None], model: str = "CLUSTERING") -> GroupMembers:
    return GroupMembers(
        group="g",
        consume_type="CONSUME_PASSIVELY",
        message_model=model,
        consume_from=None,
        members=[
            Member(client_id=name, addr="", language="JAVA", version=0, joined_ms=None, subscriptions=table)
            for name, table in members
        ],
        subscriptions={"a": "x || y", "%RETRY%g": "*"},
        disagreements=None,
        missing=[],
    )


MINE = expressions(subscriptions_of("g", "a", tags="y||x", sql=None, broadcast=False, now_ms=1))


def test_the_same_tags_in_another_order_agree() -> None:
    assert difference(group(("other", {"a": "x || y", "%RETRY%g": "*"})), "me", MINE, "CLUSTERING") is None


def test_a_broker_that_only_knows_the_groups_subscription_is_enough() -> None:
    assert difference(group(("other", None)), "me", MINE, "CLUSTERING") is None
    text = difference(group(("other", None)), "me", {"b": "*"}, "CLUSTERING")
    assert text == ("this member of group 'g' subscribes to b (*), but member other subscribes to a (x || y)")


def test_differences_name_both_sides() -> None:
    text = difference(group(("other", {"a": "x", "b": "*"})), "me", MINE, "CLUSTERING")
    assert text is not None and "a (x || y), but member other subscribes to a (x), b (*)" in text
    text = difference(group(("other", None), model="BROADCASTING"), "me", MINE, "CLUSTERING")
    assert (
        text is not None
        and "would be CLUSTERING, but other and the rest of the group are BROADCASTING" in text
    )


def test_an_earlier_self_is_nobody_to_differ_from() -> None:
    assert difference(group(("me", {"a": "z"})), "me", MINE, "CLUSTERING") is None
    assert difference(group(), "me", MINE, "CLUSTERING") is None
