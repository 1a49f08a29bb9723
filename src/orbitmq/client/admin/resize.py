"""Changing the number of a topic's queues without losing a message.

Growing lets consumers see the new queues first and producers after them. Shrinking goes the other way
round: producers leave the queues to be removed, every group reads them to the end, and only then consumers
leave. Each step is visible in the topic's settings, so a run that was interrupted is continued by the same
call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final

import msgspec

from orbitmq.client.admin.groups import BROADCASTING, group_connections
from orbitmq.client.admin.targets import body_object, queue_table
from orbitmq.client.admin.topics import QueueStatus, topic_config, topic_groups, topic_status, update_topic
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError
from orbitmq.client.reader import queue_offset
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.topics import ORDER_TOPIC_NAMESPACE

# Clients ask for the route every 30 s; until then they may write where they wrote before.
SETTLE_S: Final = 35.0
POLL_S: Final = 1.0


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """Queues of a topic on one broker."""

    read: int
    write: int


class HeldUp(msgspec.Struct, frozen=True, kw_only=True):
    """A group that has not read a queue to its end; `behind` is None when it has no offset there at all."""

    group: str
    broker: str
    queue_id: int
    behind: int | None


class ShrinkProgress(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    queues: int
    before: dict[str, Size]
    left: int
    """Messages in the queues to be removed that some group has still to read."""
    held_up_by: list[HeldUp]
    not_asked: list[str]
    """Groups whose members keep their own offsets: nobody can tell how far they are."""
    settling_s: float
    done: bool = False


class StillInUse(OrbitMQError):
    """The time was over before every group had read the queues to be removed. Nothing is lost; run it
    again.
    """

    def __init__(self, progress: ShrinkProgress) -> None:
        names = sorted({item.group for item in progress.held_up_by})
        who = f"held up by {', '.join(names)}" if names else "producers may still write to the old queues"
        super().__init__(
            f"topic '{progress.topic}' still has {progress.left:,} unread messages in the queues to be removed, {who}",
            hint="producers have left them; run the same command again to go on, or pass --ignore GROUP for a group "
            "that will not come back",
        )
        self.progress = progress


class Step(Enum):
    LOWER_WRITE = "producers leave the queues"
    WAIT = "groups read them to the end"
    LOWER_READ = "consumers leave the queues"
    DONE = "done"


def next_step(size: Size, wanted: int, *, read_to_the_end: bool) -> Step:
    """What has to happen next on one broker."""
    if size.write > wanted:
        return Step.LOWER_WRITE
    if size.read > wanted:
        return Step.LOWER_READ if read_to_the_end else Step.WAIT
    return Step.DONE


async def grow_topic(
    cluster: Cluster, name: str, queues: int, *, broker: str | None = None
) -> dict[str, Size]:
    """Raises the queues on every master (or one) that has fewer; their sizes before."""
    before = await _sizes(cluster, name, broker)
    _check_wanted(queues)
    if all(size.read > queues or size.write > queues for size in before.values()):
        raise BadRequest(
            f"topic '{name}' has more than {queues} queues already",
            hint=f"use `orbitmq topic shrink {name} --queues {queues}` to take some away",
        )
    for target, size in before.items():
        if size.read < queues:
            await update_topic(cluster, name, read_queues=queues, broker=target)
        if size.write < queues:
            await update_topic(cluster, name, write_queues=queues, broker=target)
    await _tell_order(cluster, name, {target: max(queues, size.write) for target, size in before.items()})
    return before


class Shrink:
    """One run. `on_progress` hears of every look at the groups."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        queues: int,
        *,
        broker: str | None = None,
        ignore: Collection[str] = (),
        settle_s: float = SETTLE_S,
        timeout_s: float | None = None,
        poll_s: float = POLL_S,
        on_progress: Callable[[ShrinkProgress], None] = lambda progress: None,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._queues = queues
        self._broker = broker
        self._ignore = frozenset(ignore)
        self._settle_ms = int(settle_s * 1000)
        self._timeout_ms = None if timeout_s is None else int(timeout_s * 1000)
        self._poll_s = poll_s
        self._on_progress = on_progress
        self._started_ms = cluster.clock()
        self._left_ms = self._started_ms
        """When producers were told to leave, as far as this run knows."""

    async def run(self) -> ShrinkProgress:
        _check_wanted(self._queues)
        before = await _sizes(self._cluster, self._name, self._broker)
        if all(size.read < self._queues for size in before.values()):
            raise BadRequest(
                f"topic '{self._name}' has fewer than {self._queues} queues already",
                hint=f"use `orbitmq topic grow {self._name} --queues {self._queues}` to add some",
            )
        for target, size in before.items():
            if next_step(size, self._queues, read_to_the_end=False) is Step.LOWER_WRITE:
                await update_topic(self._cluster, self._name, write_queues=self._queues, broker=target)
                self._left_ms = self._cluster.clock()
        await _tell_order(
            self._cluster,
            self._name,
            {target: min(self._queues, size.write) for target, size in before.items()},
        )
        while True:
            progress, tails = await self._look(before)
            self._on_progress(progress)
            ready = not progress.held_up_by and progress.settling_s <= 0
            if ready and await self._lower_read(before, tails):
                return msgspec.structs.replace(progress, done=True)
            waited_ms = self._cluster.clock() - self._started_ms
            if self._timeout_ms is not None and waited_ms >= self._timeout_ms:
                raise StillInUse(progress)
            await asyncio.sleep(self._poll_s)

    async def _look(self, before: dict[str, Size]) -> tuple[ShrinkProgress, list[QueueStatus]]:
        status = await topic_status(self._cluster, self._name)
        if status.missing:
            raise OrbitMQError(
                f"no answer from {', '.join(item.broker for item in status.missing)}",
                hint="the topic stays as it is; run the same command again when the broker is back",
            )
        tails = [
            queue for queue in status.queues if queue.broker in before and queue.queue_id >= self._queues
        ]
        behind, not_asked = await self._behind(tails)
        last_write_ms = max((queue.last_update_ms or 0 for queue in tails), default=0)
        quiet_from_ms = max(self._left_ms, min(last_write_ms, self._cluster.clock()))
        settling_ms = quiet_from_ms + self._settle_ms - self._cluster.clock() if tails else 0
        sizes = {(queue.broker, queue.queue_id): queue.messages for queue in tails}
        worst: dict[tuple[str, int], int] = {}
        for item in behind:
            place = (item.broker, item.queue_id)
            count = sizes[place] if item.behind is None else item.behind
            worst[place] = max(worst.get(place, 0), count)
        progress = ShrinkProgress(
            topic=self._name,
            queues=self._queues,
            before=before,
            left=sum(worst.values()),
            held_up_by=behind,
            not_asked=not_asked,
            settling_s=max(0.0, settling_ms / 1000),
        )
        return progress, tails

    async def _behind(self, tails: list[QueueStatus]) -> tuple[list[HeldUp], list[str]]:
        groups = [name for name in await topic_groups(self._cluster, self._name) if name not in self._ignore]
        brokers = (await self._cluster.route(self._name)).masters()
        found: list[HeldUp] = []
        not_asked: list[str] = []
        for group in groups:
            if await self._broadcasts(group):
                not_asked.append(group)
                continue
            for broker in sorted({queue.broker for queue in tails}):
                offsets = await self._offsets(group, brokers[broker])
                if offsets is None:
                    continue
                for queue in tails:
                    if queue.broker != broker or not queue.messages:
                        continue
                    offset = offsets.get(MessageQueue(self._name, broker, queue.queue_id))
                    if offset is None or offset < queue.max_offset:
                        behind = None if offset is None else queue.max_offset - max(offset, queue.min_offset)
                        found.append(
                            HeldUp(group=group, broker=broker, queue_id=queue.queue_id, behind=behind)
                        )
        return found, not_asked

    async def _broadcasts(self, group: str) -> bool:
        try:
            return (await group_connections(self._cluster, group)).message_model == BROADCASTING
        except NotFound:  # only its offsets are left of it
            return False

    async def _offsets(self, group: str, addr: str) -> dict[MessageQueue, int] | None:
        """Where a group is, without queues it never read from; None when it has given the topic up."""
        fields = {"consumerGroup": group, "topic": self._name}
        response = await self._cluster.request(addr, request(RequestCode.GET_CONSUME_STATS, fields))
        table = queue_table(body_object(response.body, "the group's progress"), "offsetTable")
        if not table:
            return None
        return {
            queue: int(entry["consumerOffset"])
            for queue, entry in table.items()
            if not entry.get("noOffset") and int(entry["consumerOffset"]) >= 0
        }

    async def _lower_read(self, before: dict[str, Size], tails: list[QueueStatus]) -> bool:
        """Consumers leave. False, and all is as it was, when a message slipped in meanwhile."""
        for target, size in before.items():
            if (
                next_step(Size(read=size.read, write=0), self._queues, read_to_the_end=True)
                is Step.LOWER_READ
            ):
                await update_topic(self._cluster, self._name, read_queues=self._queues, broker=target)
        # From here on the broker refuses messages for the removed queues: their ends are final.
        brokers = (await self._cluster.route(self._name)).masters()
        late = set()
        for queue in tails:
            place = MessageQueue(self._name, queue.broker, queue.queue_id)
            end = await queue_offset(self._cluster, brokers[queue.broker], RequestCode.GET_MAX_OFFSET, place)
            if end > queue.max_offset:
                late.add(queue.broker)
        for target in late:
            await update_topic(self._cluster, self._name, read_queues=before[target].read, broker=target)
        return not late


