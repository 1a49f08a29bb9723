"""Where a group's progress is kept: on the brokers, and where a queue begins that has none yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, Protocol

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError, Unreachable
from orbitmq.client.reader import first_stored_at, queue_offset
from orbitmq.client.routes import MASTER_ID
from orbitmq.client.times import moment_ms
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.topics import RETRY_PREFIX

log = logging.getLogger("orbitmq.consumer")

Start = Literal["auto", "first", "last", "earliest", "latest"] | datetime
"""Where a group begins on a queue it has no offset for. `auto` is what official clients do: the end, except on a
topic so young that its first message is still in the broker's memory, which is read from the beginning."""

AUTO, FIRST, LAST = "auto", "first", "last"
_PLACES: Final = {AUTO: AUTO, FIRST: FIRST, LAST: LAST, "earliest": FIRST, "latest": LAST}


def start_place(start: Start) -> str | int:
    """`auto`, `first`, `last`, or milliseconds since 1970."""
    if isinstance(start, datetime):
        return moment_ms(start, "start")
    place = _PLACES.get(start)
    if place is None:
        raise BadRequest(
            f"start={start!r} is no position",
            hint='use "first", "last", "auto" or a datetime with a time zone',
        )
    return place


class OffsetStore(Protocol):
    """Progress of one group, queue by queue."""

    async def load(self, queue: MessageQueue) -> int | None:
        """The offset to go on from; None when there is none yet."""

    async def save(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        """Keeps the offsets and gives the queues for which that is certain. Failures are logged, not raised."""


async def master_of(cluster: Cluster, queue: MessageQueue) -> str:
    """The address of the broker that has the truth about a queue."""
    route = await cluster.find_route(queue.topic)
    broker = route.brokers.get(queue.broker_name) if route else None
    if broker is None or broker.master is None:
        raise NotFound(
            f"broker '{queue.broker_name}' has no master at the moment", hint="wait until it registers again"
        )
    return broker.master


async def keepers_of(cluster: Cluster, queue: MessageQueue) -> dict[str, bool]:
    """Who keeps the group's progress, first choice first, and whether that is the master: without one, a slave does."""
    route = await cluster.find_route(queue.topic)
    broker = route.brokers.get(queue.broker_name) if route else None
    if broker is None or not broker.addrs:
        raise NotFound(
            f"broker '{queue.broker_name}' has no address at the moment", hint="wait until it registers again"
        )
    return {addr: member == MASTER_ID for member, addr in sorted(broker.addrs.items())}


async def keeper_of(cluster: Cluster, queue: MessageQueue) -> str:
    """The one to ask: the master has the truth as long as the route names one."""
    return next(iter(await keepers_of(cluster, queue)))


class BrokerOffsets:
    """Offsets on the masters, where every member of the group finds them.

    While a master is away its slave keeps them, so that members that come meanwhile go on from there. That counts as
    not saved: the master gets them as soon as it, or another one, is there.
    """

    def __init__(self, cluster: Cluster, group: str, place: str | int) -> None:
        self._cluster = cluster
        self._group = group
        self._place = place
        self._troubled: set[str] = set()

    async def load(self, queue: MessageQueue) -> int | None:
        ext = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "bname": queue.broker_name,
        }
        if self._place != AUTO and not queue.topic.startswith(RETRY_PREFIX):
            # Without this a broker answers 0 for a young topic, also to those who asked for its end.
            ext["setZeroIfNotFound"] = "false"
        addr = await keeper_of(self._cluster, queue)
        try:
            response = await self._cluster.request(
                addr,
                request(RequestCode.QUERY_CONSUMER_OFFSET, ext),
                accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
            )
        except Unreachable:
            # For the next try: another may be the master by then.
            await self._cluster.renewed_route(queue.topic)
            raise
        return int(response.ext["offset"]) if response.code == ResponseCode.SUCCESS else None

    async def save(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        taken = await asyncio.gather(*(self._save(queue, offset) for queue, offset in offsets.items()))
        return {queue for queue, ok in zip(offsets, taken, strict=True) if ok}

    async def _save(self, queue: MessageQueue, offset: int) -> bool:
        ext = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(offset),
            "bname": queue.broker_name,
        }
        try:
            certain = await self._tell(queue, request(RequestCode.UPDATE_CONSUMER_OFFSET, ext))
        except OrbitMQError as error:
            if queue.broker_name not in self._troubled:
                log.warning(
                    "progress of group '%s' is not saved and will be tried again: %s", self._group, error
                )
            self._troubled.add(queue.broker_name)
            return False
        if queue.broker_name in self._troubled:
            self._troubled.discard(queue.broker_name)
            log.info("progress of group '%s' is saved again on %s", self._group, queue.broker_name)
        return certain

    async def _tell(self, queue: MessageQueue, command: Command) -> bool:
        """Answered, unlike the official clients' commits: what was not taken is sent again. True: by the master."""
        asked: set[str] = set()
        addr = await keeper_of(self._cluster, queue)
        while True:
            try:
                await self._cluster.request(addr, command)
            except Unreachable:
                asked.add(addr)
                await self._cluster.renewed_route(queue.topic)
                # The route may name a dead master for a while. Meanwhile its slaves are read from: they are told.
                left = [other for other in await keepers_of(self._cluster, queue) if other not in asked]
                if not left:
                    raise
                addr = left[0]
            else:
                return (await keepers_of(self._cluster, queue)).get(addr, False)


async def first_offset(cluster: Cluster, queue: MessageQueue, place: str | int) -> int:
    """Where to begin on a queue without an offset. Retried messages are never skipped."""
    if place == FIRST or queue.topic.startswith(RETRY_PREFIX):
        return 0
    addr = await keeper_of(cluster, queue)
    if isinstance(place, int):
        return await first_stored_at(cluster, addr, queue, place)
    return await queue_offset(cluster, addr, RequestCode.GET_MAX_OFFSET, queue)
