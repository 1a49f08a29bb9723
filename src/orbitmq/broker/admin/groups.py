"""Consumer and producer groups: their settings, and who is connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from orbitmq.broker.admin.common import json_reply, refuse_on_slave, refused
from orbitmq.broker.admin.context import Broker, Handler
from orbitmq.broker.clients import Client, Mismatch
from orbitmq.broker.groups import GroupConfig
from orbitmq.broker.subscriptions import expression_meaning
from orbitmq.net.connection import Connection
from orbitmq.net.errors import RequestError
from orbitmq.wire import bodies, fastjson
from orbitmq.wire import topics as names
from orbitmq.wire.codes import LANGUAGES, OrbitCode, RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.headers import (
    ConsumerGroupHeader,
    DeleteGroupHeader,
    GroupHeader,
    GroupTopicHeader,
    ProducerGroupHeader,
    parse,
)

# Clients build one list of queues per topic; a retry topic of more would only cost them memory.
MAX_RETRY_QUEUES: Final = 1024


def update_group(broker: Broker, conn: Connection, cmd: Command) -> Command:
    refuse_on_slave(broker)
    _put_groups(broker, [fastjson.loads(cmd.body)])
    return cmd.reply()


def update_group_list(broker: Broker, conn: Connection, cmd: Command) -> Command:
    refuse_on_slave(broker)
    data = fastjson.loads(cmd.body)
    entries = data.get("groupConfigList") if isinstance(data, Mapping) else None
    if not isinstance(entries, list):
        raise refused("the body holds no groupConfigList; send a JSON list of groups under that name")
    _put_groups(broker, entries)
    return cmd.reply()


def _put_groups(broker: Broker, entries: list[Any]) -> None:
    for group in [_read_group(entry) for entry in entries]:
        broker.groups.put(group, broker.clock())


def _read_group(entry: object) -> GroupConfig:
    try:
        # Typed first, which refuses what is of the wrong kind; the rest is kept for newer brokers to read.
        typed = msgspec.convert(entry, bodies.SubscriptionGroupConfig, strict=False)
        group = GroupConfig.from_json({**cast(dict[str, Any], entry), **msgspec.to_builtins(typed)})
        reason = names.validate_group(group.name)
        if not 0 <= group.retry_queue_nums <= MAX_RETRY_QUEUES:
            reason = f"retryQueueNums is {group.retry_queue_nums}; possible are 0 to {MAX_RETRY_QUEUES}"
    except (msgspec.ValidationError, ValueError) as error:
        reason = str(error)
    if reason is not None:
        raise refused(f"the subscription group cannot be taken over: {reason}; nothing was changed")
    return group


def delete_group(broker: Broker, conn: Connection, cmd: Command) -> Command:
    refuse_on_slave(broker)
    header = parse(DeleteGroupHeader, cmd.ext, cmd.code)
    broker.groups.delete(header.group_name, broker.clock())
    if header.drops_offsets:
        broker.offsets.remove_group(header.group_name)
    broker.stats.forget_group(header.group_name)
    return cmd.reply()


def all_group_config(broker: Broker, conn: Connection, cmd: Command) -> Command:
    return json_reply(cmd, broker.groups.to_json(), {"totalGroupNum": str(len(broker.groups.table))})


def group_config(broker: Broker, conn: Connection, cmd: Command) -> Command:
    name = parse(GroupHeader, cmd.ext, cmd.code).group
    group = broker.groups.get(name)
    if group is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group[{name}] not exist on broker {broker.config.broker_name}; its first consumer "
            "makes it, or updateSubGroup",
        )
    return json_reply(cmd, group.to_json())


def consumer_connections(broker: Broker, conn: Connection, cmd: Command) -> Command:
    name = parse(ConsumerGroupHeader, cmd.ext, cmd.code).consumer_group
    group = broker.clients.consumer_group(name)
    if group is None:
        raise RequestError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    answer: dict[str, object] = {
        "connectionSet": _connections(group.members.values()),
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": group.subscriptions,
    }
    mismatches = group.mismatches()
    if mismatches:
        # Not of the protocol, and skipped by peers that do not know it: members that overwrite each other's
        # subscription lose messages without any other sign.
        answer["mismatches"] = _told(mismatches)
    return json_reply(cmd, answer)


def _told(mismatches: Iterable[Mismatch]) -> list[dict[str, object]]:
    return [
        {"clientId": m.client_id, "topic": m.topic, "theirs": m.theirs, "groups": m.groups, "text": str(m)}
        for m in mismatches
    ]


def group_members(broker: Broker, conn: Connection, cmd: Command) -> Command:
    """GROUP_MEMBERS: the connection list says what the group reads, this says what each member wants."""
    name = parse(ConsumerGroupHeader, cmd.ext, cmd.code).consumer_group
    group = broker.clients.consumer_group(name)
    if group is None:
        raise RequestError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    members = [
        {
            "clientAddr": member.conn.peer,
            "clientId": member.client_id,
            "joinedTimestamp": member.joined_ms,
            "language": _language(member),
            "lastUpdateTimestamp": member.last_seen_ms,
            "subscriptions": {
                topic: expression_meaning(subscription)
                for topic, subscription in sorted(member.subscriptions.items())
            },
            "version": member.version,
        }
        for member in group.members.values()
    ]
    answer = {
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "members": members,
        "messageModel": group.message_model,
        "mismatches": _told(group.mismatches()),
        "subscriptions": {topic: expression_meaning(s) for topic, s in sorted(group.subscriptions.items())},
    }
    return json_reply(cmd, answer)


def producer_connections(broker: Broker, conn: Connection, cmd: Command) -> Command:
    name = parse(ProducerGroupHeader, cmd.ext, cmd.code).producer_group
    producers = broker.clients.producer_group(name)
    if not producers:
        raise refused(
            f"the producer group[{name}] not exist: no producer of it has sent a heartbeat to this broker"
        )
    return json_reply(cmd, {"connectionSet": _connections(producers)})


def _connections(clients: Iterable[Client]) -> list[dict[str, object]]:
    return [
        {
            "clientAddr": client.conn.peer,
            "clientId": client.client_id,
            "language": _language(client),
            "version": client.version,
        }
        for client in clients
    ]


def _language(client: Client) -> str:
    # Java tools fail on a language they do not know by name.
    return client.language if client.language in LANGUAGES else "OTHER"


def all_producers(broker: Broker, conn: Connection, cmd: Command) -> Command:
    table = {
        group: [
            {
                "clientId": client.client_id,
                "language": _language(client),
                "lastUpdateTimestamp": client.last_seen_ms,
                "remoteIP": "/" + client.conn.peer,
                "version": client.version,
            }
            for client in clients
        ]
        for group, clients in broker.clients.producer_groups().items()
    }
    return json_reply(cmd, {"data": table})


def topics_of_group(broker: Broker, conn: Connection, cmd: Command) -> Command:
    name = parse(GroupHeader, cmd.ext, cmd.code).group
    return json_reply(cmd, {"topicList": sorted(broker.offsets.topics_of(name))})


def subscription_of_group(broker: Broker, conn: Connection, cmd: Command) -> Command:
    header = parse(GroupTopicHeader, cmd.ext, cmd.code)
    subscription = None if header.topic is None else broker.clients.subscription(header.group, header.topic)
    return json_reply(cmd, {"group": header.group, "subscriptionData": subscription, "topic": header.topic})


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_group_list,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all_group_config,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: group_config,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: all_producers,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: topics_of_group,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: subscription_of_group,
    OrbitCode.GROUP_MEMBERS: group_members,
}
