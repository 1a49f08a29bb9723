"""Reads a topic without a consumer group: a range in order of time, or everything new as it arrives.

Nothing is committed and no membership is taken, so reading here never disturbs the topic's real consumers.
Pulls carry their own subscription, under the tools' group that every broker has.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound, OrbitMQError, Unreachable
from orbitmq.client.routes import TopicRoute
from orbitmq.wire.codes import PullFlag, RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.errors import WireError
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import Message, decode_records
from orbitmq.wire.topics import TOOLS_GROUP

PULL_BATCH: Final = 32
SUSPEND_MS: Final = 15_000
HELD_PULL_TIMEOUT_S: Final = 30.0
RETRY_AFTER_S: Final = 1.0
INBOX_MESSAGES: Final = 1000

_PULL_CODES: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass(frozen=True, slots=True)
class Pulled:
    """One answer to a pull: messages, where to go on, and what the queue holds."""

    messages: list[Message]
    next_offset: int
    min_offset: int
    max_offset: int
    moved: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages that were asked for and are no longer there."""

    queue: MessageQueue
    asked_offset: int
    next_offset: int


def parse_tags(expression: str) -> frozenset[str]:
    """The tags of `A || B`; empty means every message."""
    tags = (part.strip() for part in expression.split("||"))
    return frozenset(tag for tag in tags if tag and tag != "*")


async def pull(
    cluster: Cluster,
    addr: str,
    queue: MessageQueue,
    offset: int,
    *,
    tags: str = "*",
    max_messages: int = PULL_BATCH,
    suspend_ms: int = 0,
) -> Pulled:
    """One pull. With `suspend_ms` the broker holds it until a message comes or the time is over."""
    ext = {
        "consumerGroup": TOOLS_GROUP,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(max_messages),
        "sysFlag": str(PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if suspend_ms else 0)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms),
        "subscription": tags or "*",
        "subVersion": "0",
        "expressionType": "TAG",
        "bname": queue.broker_name,
    }
    timeout_s = HELD_PULL_TIMEOUT_S if suspend_ms else None
    response = await cluster.request(
        addr, request(RequestCode.PULL_MESSAGE, ext), accept=_PULL_CODES, timeout_s=timeout_s
    )
    messages: list[Message] = []
    if response.code == ResponseCode.SUCCESS and response.body:
        try:
            messages = decode_records(response.body)
        except WireError as error:
            raise OrbitMQError(
                f"the messages of {queue.broker_name} queue {queue.queue_id} at {offset} are bad: {error}",
                hint="check the broker's store with `orbitmq store verify`",
            ) from error
    wanted = parse_tags(tags)
    if wanted:  # the broker compares hashes only, and two tags can share one
        messages = [message for message in messages if message.tags in wanted]
    return Pulled(
        messages,
        int(response.ext["nextBeginOffset"]),
        int(response.ext["minOffset"]),
        int(response.ext["maxOffset"]),
        response.code == ResponseCode.PULL_OFFSET_MOVED,
    )


async def queue_offset(
    cluster: Cluster, addr: str, code: RequestCode, queue: MessageQueue, **ext: str
) -> int:
    """GET_MIN_OFFSET, GET_MAX_OFFSET or SEARCH_OFFSET_BY_TIMESTAMP of one queue."""
    fields = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name, **ext}
    response = await cluster.request(addr, request(code, fields))
    return int(response.ext["offset"])


async def offsets_at(
    cluster: Cluster, route: TopicRoute, where: str | int, queues: Iterable[MessageQueue] | None = None
) -> dict[MessageQueue, int]:
    """The place of every queue: `"first"`, `"last"`, or the first message stored at or after a time in ms."""
    chosen = list(queues) if queues is not None else list(route.read_queues())

    async def one(queue: MessageQueue) -> int:
        addr = read_addr(route, queue)
        if where == "first":
            return await queue_offset(cluster, addr, RequestCode.GET_MIN_OFFSET, queue)
        if where == "last":
            return await queue_offset(cluster, addr, RequestCode.GET_MAX_OFFSET, queue)
        return await first_stored_at(cluster, addr, queue, int(where))

    found = await asyncio.gather(*(one(queue) for queue in chosen))
    return dict(zip(chosen, found, strict=True))


async def first_stored_at(cluster: Cluster, addr: str, queue: MessageQueue, moment_ms: int) -> int:
    """The first message stored at or after a moment; the end of the queue when there is none.

    Java brokers answer with the message nearest to the moment, which may be too early, with any of several messages
    of the same millisecond, and with the last message for a moment after it. A search for the millisecond before
    never leads too far, so what is looked for lies a few messages ahead of its answer.
    """
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    offset = await queue_offset(cluster, addr, search, queue, timestamp=str(moment_ms - 1))
    while True:
        pulled = await pull(cluster, addr, queue, offset)
        for message in pulled.messages:
            if message.store_ms >= moment_ms:
                return message.queue_offset
        if pulled.next_offset <= offset or pulled.next_offset >= pulled.max_offset:
            return max(offset, pulled.next_offset)
        offset = pulled.next_offset


