"""Moving a group to another place in a topic: first a plan that shows what would change, then the change."""

from __future__ import annotations

import msgspec

from orbitmq.client.admin.groups import group_brokers, group_connections
from orbitmq.client.admin.targets import answered, ask_each, body_object, change_each, queue_table
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound
from orbitmq.client.reader import offsets_at
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.fastjson import MessageQueue

# Timestamps the broker understands as places rather than times.
TO_LAST_MS = -1
TO_FIRST_MS = 0


class QueueReset(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of a plan. `skipped` messages would not be seen, `repeated` ones seen again."""

    broker: str
    queue_id: int
    from_offset: int | None
    to_offset: int
    skipped: int
    repeated: int


class ResetPlan(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    topic: str
    timestamp_ms: int
    online_members: int
    queues: list[QueueReset]
    applied: bool = False


async def plan_reset(cluster: Cluster, group: str, topic: str, timestamp_ms: int) -> ResetPlan:
    """Where every queue would go; -1 means the end, 0 the beginning. Nothing is changed."""
    await group_brokers(cluster, group)  # an unknown group is told before any queue is looked at
    route = await cluster.route(topic, refresh=True)
    queues = [queue for queue in route.read_queues() if queue.broker_name in route.masters()]
    if not queues:
        raise NotFound(f"topic '{topic}' has no readable queue", hint=f"see `orbitmq topic route {topic}`")
    where: str | int = {TO_LAST_MS: "last", TO_FIRST_MS: "first"}.get(timestamp_ms, timestamp_ms)
    goals = await offsets_at(cluster, route, where, queues)
    now = await _committed(cluster, group, topic, route.masters())
    members = await group_connections(cluster, group)
    return ResetPlan(
        group=group,
        topic=topic,
        timestamp_ms=timestamp_ms,
        online_members=len(members.connections),
        queues=[_step(queue, now.get(queue), goals[queue]) for queue in queues],
    )


async def apply_reset(cluster: Cluster, plan: ResetPlan, *, force: bool = True) -> ResetPlan:
    """Carries a plan out.

    Members that are connected are told by the broker; without any, the stored offset is set. Without `force`
    no queue goes backwards.
    """
    masters = (await cluster.route(plan.topic)).masters()
    done: dict[tuple[str, int], int] = {}

    async def reset(broker: str, addr: str) -> None:
        fields = {
            "topic": plan.topic,
            "group": plan.group,
            "timestamp": str(plan.timestamp_ms),
            "isForce": "true" if force else "false",
        }
        response = await cluster.request(
            addr,
            request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields),
            accept=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE),
        )
        if response.code == ResponseCode.SUCCESS:
            table = queue_table(body_object(response.body, "the answer to the reset"), "offsetTable")
            done.update({(queue.broker_name, queue.queue_id): int(offset) for queue, offset in table.items()})
            return
        for step in plan.queues:
            if step.broker == broker and (force or step.to_offset >= (step.from_offset or 0)):
                await _store_offset(cluster, addr, plan, step)
                done[broker, step.queue_id] = step.to_offset

    await change_each({step.broker: masters[step.broker] for step in plan.queues}, reset)
    queues = [
        _step(
            MessageQueue(plan.topic, step.broker, step.queue_id),
            step.from_offset,
            done.get((step.broker, step.queue_id), step.from_offset or 0),
        )
        for step in plan.queues
    ]
    return msgspec.structs.replace(plan, queues=queues, applied=True)


async def _store_offset(cluster: Cluster, addr: str, plan: ResetPlan, step: QueueReset) -> None:
    fields = {
        "consumerGroup": plan.group,
        "topic": plan.topic,
        "queueId": str(step.queue_id),
        "commitOffset": str(step.to_offset),
    }
    await cluster.request(addr, request(RequestCode.UPDATE_CONSUMER_OFFSET, fields))


async def _committed(
    cluster: Cluster, group: str, topic: str, brokers: dict[str, str]
) -> dict[MessageQueue, int]:
    async def ask(_: str, addr: str) -> dict[MessageQueue, int]:
        fields = {"consumerGroup": group, "topic": topic}
        response = await cluster.request(addr, request(RequestCode.GET_CONSUME_STATS, fields))
        table = queue_table(body_object(response.body, "the group's progress"), "offsetTable")
        return {queue: int(entry["consumerOffset"]) for queue, entry in table.items()}

    answers, _, errors = await ask_each(brokers, ask)
    answered(answers, errors)
    return {
        queue: offset
        for found in answers.values()
        for queue, offset in found.items()
        if queue.topic == topic and offset >= 0
    }


def _step(queue: MessageQueue, now: int | None, goal: int) -> QueueReset:
    move = 0 if now is None else goal - now
    return QueueReset(
        broker=queue.broker_name,
        queue_id=queue.queue_id,
        from_offset=now,
        to_offset=goal,
        skipped=max(0, move),
        repeated=max(0, -move),
    )