async def _sizes(cluster: Cluster, name: str, broker: str | None) -> dict[str, Size]:
    route = await cluster.route(name, refresh=True)
    masters = route.masters()
    away = sorted({data.broker for data in route.located_queues()} - masters.keys())
    if away and (broker is None or broker in away):
        # Its slave still serves the old queues: done without it would be done by half.
        raise OrbitMQError(
            f"broker {', '.join(away)} of topic '{name}' has no master now",
            hint="nothing was changed there; run the same command again when it has one",
        )
    chosen = {key: addr for key, addr in masters.items() if broker is None or broker in (key, addr)}
    if not chosen:
        where = f" on broker '{broker}'" if broker else ""
        raise NotFound(
            f"topic '{name}' is not served by a master{where}", hint=f"see `orbitmq topic route {name}`"
        )
    sizes = {}
    for target, addr in chosen.items():
        config = await topic_config(cluster, addr, name)
        sizes[target] = Size(read=int(config["readQueueNums"]), write=int(config["writeQueueNums"]))
    return sizes


async def _tell_order(cluster: Cluster, name: str, queues: dict[str, int]) -> None:
    """An ordered topic also has its queue numbers at the name servers, where producers look them up."""
    key = {"namespace": ORDER_TOPIC_NAMESPACE, "key": name}
    answer = await cluster.ask_namesrv(
        request(RequestCode.GET_KV_CONFIG, dict(key)),
        accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
    )
    parts = dict(part.split(":", 1) for part in (answer.ext.get("value") or "").split(";") if ":" in part)
    changed = {**parts, **{target: str(count) for target, count in queues.items() if target in parts}}
    if changed != parts:
        value = ";".join(f"{target}:{count}" for target, count in changed.items())
        await cluster.tell_namesrvs(lambda: request(RequestCode.PUT_KV_CONFIG, {**key, "value": value}))


def _check_wanted(queues: int) -> None:
    if queues < 1:
        raise BadRequest(f"{queues} queues make no topic", hint="use at least one queue")
