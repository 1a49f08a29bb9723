"""Consumer groups: list, create, delete, who is connected, and how far behind they are."""

from __future__ import annotations

from typing import Any

import msgspec

from orbitmq.client.admin.targets import (
    Missing,
    answered,
    ask_each,
    body_object,
    change_each,
    masters_of,
    queue_table,
)
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.topics import dead_topic, is_system_group, retry_topic, validate_group

BROADCASTING = "BROADCASTING"


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A group's settings under the names the protocol gives them; the defaults are those of the broker."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    brokers: list[str]
    consume_enabled: bool
    retry_max_times: int


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    client_id: str
    addr: str
    language: str
    version: int


class GroupConnections(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a group that are connected now; empty when none is."""

    group: str
    consume_type: str | None
    message_model: str | None
    consume_from: str | None
    connections: list[Connection]
    subscriptions: dict[str, str]
    missing: list[Missing]


class QueueProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is in one queue. `lag` is None when the group has no offset there."""

    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int | None
    lag: int | None
    last_consumed_ms: int | None


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """`lag` is None when it cannot be known, and `lag_unknown` then says why."""

    group: str
    lag: int | None
    lag_unknown: str | None
    consume_tps: float
    queues: list[QueueProgress]
    missing: list[Missing]


async def list_groups(cluster: Cluster, *, all_kinds: bool = False) -> list[GroupSummary]:
    """The groups configured on any master, by name; without the system's own unless asked for."""
    answers, _, errors = await ask_each(
        await masters_of(cluster), lambda _, addr: _group_table(cluster, addr)
    )
    answered(answers, errors)
    found: dict[str, GroupSummary] = {}
    for broker, table in sorted(answers.items()):
        for name, config in table.items():
            if name in found:
                found[name].brokers.append(broker)
                continue
            found[name] = GroupSummary(
                name=name,
                kind="system" if is_system_group(name) else "normal",
                brokers=[broker],
                consume_enabled=bool(config.get("consumeEnable", True)),
                retry_max_times=int(config.get("retryMaxTimes", 16)),
            )
    return [found[name] for name in sorted(found) if all_kinds or found[name].kind == "normal"]


async def create_group(
    cluster: Cluster, config: GroupConfig, *, cluster_name: str | None = None, broker: str | None = None
) -> dict[str, str]:
    """Creates (or overwrites) a group on one broker, one cluster or every master; who took it."""
    if reason := validate_group(config.group_name):
        raise BadRequest(reason, hint="use letters, digits, _ - % |, at most 255 of them")
    body = fastjson.dumps(dict(sorted(msgspec.to_builtins(config).items())))
    targets = await masters_of(cluster, cluster_name=cluster_name, broker=broker)

    async def put(_: str, addr: str) -> None:
        await cluster.request(addr, request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))

    await change_each(targets, put)
    return targets


async def delete_group(cluster: Cluster, group: str, *, keep_offsets: bool = False) -> list[str]:
    """Deletes a group, its offsets unless they are to stay, and its retry and dead-letter topics."""
    masters = await masters_of(cluster)
    answers, _, errors = await ask_each(masters, lambda _, addr: _group_table(cluster, addr))
    answered(answers, errors)
    owners = {broker: masters[broker] for broker, table in answers.items() if group in table}
    if not owners:
        raise _no_group(group)
    remove = "false" if keep_offsets else "true"
    # 4.9 calls the field removeOffset, 5.x cleanOffset.
    fields = {"groupName": group, "removeOffset": remove, "cleanOffset": remove}

    async def drop(_: str, addr: str) -> None:
        await cluster.request(addr, request(RequestCode.DELETE_SUBSCRIPTIONGROUP, dict(fields)))
        for topic in (retry_topic(group), dead_topic(group)):
            await cluster.request(addr, request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))

    await change_each(owners, drop)
    for topic in (retry_topic(group), dead_topic(group)):
        await cluster.tell_namesrvs(
            lambda topic=topic: request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})  # type: ignore[misc]
        )
        cluster.routes.forget(topic)
    return sorted(owners)


