"""What a consumer subscribes to, and whether the rest of its group agrees.

A broker keeps one subscription per group and topic. Members that differ overwrite each other's, and each of them
silently misses messages; so a member that differs is refused when it starts, with an error that names both sides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orbitmq.client.admin.members import GroupMembers, group_members
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound, Refused, Unreachable
from orbitmq.wire import bodies
from orbitmq.wire.bodies import SubscriptionData
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import request
from orbitmq.wire.errors import WireError
from orbitmq.wire.subscription import SQL92_TYPE, TAG_TYPE, build_subscription, split_tags
from orbitmq.wire.topics import RETRY_PREFIX, retry_topic, validate_group, validate_topic

log = logging.getLogger("orbitmq.consumer")

CLUSTERING: Final = "CLUSTERING"
BROADCASTING: Final = "BROADCASTING"


class SubscriptionMismatch(Refused):
    """Members of one group subscribe differently."""


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 condition on the properties of a message: `Sql("amount > 100 AND region = 'eu'")`."""

    expression: str


Filter = str | Sql
Topics = str | Sequence[str] | Mapping[str, Filter | None]


def subscriptions_of(
    group: str, topics: Topics, *, tags: str | None, sql: str | None, broadcast: bool, now_ms: int
) -> dict[str, SubscriptionData]:
    """Topic to subscription, the group's retry topic included; raises BadRequest for what cannot work."""
    if reason := _problem(group, validate_group):
        raise BadRequest(
            f"{group!r} cannot be a consumer group: {reason}", hint="use letters, digits, _ and -"
        )
    if tags is not None and sql is not None:
        raise BadRequest("both tags= and sql= are given", hint="choose one; SQL can compare TAGS too")
    common: Filter | None = Sql(sql) if sql is not None else tags
    if isinstance(topics, str):
        wanted: dict[str, Filter | None] = {topics: common}
    elif isinstance(topics, Mapping):
        if common is not None:
            raise BadRequest(
                "tags= or sql= is given beside a mapping of topics",
                hint='name the filter of each topic in the mapping: {"orders": "paid || refund"}',
            )
        wanted = dict(topics)
    else:
        wanted = dict.fromkeys(topics, common)
    if not wanted:
        raise BadRequest(f"consumer group '{group}' subscribes to no topic", hint="name at least one")
    found = {topic: _subscription(topic, wish, now_ms) for topic, wish in wanted.items()}
    if not broadcast:
        found[retry_topic(group)] = build_subscription(retry_topic(group), "*", version_ms=now_ms)
    return found


def _subscription(topic: str, wish: Filter | None, now_ms: int) -> SubscriptionData:
    if reason := _problem(topic, validate_topic):
        raise BadRequest(f"{topic!r} cannot be subscribed to: {reason}", hint="correct the topic's name")
    try:
        if isinstance(wish, Sql):
            return build_subscription(topic, wish.expression, SQL92_TYPE, version_ms=now_ms)
        return build_subscription(topic, wish, TAG_TYPE, version_ms=now_ms)
    except WireError as error:
        raise BadRequest(
            str(error), hint='tags are written "A || B"; leave them out for everything'
        ) from error


def _problem(name: object, validate: Callable[[str], str | None]) -> str | None:
    return validate(name) if isinstance(name, str) else f"it is {type(name).__name__}, not text"


def expressions(subscriptions: Mapping[str, SubscriptionData]) -> dict[str, str]:
    """Topic to expression, without retry topics, in the form in which two members are compared."""
    return {
        topic: same_form(data.sub_string)
        for topic, data in sorted(subscriptions.items())
        if not topic.startswith(RETRY_PREFIX)
    }


def same_form(expression: str) -> str:
    """`B||A` and `A || B` mean the same."""
    try:
        return " || ".join(sorted(split_tags(expression))) or "*"
    except WireError:
        return expression


async def check_group(
    cluster: Cluster,
    group: str,
    client_id: str,
    mine: Mapping[str, SubscriptionData],
    *,
    broadcast: bool,
    allow_mixed: bool,
) -> None:
    """Raises SubscriptionMismatch if a member of the group that is connected now subscribes differently."""
    try:
        found = await group_members(cluster, group)
    except (NotFound, Unreachable, Refused) as error:
        # No member was ever there, or nobody can tell: the first heartbeat asks the brokers again.
        log.debug("the members of group '%s' are not known before joining: %s", group, error)
        return
    text = difference(found, client_id, expressions(mine), BROADCASTING if broadcast else CLUSTERING)
    if text is None:
        return
    if allow_mixed:
        log.warning("%s; joining all the same, because allow_mixed=True", text)
        return
    raise SubscriptionMismatch(
        text,
        hint="give all members of a group the same topics, filters and mode, or use another group; "
        "allow_mixed=True joins all the same, for the time of a rolling change",
    )


def difference(found: GroupMembers, client_id: str, mine: dict[str, str], model: str) -> str | None:
    """What this member and the present ones disagree about, or None."""
    others = [member for member in found.members if member.client_id != client_id]
    if not others:
        return None
    if found.message_model is not None and found.message_model != model:
        return (
            f"this member of group '{found.group}' would be {model}, but {others[0].client_id} and the rest of the "
            f"group are {found.message_model}"
        )
    for member in others:
        theirs = found.subscriptions if member.subscriptions is None else member.subscriptions
        plain = {
            topic: same_form(text) for topic, text in theirs.items() if not topic.startswith(RETRY_PREFIX)
        }
        if plain and plain != mine:
            return (
                f"this member of group '{found.group}' subscribes to {_shown(mine)}, but member "
                f"{member.client_id} subscribes to {_shown(plain)}"
            )
    return None


def _shown(table: Mapping[str, str]) -> str:
    return ", ".join(f"{topic} ({text})" for topic, text in sorted(table.items())) or "nothing"


async def check_filters(
    cluster: Cluster, group: str, client_id: str, subscriptions: Mapping[str, SubscriptionData]
) -> None:
    """Lets every broker judge the conditions it would have to evaluate; its refusal is raised."""

    async def ask(addr: str, data: SubscriptionData) -> None:
        body = bodies.CheckClientBody(client_id=client_id, group=group, subscription_data=data)
        try:
            await cluster.request(addr, request(RequestCode.CHECK_CLIENT_CONFIG, body=bodies.encode(body)))
        except Refused as error:
            raise Refused(
                f"the filter of topic '{data.topic}' is refused: {error}",
                hint=error.hint or "correct the condition, or set enablePropertyFilter=true on the broker",
                code=error.code,
            ) from error

    checks = [
        ask(addr, data)
        for topic, data in subscriptions.items()
        if data.expression_type != TAG_TYPE and (route := await cluster.find_route(topic)) is not None
        for addr in route.masters().values()
    ]
    results = await asyncio.gather(*checks, return_exceptions=True)
    for result in results:
        if isinstance(result, Unreachable):
            log.warning("a filter is not checked: %s", result)
        elif isinstance(result, BaseException):
            raise result
