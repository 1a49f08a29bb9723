"""Sending dead letters back to the topic they came from, so that their group gets them once more.

A run may be stopped at any moment and started again: every copy has an id that follows from its dead letter,
and a copy that is already there is not sent a second time. Up to where all dead letters have been dealt with
is kept as the progress of a group of its own, so that later runs do not look at them again; what a filter
passes over, or what failed, stays for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC
from typing import Final

import msgspec

from orbitmq.client.admin.dead import ORIGIN_TOPIC, REASON, DeadFilter, need_dead_topic, origin_topic
from orbitmq.client.admin.messages import messages_by_id
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError, Unreachable
from orbitmq.client.reader import offsets_at, pull, read_addr
from orbitmq.client.routes import TopicRoute
from orbitmq.client.sender import Outgoing, Sender
from orbitmq.wire.codes import RequestCode, ResponseCode, SysFlag
from orbitmq.wire.command import request
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import Message
from orbitmq.wire.message_id import month_start
from orbitmq.wire.properties import Prop, encode_properties
from orbitmq.wire.topics import dead_topic

PROGRESS_PREFIX: Final = "ORBIT_REDRIVE_"
ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
SAVE_EVERY: Final = 50
MAX_FAILURES_IN_A_ROW: Final = 10
MAX_FAILURES_SHOWN: Final = 20
_PRODUCER_GROUP: Final = "orbitmq-redrive"
_KEPT_FLAGS: Final = SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK | SysFlag.MULTI_TAGS
# Tools look for an id near the time it names, in their own time zone: no zone is further ahead than this.
_ZONES_MS: Final = 14 * 3_600_000

# What the system added on the way into the dead-letter topic, or reads from a new message.
_NOT_COPIED: Final = frozenset(
    {
        Prop.RETRY_TOPIC,
        Prop.REAL_TOPIC,
        Prop.REAL_QUEUE_ID,
        Prop.DELAY,
        Prop.WAIT,
        Prop.CLUSTER,
        Prop.UNIQ_KEY,
        Prop.TRANSACTION_PREPARED,
        Prop.PRODUCER_GROUP,
        Prop.TRANSACTION_CHECK_TIMES,
        Prop.TRANSACTION_PREPARED_QUEUE_OFFSET,
        Prop.CHECK_IMMUNITY_SECONDS,
        Prop.MIN_OFFSET,
        Prop.MAX_OFFSET,
        Prop.RECONSUME_TIME,
        Prop.MAX_RECONSUME_TIMES,
        Prop.CONSUME_START_TIME,
        Prop.TIMER_DELAY_SEC,
        Prop.TIMER_DELAY_MS,
        Prop.TIMER_DELIVER_MS,
        Prop.TIMER_OUT_MS,
        Prop.TIMER_ENQUEUE_MS,
        Prop.TIMER_DEQUEUE_MS,
        Prop.TIMER_ROLL_TIMES,
        Prop.TIMER_DEL_UNIQKEY,
        Prop.TIMER_DELAY_LEVEL,
        REASON,
        ORIGIN_TOPIC,
    }
)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    msg_id: str
    topic: str | None
    reason: str


class RedriveReport(msgspec.Struct, kw_only=True):
    """What a run did so far, or in a dry run what it would do."""

    group: str
    dry_run: bool = False
    total: int = 0
    """Dead letters to look at."""
    looked_at: int = 0
    passed_over: int = 0
    """Not wanted by the filter."""
    sent: int = 0
    already_sent: int = 0
    failed: int = 0
    topics: dict[str, int] = msgspec.field(default_factory=dict)
    failures: list[Failure] = msgspec.field(default_factory=list)
    stopped: str | None = None
    """Why the run ended before the last dead letter."""


def redriven_id(message: Message) -> str:
    """The id of the copy of a dead letter: always the same one, in the form producers use."""
    host = message.store_host_bytes
    start_ms = round(month_start(message.store_ms, UTC).timestamp() * 1000)
    span_ms = max(0, message.store_ms - start_ms - _ZONES_MS)
    place = (message.physical_offset & (1 << 48) - 1).to_bytes(6, "big")
    return (host[:-4] + place + span_ms.to_bytes(4, "big") + host[-2:]).hex().upper()


def redriven(message: Message, topic: str) -> Outgoing:
    """A new message with the body, keys, tags and properties of the dead letter."""
    msg_id = redriven_id(message)
    properties = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
    properties.setdefault(Prop.ORIGIN_MESSAGE_ID, message.offset_msg_id)
    properties[ORIGIN_MESSAGE_ID] = message.msg_id
    properties[Prop.UNIQ_KEY] = msg_id
    properties[Prop.WAIT] = "true"
    text = encode_properties(properties).decode()
    return Outgoing(topic, message.body, message.sys_flag & _KEPT_FLAGS, message.flag, text, msg_id)


class Redrive:
    """One run over the dead letters of a group; `report` is up to date at any moment."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        wanted: DeadFilter | None = None,
        *,
        rate: float = 0.0,
        limit: int | None = None,
        dry_run: bool = False,
        on_step: Callable[[RedriveReport], None] | None = None,
    ) -> None:
        if rate < 0:
            raise BadRequest(f"{rate:g} messages a second is no rate", hint="use 0 for no limit")
        self.report = RedriveReport(group=group, dry_run=dry_run)
        self._cluster = cluster
        self._group = group
        self._wanted = wanted or DeadFilter()
        self._limit = limit
        self._pause_s = 1 / rate if rate else 0.0
        self._on_step = on_step or (lambda report: None)
        self._sender = Sender(cluster, _PRODUCER_GROUP)
        self._next_send_s = 0.0
        self._failures_in_a_row = 0

    async def run(self) -> RedriveReport:
        """NotFound when there is nothing to do."""
        await need_dead_topic(self._cluster, self._group)
        topic = dead_topic(self._group)
        route = await self._cluster.route(topic)
        masters = route.masters()
        queues = [queue for queue in route.read_queues() if queue.broker_name in masters]
        first = await offsets_at(self._cluster, route, "first", queues)
        end = await offsets_at(self._cluster, route, "last", queues)
        start = {queue: max(first[queue], await self._progress(masters, queue)) for queue in queues}
        self.report.total = sum(max(0, end[queue] - start[queue]) for queue in queues)
        if not self.report.total:
            held = sum(end[queue] - first[queue] for queue in queues)
            raise NotFound(
                f"there is nothing to redrive for group '{self._group}'"
                + (f": all of its {held:,} dead letters have been redriven" if held else ""),
                hint=f"see `orbitmq dead list {self._group}`",
            )
        for queue in queues:
            await self._run_queue(route, masters[queue.broker_name], queue, start[queue], end[queue])
            if self.report.stopped:
                break
        return self.report

    async def _run_queue(
        self, route: TopicRoute, master: str, queue: MessageQueue, start: int, end: int
    ) -> None:
        done_before = offset = saved = start
        complete = True
        try:
            while offset < end and not self.report.stopped:
                pulled = await pull(self._cluster, read_addr(route, queue), queue, offset)
                if pulled.next_offset <= offset:
                    break
                for message in pulled.messages:
                    if message.queue_offset >= end or self.report.stopped:
                        break
                    complete = await self._one(message) and complete
                    if complete:
                        done_before = message.queue_offset + 1
                    if done_before - saved >= SAVE_EVERY:
                        await self._save(master, queue, done_before)
                        saved = done_before
                else:
                    offset = pulled.next_offset
                    if complete:
                        done_before = min(offset, end)
                    continue
                break
        finally:
            # Also when the run is interrupted: what was sent is not looked at again.
            if done_before > saved:
                await self._save(master, queue, done_before)

    async def _one(self, message: Message) -> bool:
        """Deals with one dead letter; False when it is left for another run."""
        report = self.report
        report.looked_at += 1
        try:
            if not self._wanted.matches(message):
                report.passed_over += 1
                return False
            topic = origin_topic(message)
            if topic is None:
                return self._failed(message, None, "it does not tell which topic it came from")
            if await self._cluster.find_route(topic) is None:
                return self._failed(
                    message, topic, f"topic '{topic}' does not exist any more; create it first"
                )
            try:
                if await self._is_there(topic, redriven_id(message)):
                    report.already_sent += 1
                    return True
                if not report.dry_run:
                    await self._pace()
                    await self._sender.send(redriven(message, topic))
            except OrbitMQError as error:
                return self._failed(message, topic, str(error), unreachable=isinstance(error, Unreachable))
            self._failures_in_a_row = 0
            report.sent += 1
            report.topics[topic] = report.topics.get(topic, 0) + 1
            if self._limit is not None and report.sent >= self._limit:
                report.stopped = f"the limit of {self._limit:,} was reached"
            return True
        finally:
            self._on_step(report)

    def _failed(self, message: Message, topic: str | None, reason: str, *, unreachable: bool = False) -> bool:
        report = self.report
        report.failed += 1
        if len(report.failures) < MAX_FAILURES_SHOWN:
            report.failures.append(Failure(msg_id=message.msg_id, topic=topic, reason=reason))
        self._failures_in_a_row += 1
        if unreachable and self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            report.stopped = f"{MAX_FAILURES_IN_A_ROW} sends in a row got no answer"
        return False

    async def _is_there(self, topic: str, msg_id: str) -> bool:
        try:
            await messages_by_id(self._cluster, topic, msg_id)
        except NotFound:
            return False
        return True

    async def _pace(self) -> None:
        if not self._pause_s:
            return
        now_s = asyncio.get_running_loop().time()
        if self._next_send_s > now_s:
            await asyncio.sleep(self._next_send_s - now_s)
        self._next_send_s = max(now_s, self._next_send_s) + self._pause_s

    async def _progress(self, masters: dict[str, str], queue: MessageQueue) -> int:
        fields = {
            "consumerGroup": PROGRESS_PREFIX + self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "setZeroIfNotFound": "false",
        }
        response = await self._cluster.request(
            masters[queue.broker_name],
            request(RequestCode.QUERY_CONSUMER_OFFSET, fields),
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        return int(response.ext["offset"]) if response.code == ResponseCode.SUCCESS else 0

    async def _save(self, master: str, queue: MessageQueue, offset: int) -> None:
        if self.report.dry_run:
            return
        fields = {
            "consumerGroup": PROGRESS_PREFIX + self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(offset),
        }
        await self._cluster.request(master, request(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