async def group_connections(cluster: Cluster, group: str) -> GroupConnections:
    """Who is connected under a group's name, on all brokers together."""

    async def ask(_: str, addr: str) -> dict[str, Any] | None:
        response = await cluster.request(
            addr,
            request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}),
            accept=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE),
        )
        if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        return body_object(response.body, "the connection list")

    answers, missing, errors = await ask_each(await group_brokers(cluster, group), ask)
    answered(answers, errors)
    online = [data for data in answers.values() if data is not None]
    members: dict[str, Connection] = {}
    subscriptions: dict[str, str] = {}
    for data in online:
        for item in data.get("connectionSet") or ():
            members[str(item.get("clientId"))] = Connection(
                client_id=str(item.get("clientId")),
                addr=str(item.get("clientAddr")),
                language=str(item.get("language")),
                version=int(item.get("version") or 0),
            )
        for topic, item in (data.get("subscriptionTable") or {}).items():
            subscriptions[str(topic)] = str(item.get("subString") or "*")
    first = online[0] if online else {}
    return GroupConnections(
        group=group,
        consume_type=first.get("consumeType"),
        message_model=first.get("messageModel"),
        consume_from=first.get("consumeFromWhere"),
        connections=[members[client_id] for client_id in sorted(members)],
        subscriptions=dict(sorted(subscriptions.items())),
        missing=missing,
    )


async def group_progress(cluster: Cluster, group: str, *, topic: str | None = None) -> GroupProgress:
    """Offsets and lag of a group in every queue it has consumed from."""

    async def ask(_: str, addr: str) -> dict[str, Any]:
        fields = {"consumerGroup": group, **({"topic": topic} if topic else {})}
        response = await cluster.request(addr, request(RequestCode.GET_CONSUME_STATS, fields))
        return body_object(response.body, "the group's progress")

    brokers = await group_brokers(cluster, group)
    answers, missing, errors = await ask_each(brokers, ask)
    answered(answers, errors)
    queues = sorted(
        (
            _queue_progress(queue, entry)
            for data in answers.values()
            for queue, entry in queue_table(data, "offsetTable").items()
        ),
        key=lambda item: (item.topic, item.broker, item.queue_id),
    )
    unknown = await _why_lag_unknown(cluster, group, queues, missing)
    return GroupProgress(
        group=group,
        lag=None if unknown else sum(item.lag or 0 for item in queues),
        lag_unknown=unknown,
        consume_tps=sum(float(data.get("consumeTps") or 0) for data in answers.values()),
        queues=queues,
        missing=missing,
    )


async def group_brokers(cluster: Cluster, group: str) -> dict[str, str]:
    """The masters that know a group: those of its retry topic, or else all that have it configured."""
    route = await cluster.find_route(retry_topic(group))
    if route is not None and (masters := route.masters()):
        return masters
    everything = await masters_of(cluster)
    answers, _, errors = await ask_each(everything, lambda _, addr: _group_table(cluster, addr))
    answered(answers, errors)
    owners = {broker: everything[broker] for broker, table in answers.items() if group in table}
    if not owners:
        raise _no_group(group)
    return owners


async def _why_lag_unknown(
    cluster: Cluster, group: str, queues: list[QueueProgress], missing: list[Missing]
) -> str | None:
    if missing:
        return f"no answer from {', '.join(item.broker for item in missing)}"
    if any(item.lag is None for item in queues):
        return "the group has not committed an offset in every queue"
    if not queues:
        members = await group_connections(cluster, group)
        if members.message_model == BROADCASTING:
            return "broadcasting: every member keeps its own offsets"
        return "the group has not committed any offset yet"
    return None


async def _group_table(cluster: Cluster, addr: str) -> dict[str, dict[str, Any]]:
    response = await cluster.request(addr, request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    table = body_object(response.body, "the group table").get("subscriptionGroupTable") or {}
    return {str(name): config for name, config in table.items()}


def _queue_progress(queue: MessageQueue, entry: dict[str, Any]) -> QueueProgress:
    at_broker = int(entry["brokerOffset"])
    # OrbitMQ says when there is none; other brokers only give 0, or -1.
    at_group = -1 if entry.get("noOffset") else int(entry["consumerOffset"])
    last_ms = int(entry.get("lastTimestamp") or 0)
    return QueueProgress(
        topic=queue.topic,
        broker=queue.broker_name,
        queue_id=queue.queue_id,
        broker_offset=at_broker,
        consumer_offset=at_group if at_group >= 0 else None,
        lag=at_broker - at_group if at_group >= 0 else None,
        last_consumed_ms=last_ms if last_ms > 0 else None,
    )


def _no_group(group: str) -> NotFound:
    return NotFound(
        f"no broker knows a group '{group}'",
        hint=f"check the name with `orbitmq group list`, or make it with `orbitmq group create {group}`",
        code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )
