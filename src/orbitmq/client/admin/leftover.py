"""What groups have still to read on one broker."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from orbitmq.client.admin.targets import body_object, queue_table
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request


class Behind(msgspec.Struct, frozen=True, kw_only=True):
    """A group that has not read a queue to its end; `behind` is None when it has no offset there at all."""

    group: str
    topic: str
    queue_id: int
    behind: int | None
    online: bool
    """Whether a member is connected to this broker: without one, waiting does not help."""


async def behind_on(cluster: Cluster, addr: str, ignore: Collection[str] = ()) -> list[Behind]:
    """Every queue of this broker that some group must still read, by group, topic and queue."""
    response = await cluster.request(
        addr, request(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}), timeout_s=30.0
    )
    rows = body_object(response.body, "the groups' progress").get("consumeStatsList") or []
    found: list[Behind] = []
    try:
        by_group = [(str(group), stats) for row in rows for group, stats in row.items()]
        for group, stats in by_group:
            if group in ignore:
                continue
            queues = [pair for each in stats for pair in queue_table(each, "offsetTable").items()]
            late = [
                (queue.topic, queue.queue_id, None if entry.get("noOffset") else end - at)
                for queue, entry in queues
                if (end := int(entry["brokerOffset"])) > (at := int(entry["consumerOffset"]))
            ]
            if late:
                online = await _is_online(cluster, addr, group)
                found += [
                    Behind(group=group, topic=topic, queue_id=queue_id, behind=count, online=online)
                    for topic, queue_id, count in late
                ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OrbitMQError(
            f"the groups' progress at {addr} is not understood: {error!r}",
            hint="check the version of the broker",
        ) from error
    return sorted(found, key=lambda item: (item.group, item.topic, item.queue_id))


async def _is_online(cluster: Cluster, addr: str, group: str) -> bool:
    answer = await cluster.request(
        addr,
        request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}),
        accept=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE),
    )
    return answer.code == ResponseCode.SUCCESS
