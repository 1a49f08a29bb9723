"""The members of a consumer group, each with what it subscribes to, and where they disagree."""

from __future__ import annotations

from typing import Any

import msgspec

from orbitmq.client.admin.groups import group_brokers, group_connections
from orbitmq.client.admin.targets import Missing, answered, ask_each, body_object
from orbitmq.client.cluster import Cluster
from orbitmq.wire.codes import OrbitCode, ResponseCode
from orbitmq.wire.command import request


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """`subscriptions` (topic to expression) is None from brokers that only know those of the whole group."""

    client_id: str
    addr: str
    language: str
    version: int
    joined_ms: int | None
    subscriptions: dict[str, str] | None


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """A member that differs from its group on one topic; None stands for "not subscribed"."""

    client_id: str
    topic: str
    theirs: str | None
    groups: str | None
    text: str


class GroupMembers(msgspec.Struct, frozen=True, kw_only=True):
    """Who is in a group now. `disagreements` is None when no broker could tell."""

    group: str
    consume_type: str | None
    message_model: str | None
    consume_from: str | None
    members: list[Member]
    subscriptions: dict[str, str]
    disagreements: list[Disagreement] | None
    missing: list[Missing]


async def group_members(cluster: Cluster, group: str) -> GroupMembers:
    """Members on all brokers together; what other brokers cannot tell is left open."""

    async def ask(_: str, addr: str) -> dict[str, Any] | None:
        response = await cluster.request(
            addr,
            request(OrbitCode.GROUP_MEMBERS, {"consumerGroup": group}),
            accept=(
                ResponseCode.SUCCESS,
                ResponseCode.CONSUMER_NOT_ONLINE,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            ),
        )
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return {}
        return None if response.code else body_object(response.body, "the list of members")

    answers, missing, errors = await ask_each(await group_brokers(cluster, group), ask)
    answered(answers, errors)
    if any(data == {} for data in answers.values()):
        return await _from_connections(cluster, group)
    online = [data for data in answers.values() if data is not None]
    members: dict[str, Member] = {}
    disagreements: dict[tuple[str, str], Disagreement] = {}
    subscriptions: dict[str, str] = {}
    for data in online:
        for item in data.get("members") or ():
            member = _member(item)
            members[member.client_id] = member
        for item in data.get("mismatches") or ():
            found = _disagreement(item)
            disagreements[found.client_id, found.topic] = found
        subscriptions |= {str(topic): str(text) for topic, text in (data.get("subscriptions") or {}).items()}
    first = online[0] if online else {}
    return GroupMembers(
        group=group,
        consume_type=first.get("consumeType"),
        message_model=first.get("messageModel"),
        consume_from=first.get("consumeFromWhere"),
        members=[members[client_id] for client_id in sorted(members)],
        subscriptions=dict(sorted(subscriptions.items())),
        disagreements=[disagreements[key] for key in sorted(disagreements)],
        missing=missing,
    )


async def _from_connections(cluster: Cluster, group: str) -> GroupMembers:
    found = await group_connections(cluster, group)
    return GroupMembers(
        group=group,
        consume_type=found.consume_type,
        message_model=found.message_model,
        consume_from=found.consume_from,
        members=[
            Member(
                client_id=item.client_id,
                addr=item.addr,
                language=item.language,
                version=item.version,
                joined_ms=None,
                subscriptions=None,
            )
            for item in found.connections
        ],
        subscriptions=found.subscriptions,
        disagreements=None,
        missing=found.missing,
    )


def _member(item: dict[str, Any]) -> Member:
    return Member(
        client_id=str(item.get("clientId")),
        addr=str(item.get("clientAddr")),
        language=str(item.get("language")),
        version=int(item.get("version") or 0),
        joined_ms=int(item.get("joinedTimestamp") or 0) or None,
        subscriptions={str(topic): str(text) for topic, text in (item.get("subscriptions") or {}).items()},
    )


def _disagreement(item: dict[str, Any]) -> Disagreement:
    return Disagreement(
        client_id=str(item.get("clientId")),
        topic=str(item.get("topic")),
        theirs=item.get("theirs"),
        groups=item.get("groups"),
        text=str(item.get("text")),
    )
