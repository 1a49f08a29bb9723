"""Setting an online group back or forward: the broker works out the offsets, the consumers apply them.

`plan` changes nothing, so it is also the preview; SEARCH_OFFSET_BY_TIMESTAMP gives tools the same figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from orbitmq.broker.admin.common import json_reply, queue_key, queue_range, refused
from orbitmq.broker.admin.context import Broker, Handler
from orbitmq.broker.clients import Client, ConsumerGroup
from orbitmq.net.connection import Connection
from orbitmq.net.errors import RequestError
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.headers import ResetOffsetHeader, parse, to_ext

TO_THE_END: Final = -1
# 3.0.7-SNAPSHOT: the first client that knows how to be reset.
MIN_CLIENT_VERSION: Final = 28
# These would misread the list form that C++ clients expect.
OBJECT_KEY_READERS: Final = ("JAVA", "GO", "PYTHON")

Offsets = dict[MessageQueue, int]


def plan(broker: Broker, wanted: ResetOffsetHeader) -> Offsets:
    """Where each queue would go. Without force a group is only ever set back, never past unread messages."""
    topic = broker.topics.get(wanted.topic)
    if topic is None:
        raise _refused(f"no topic in this broker. topic={wanted.topic}")
    queue_ids = range(topic.read_queue_nums)
    if wanted.queue_id is not None and wanted.queue_id >= 0:
        if wanted.queue_id not in queue_ids:
            raise _refused(f"topic {topic.name} has {len(queue_ids)} queues and no queue {wanted.queue_id}")
        queue_ids = range(wanted.queue_id, wanted.queue_id + 1)
    offsets = {}
    for queue_id in queue_ids:
        target = _target(broker, wanted, queue_id)
        current = broker.offsets.query(wanted.group, topic.name, queue_id)
        if current < 0 and not wanted.is_force:
            raise _refused(
                f"The consumer group <{wanted.group}> has no offset on queue {queue_id} of {topic.name}; "
                "whether this sets it back is not known: let it consume first, or use force"
            )
        offsets[queue_key(broker, topic.name, queue_id)] = target if wanted.is_force else min(target, current)
    return offsets


def _target(broker: Broker, wanted: ResetOffsetHeader, queue_id: int) -> int:
    low, high = queue_range(broker, wanted.topic, queue_id)
    if wanted.offset is not None and wanted.offset >= 0:
        if wanted.queue_id is None or wanted.queue_id < 0:
            return min(max(wanted.offset, low), high)  # queues differ in length: each goes as near as it can
        if not low <= wanted.offset <= high:
            raise _refused(f"offset {wanted.offset} is outside queue {queue_id}, which holds {low} to {high}")
        return wanted.offset
    if wanted.timestamp == TO_THE_END:
        return high
    return max(0, broker.store.offset_by_time(wanted.topic, queue_id, wanted.timestamp))


def reset_offset(broker: Broker, conn: Connection, cmd: Command) -> Command:
    wanted = parse(ResetOffsetHeader, cmd.ext, cmd.code)
    offsets = plan(broker, wanted)
    group = broker.clients.consumer_group(wanted.group)
    if group is None:
        # Tools answer this one by writing the offsets themselves, as an offline group allows.
        raise RequestError(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"Consumer not online, so can not reset offset, Group: {wanted.group} Topic: {wanted.topic} "
            f"Timestamp: {wanted.timestamp}",
        )
    _check_members(group)
    for client in group.members.values():
        # Channels in the table are the connections the heartbeats came on.
        cast(Connection, client.conn).oneway(_order(wanted, offsets, client, cmd.language))
    return json_reply(cmd, {"offsetTable": offsets})


def _check_members(group: ConsumerGroup) -> None:
    """All members can follow the order, or none gets it: half a reset group would both repeat and skip."""
    if group.message_model == "BROADCASTING":
        raise _refused(
            f"group {group.name} consumes in broadcasting mode: each member keeps its own offsets in a local "
            "file; stop the member, change or remove its offsets.json and start it again"
        )
    for client in group.members.values():
        if client.version < MIN_CLIENT_VERSION:
            raise _refused(
                f"the client does not support this feature. {client.client_id} has version {client.version}, "
                "upgrade it to 3.0.7 or later"
            )


def _order(wanted: ResetOffsetHeader, offsets: Offsets, client: Client, asked_by: str) -> Command:
    order = ResetOffsetHeader(
        topic=wanted.topic, group=wanted.group, timestamp=wanted.timestamp, is_force=False
    )
    # mqadmin's switch for C++ groups marks its own request as CPP; older C++ clients are marked otherwise.
    as_list = client.language == "CPP" or (asked_by == "CPP" and client.language not in OBJECT_KEY_READERS)
    body = order_body(offsets, as_list=as_list)
    return request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, to_ext(order), body)


def order_body(offsets: Mapping[MessageQueue, int], *, as_list: bool) -> bytes:
    """C++ clients read a list of entries; Java and Go read fastjson's map with queues as bare keys."""
    if not as_list:
        return fastjson.dumps({"offsetTable": offsets})
    entries = [
        {"brokerName": queue.brokerName, "offset": offset, "queueId": queue.queueId, "topic": queue.topic}
        for queue, offset in offsets.items()
    ]
    return fastjson.dumps({"offsetTable": entries})


def _refused(reason: str) -> RequestError:
    return refused(f"[reset-offset] reset offset failed, {reason}")


HANDLERS: Final[dict[int, Handler]] = {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offset}