def read_addr(route: TopicRoute, queue: MessageQueue) -> str:
    broker = route.brokers.get(queue.broker_name)
    addr = broker.readable_addr if broker else None
    if addr is None:
        raise NotFound(
            f"broker '{queue.broker_name}' of topic '{queue.topic}' has no address",
            hint="wait until it registers",
        )
    return addr


@dataclass(slots=True)
class _Cursor:
    """One queue of a range read: what is buffered, and where the next pull starts."""

    queue: MessageQueue
    addr: str
    offset: int
    end: int
    buffer: list[Message] = field(default_factory=list)

    async def fill(self, cluster: Cluster, tags: str, on_gap: Callable[[Gap], None] | None) -> bool:
        """Pulls until there is a message to show; False when the queue's range is used up."""
        while not self.buffer and self.offset < self.end:
            pulled = await pull(cluster, self.addr, self.queue, self.offset, tags=tags)
            if pulled.moved and pulled.next_offset > self.offset and on_gap:
                on_gap(Gap(self.queue, self.offset, pulled.next_offset))
            if pulled.next_offset <= self.offset:
                return False  # an older end than expected: the queue was emptied meanwhile
            self.offset = pulled.next_offset
            self.buffer = [
                message for message in reversed(pulled.messages) if message.queue_offset < self.end
            ]
        return bool(self.buffer)


async def read_range(
    cluster: Cluster,
    route: TopicRoute,
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    *,
    tags: str = "*",
    on_gap: Callable[[Gap], None] | None = None,
) -> AsyncGenerator[Message, None]:
    """The messages from `start` up to `end` of each queue, merged by the time they were stored."""
    cursors = [_Cursor(queue, read_addr(route, queue), start[queue], end[queue]) for queue in start]
    filled = await asyncio.gather(*(cursor.fill(cluster, tags, on_gap) for cursor in cursors))
    heap = [
        (cursor.buffer[-1].store_ms, index)
        for index, (cursor, has_any) in enumerate(zip(cursors, filled, strict=True))
        if has_any
    ]
    heapq.heapify(heap)
    while heap:
        _, index = heap[0]
        cursor = cursors[index]
        yield cursor.buffer.pop()
        if await cursor.fill(cluster, tags, on_gap):
            heapq.heapreplace(heap, (cursor.buffer[-1].store_ms, index))
        else:
            heapq.heappop(heap)


class Follower:
    """New messages of a topic as they arrive, by one held pull per queue. Use it as an async context manager.

    Order is kept inside a queue. A broker that goes away is asked again every second until it is back; an
    answer that waiting cannot change ends the iteration with its error.
    """

    def __init__(
        self,
        cluster: Cluster,
        route: TopicRoute,
        start: Mapping[MessageQueue, int],
        *,
        tags: str = "*",
        on_gap: Callable[[Gap], None] | None = None,
        on_trouble: Callable[[OrbitMQError], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._route = route
        self._start = dict(start)
        self._tags = tags
        self._on_gap = on_gap
        self._on_trouble = on_trouble
        self._inbox: asyncio.Queue[Message | OrbitMQError] = asyncio.Queue(INBOX_MESSAGES)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._follow(queue, offset)) for queue, offset in self._start.items()
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        item = await self._inbox.get()
        if isinstance(item, OrbitMQError):
            raise item
        return item

    async def _follow(self, queue: MessageQueue, offset: int) -> None:
        troubled = False
        while True:
            try:
                addr = read_addr(self._route, queue)
                pulled = await pull(
                    self._cluster, addr, queue, offset, tags=self._tags, suspend_ms=SUSPEND_MS
                )
            except OrbitMQError as error:
                if not (isinstance(error, Unreachable) or error.retryable):
                    await self._inbox.put(error)
                    return
                if not troubled and self._on_trouble:
                    self._on_trouble(error)
                troubled = True
                await asyncio.sleep(RETRY_AFTER_S)
                await self._look_again()
                continue
            troubled = False
            if pulled.moved:
                if self._on_gap:
                    self._on_gap(Gap(queue, offset, pulled.next_offset))
                # Without this pause an end that moves back and forth would be asked for in a tight circle.
                await asyncio.sleep(RETRY_AFTER_S)
            offset = pulled.next_offset
            for message in pulled.messages:
                await self._inbox.put(message)

    async def _look_again(self) -> None:
        """A broker that comes back may have another address."""
        try:
            route = await self._cluster.find_route(self._route.topic, refresh=True)
        except OrbitMQError:
            return  # the next pull meets the same trouble, and tells it
        if route is not None:
            self._route = route
