"""Comparing what the members of a group subscribe to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from orbitmq.wire.bodies import SubscriptionData
from orbitmq.wire.topics import RETRY_PREFIX

# (topic, meaning of the expression) for each topic.
Shape = frozenset[tuple[str, str]]


class Mismatch(NamedTuple):
    """A member that differs from its group on one topic; None stands for "not subscribed"."""

    client_id: str
    topic: str
    theirs: str | None
    groups: str | None

    def __str__(self) -> str:
        theirs = "does not subscribe to" if self.theirs is None else f"subscribes with {self.theirs!r} to"
        groups = "does not" if self.groups is None else f"uses {self.groups!r}"
        return f"client {self.client_id} {theirs} topic {self.topic} where the group {groups}"


def expression_meaning(subscription: SubscriptionData) -> str:
    """One text for all ways to write the same subscription: tags in any order and spacing mean the same."""
    text = (subscription.sub_string or "").strip()
    kind = subscription.expression_type or "TAG"
    if kind != "TAG":
        return f"{kind}: {text}"
    tags = sorted({tag for part in text.split("||") if (tag := part.strip())})
    return " || ".join(tags) if tags and "*" not in tags else "*"


def shape_of(subscriptions: Iterable[SubscriptionData]) -> Shape:
    """What of a member's subscriptions must be the same in the whole group.

    The retry topic is left out: clients add it themselves, and only in clustering mode.
    """
    return frozenset(
        (s.topic, expression_meaning(s)) for s in subscriptions if not s.topic.startswith(RETRY_PREFIX)
    )


def common_shape(shapes: list[Shape]) -> Shape:
    """What most members have; Counter keeps first-seen order, so the oldest member decides a tie."""
    return Counter(shapes).most_common(1)[0][0]


def differences(client_id: str, shape: Shape, common: Shape) -> list[Mismatch]:
    """Where a member differs from its group, topic by topic."""
    theirs, groups = dict(shape), dict(common)
    return [
        Mismatch(client_id, topic, theirs.get(topic), groups.get(topic))
        for topic in sorted(theirs.keys() | groups.keys())
        if theirs.get(topic) != groups.get(topic)
    ]
