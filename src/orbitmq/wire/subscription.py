"""Subscription expressions: "TagA || TagB" made into the tags and hash codes that both sides filter by.

The rules are those of Java's FilterAPI, odd corners included: a broker compares the subscriptions of all
clients of a group, so two clients given the same text must come to the same sets.
"""

from __future__ import annotations

from orbitmq.wire.bodies_client import SubscriptionData
from orbitmq.wire.errors import WireError
from orbitmq.wire.java_hash import string_hash

SUBSCRIBE_ALL = "*"
TAG_TYPE = "TAG"
SQL92_TYPE = "SQL92"

_SEPARATOR = "||"
# String.trim takes away everything up to the blank, str.strip other characters as well.
_TRIMMED = "".join(map(chr, range(0x21)))


def split_tags(expression: str) -> list[str]:
    """The tags of an expression in their order, each once. Empty for everything ("*" or no text)."""
    if not expression or expression == SUBSCRIBE_ALL:
        return []
    pieces = expression.split(_SEPARATOR)
    if not any(pieces):
        raise WireError(
            f"subscription {expression[:80]!r} consists of separators only; "
            'name tags as in "TagA || TagB", or use "*" for all messages'
        )
    return list(dict.fromkeys(tag for tag in (piece.strip(_TRIMMED) for piece in pieces) if tag))


def build_subscription(
    topic: str,
    expression: str | None,
    expression_type: str | None = None,
    *,
    version_ms: int,
) -> SubscriptionData:
    """What a client subscribes to. version_ms is the time of subscribing: the broker keeps the newest.

    SQL92 expressions are taken as they are, their syntax is judged by whoever evaluates them.
    """
    if expression_type is None or expression_type == TAG_TYPE:
        tags = split_tags(expression or "")
        return SubscriptionData(
            topic=topic,
            sub_string=expression or SUBSCRIBE_ALL,
            tags_set=set(tags),
            code_set=set(map(string_hash, tags)),
            sub_version=version_ms,
            expression_type=TAG_TYPE,
        )
    if not expression:
        raise WireError(
            f"the {expression_type} subscription of topic {topic!r} has no expression; "
            'write a condition, or subscribe by tag with "*" for all messages'
        )
    return SubscriptionData(
        topic=topic, sub_string=expression, sub_version=version_ms, expression_type=expression_type
    )


def matches_code(subscription: SubscriptionData, tags_code: int) -> bool:
    """Whether a consume-queue unit may be wanted: the broker's filter. Different tags can share a code."""
    return (
        subscription.class_filter_mode
        or subscription.sub_string == SUBSCRIBE_ALL
        or tags_code in subscription.code_set
    )


def matches_tag(subscription: SubscriptionData, tag: str | None) -> bool:
    """Whether a message is wanted: the client's exact filter, after the broker's."""
    if not subscription.tags_set or subscription.class_filter_mode:
        return True
    return tag is not None and tag in subscription.tags_set
