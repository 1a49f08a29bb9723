"""Moving a group to another place in a topic: first a plan that shows what would change, then the change."""

from __future__ import annotations

import msgspec

from orbitmq.client.admin.groups import group_brokers, group_connections
from orbitmq.client.admin.targets import answered, ask_each, body_object, change_each, queue_table
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound, Refused
from orbitmq.client.reader import offsets_at
from orbitmq.client.routes import TopicRoute
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
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
    """`offset` wins over `timestamp_ms`; `may_skip` tells whether queues may go forward."""

    group: str
    topic: str
    timestamp_ms: int
    offset: int | None = None
    queue_id: int | None = None
    may_skip: bool = True
    online_members: int
    queues: list[QueueReset]
    applied: bool = False


async def plan_reset(
    cluster: Cluster,
    group: str,
    topic: str,
    timestamp_ms: int,
    *,
    offset: int | None = None,
    queue_id: int | None = None,
    may_skip: bool = True,
) -> ResetPlan:
    """Where every queue (or one) would go: to a time, the end (-1), the beginning (0), or an offset.

    An offset outside of what a queue holds becomes the nearest one inside. Nothing is changed.
    """
    await group_brokers(cluster, group)  # an unknown group is told before any queue is looked at
    route = await cluster.route(topic, refresh=True)
    queues = [queue for queue in route.read_queues() if queue.broker_name in route.masters()]
    if queue_id is not None:
        queues = [queue for queue in queues if queue.queue_id == queue_id]
    if not queues:
        which = "readable queue" if queue_id is None else f"queue {queue_id} to read"
        raise NotFound(f"topic '{topic}' has no {which}", hint=f"see `orbitmq topic route {topic}`")
    goals = await _goals(cluster, route, queues, timestamp_ms, offset)
    now = await _committed(cluster, group, topic, route.masters())
    members = await group_connections(cluster, group)
    if not may_skip:
        for queue in queues:
            if queue not in now:
                raise BadRequest(
                    f"group '{group}' has no offset in queue {queue.queue_id} of {queue.broker_name}: "
                    "whether this skips messages cannot be told",
                    hint="leave --no-skip out, or let the group consume first",
                )
            goals[queue] = min(goals[queue], now[queue])
    return ResetPlan(
        group=group,
        topic=topic,
        timestamp_ms=timestamp_ms,
        offset=offset,
        queue_id=queue_id,
        may_skip=may_skip,
        online_members=len(members.connections),
        queues=[_step(queue, now.get(queue), goals[queue]) for queue in queues],
    )


async def _goals(
    cluster: Cluster, route: TopicRoute, queues: list[MessageQueue], timestamp_ms: int, offset: int | None
) -> dict[MessageQueue, int]:
    if offset is None:
        where: str | int = {TO_LAST_MS: "last", TO_FIRST_MS: "first"}.get(timestamp_ms, timestamp_ms)
        return await offsets_at(cluster, route, where, queues)
    first = await offsets_at(cluster, route, "first", queues)
    last = await offsets_at(cluster, route, "last", queues)
    return {queue: min(max(offset, first[queue]), last[queue]) for queue in queues}


async def apply_reset(cluster: Cluster, plan: ResetPlan) -> ResetPlan:
    """Carries a plan out.

    Members that are connected are told by the broker and go there within seconds; without any, the stored
    offset is set.
    """
    masters = (await cluster.route(plan.topic)).masters()
    done: dict[tuple[str, int], int] = {}

    async def reset(broker: str, addr: str) -> None:
        steps = [step for step in plan.queues if step.broker == broker]
        try:
            response = await _order(cluster, addr, plan)
        except Refused as refusal:
            if not _misses_an_offset(refusal):
                raise
            # Java's broker wants an offset in every queue before it moves the members of a group.
            await _store_offsets(cluster, addr, plan, steps)
            response = await _order(cluster, addr, plan)
        if response.code == ResponseCode.SUCCESS:
            table = queue_table(body_object(response.body, "the answer to the reset"), "offsetTable")
            done.update({(queue.broker_name, queue.queue_id): int(offset) for queue, offset in table.items()})
            return
        await _store_offsets(cluster, addr, plan, steps)
        done.update({(broker, step.queue_id): step.to_offset for step in steps})

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


async def _order(cluster: Cluster, addr: str, plan: ResetPlan) -> Command:
    return await cluster.request(
        addr,
        request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, _order_fields(plan)),
        accept=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE),
    )


def _misses_an_offset(refusal: Refused) -> bool:
    return refusal.code == ResponseCode.SYSTEM_ERROR and "not exist" in str(refusal)


def _order_fields(plan: ResetPlan) -> dict[str, str]:
    fields = {
        "topic": plan.topic,
        "group": plan.group,
        "timestamp": str(plan.timestamp_ms),
        "isForce": "true" if plan.may_skip else "false",
    }
    if plan.offset is not None:
        fields["offset"] = str(plan.offset)
    if plan.queue_id is not None:
        fields["queueId"] = str(plan.queue_id)
        if plan.offset is not None:
            # Named exactly, the offset must exist; the plan has brought it inside already.
            fields["offset"] = str(plan.queues[0].to_offset)
    return fields


async def _store_offsets(cluster: Cluster, addr: str, plan: ResetPlan, steps: list[QueueReset]) -> None:
    for step in steps:
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
        return {
            queue: int(entry["consumerOffset"]) for queue, entry in table.items() if not entry.get("noOffset")
        }

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
