"""Reading a topic from any place, without a group: nothing is acknowledged, nobody else is disturbed.

    async with mq.reader("orders", start="earliest") as reader:
        page = await reader.read(max_messages=1000, max_wait=1.0)    # what is there, [] when nothing came
        async for message in reader:                                 # everything, and then what arrives
            ...
        await reader.seek(datetime(2024, 5, 1, tzinfo=UTC))          # anywhere, at any time
        async for message in reader.range(monday, tuesday):          # a stretch, in the order of storing
            ...

`reader.positions` says where it is; kept somewhere and given as `start=` it goes on from there.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from orbitmq.client.errors import BadRequest, Closed
from orbitmq.client.lane import Lane, Reading
from orbitmq.client.message import Message
from orbitmq.client.paging import PAGE_BYTES, Filter
from orbitmq.client.positions import Position, QueueName, chosen_queues, resolve
from orbitmq.client.reader import Gap, offsets_at
from orbitmq.client.routes import TopicRoute
from orbitmq.client.times import Duration, seconds
from orbitmq.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    from orbitmq.client.client import Client

log = logging.getLogger("orbitmq.reader")

DEFAULT_MESSAGES: Final = 1000
DEFAULT_WAIT_S: Final = 1.0
SMALLEST_PAGE_BYTES: Final = 64 * 1024
BUFFER_BYTES: Final = 64 * 1024 * 1024


class Reader:
    """Use it as an async context manager. One task at a time may read."""

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        start: Position = "earliest",
        tags: str = "*",
        sql: str | None = None,
        queues: Sequence[QueueName] | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        on_gap: Callable[[Gap], None] | None = None,
    ) -> None:
        """`start` may name offsets for some queues only: the others are read from their beginning, so that positions
        kept from a time before the topic grew miss nothing; `queues` leaves queues out. `tags` is `A || B`, `sql` a
        condition on properties, where the broker allows it. `on_gap` hears of messages that were deleted before they
        could be read; without it they are logged.
        """
        if sql is not None and tags != "*":
            raise BadRequest("tags= and sql= are given", hint="choose one; SQL can ask for TAGS as well")
        if not tags or not isinstance(tags, str):
            raise BadRequest(f"tags={tags!r} names no tag", hint='use "A || B", or leave it out for all')
        self.topic = topic
        self._client = client
        self._start: Position = start
        self._wanted_queues = queues
        self._filter = Filter(sql, is_sql=True) if sql is not None else Filter(tags)
        self._buffer_bytes = buffer_bytes
        self._on_gap = on_gap or _log_gap
        self._lanes: dict[MessageQueue, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._current: deque[Message] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._state = "not opened"

    def __repr__(self) -> str:
        return f"<Reader of {self.topic}, {self._state}>"

    # --- life -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Finds the queues and the first offsets; an unknown topic or a bad position is told here."""
        if self._state != "not opened":
            raise BadRequest(f"the reader of '{self.topic}' is {self._state}", hint="make another reader")
        self._client.start()
        route = await self._client.cluster.route(self.topic)
        queues = chosen_queues(route, self._wanted_queues)
        offsets = await resolve(self._client.cluster, route, self._start, queues, "start")
        unnamed = [queue for queue in queues if queue not in offsets]
        if unnamed:
            offsets |= await offsets_at(self._client.cluster, route, "first", unnamed)
        self._state = "open"
        self._client.adopt(self)
        self._follow(route, offsets)
        if self._wanted_queues is None:
            self._unwatch = self._client.on_route_change(self.topic, self._route_changed)

    async def aclose(self) -> None:
        """Stops reading ahead. Closing twice does no harm."""
        self._state = "closed"
        self._client.release(self)
        if self._unwatch is not None:
            self._unwatch()
        await self._stop_lanes()
        self._news.set()

    def _follow(self, route: TopicRoute, offsets: dict[MessageQueue, int]) -> None:
        share = self._buffer_bytes // (2 * (len(offsets) + len(self._lanes)))
        page_bytes = min(PAGE_BYTES, max(SMALLEST_PAGE_BYTES, share))
        for queue, offset in offsets.items():
            lane = Lane(self._reading(route, page_bytes, self._news.set), queue, offset)
            self._lanes[queue] = lane
            self._tasks.append(self._client.scope.spawn(lane.run(), name=f"read-{self.topic}"))

    def _reading(self, route: TopicRoute, page_bytes: int, wake: Callable[[], None]) -> Reading:
        return Reading(self._client.cluster, route, self._filter, page_bytes, self._on_gap, wake)

    async def _stop_lanes(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lanes = {}
        self._ready.clear()
        self._current = None

    def _route_changed(self, route: TopicRoute | None) -> None:
        """A topic that grows is read whole: what a new queue holds was sent after the reader began."""
        if route is not None and self._state == "open":
            added = {queue: 0 for queue in route.read_queues() if queue not in self._lanes}
            if added and self._lanes:
                self._follow(route, added)

    # --- reading ----------------------------------------------------------------------------------------------

    async def read(
        self, *, max_messages: int = DEFAULT_MESSAGES, max_wait: Duration = DEFAULT_WAIT_S
    ) -> list[Message]:
        """What is there, as soon as something is: at most so many messages, none when the wait was in vain."""
        if max_messages < 1:
            raise BadRequest(f"max_messages={max_messages}", hint="ask for at least one message")
        taken: list[Message] = []
        if self._current:
            while self._current and len(taken) < max_messages:
                taken.append(self._current.popleft())
        else:
            # Between two pages the lanes get a turn, or a reader that always finds a page would starve them.
            await asyncio.sleep(0)
        while len(taken) < max_messages and (lane := self._next_ready()) is not None:
            more = lane.take(max_messages - len(taken))
            taken = taken + more if taken else more
        if taken:
            return taken
        try:
            async with asyncio.timeout(seconds(max_wait, "max_wait", zero=True)):
                lane = await self._wait_ready()
        except TimeoutError:
            return []
        return lane.take(max_messages)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message, as soon as there is one: the iteration has no end of its own."""
        current = self._current
        if current:
            return current.popleft()
        await asyncio.sleep(0)
        lane = self._next_ready() or await self._wait_ready()
        self._current = current = deque(lane.take(1 << 30))
        return current.popleft()

    async def _wait_ready(self) -> Lane:
        while True:
            self._news.clear()
            if (lane := self._next_ready()) is not None:
                return lane
            self._check()
            await self._news.wait()

    def _next_ready(self) -> Lane | None:
        """The queues take turns, a page each."""
        if not self._ready:
            self._ready.extend(lane for lane in self._lanes.values() if lane.ready)
        while self._ready:
            if (lane := self._ready.popleft()).ready:
                return lane
        return None

    def _check(self) -> None:
        if self._state != "open":
            raise Closed(
                f"the reader of '{self.topic}' is {self._state}",
                hint="use it inside `async with mq.reader(...) as reader`",
            )
        for lane in self._lanes.values():
            if lane.error is not None:
                raise lane.error

    # --- places -----------------------------------------------------------------------------------------------

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The next offset of each queue: what was handed out lies before it."""
        found = {queue: lane.position for queue, lane in self._lanes.items()}
        for message in reversed(self._current or ()):
            found[message.queue] = message.queue_offset
        return found

    async def ends(self) -> dict[MessageQueue, int]:
        """The offset that the next message of each queue will get."""
        self._check()
        route = await self._client.cluster.route(self.topic)
        return await offsets_at(self._client.cluster, route, "last", list(self._lanes))

    async def seek(self, to: Position) -> None:
        """Goes on elsewhere. Offsets given for some queues only leave the others where they are."""
        self._check()
        before = self.positions
        route = await self._client.cluster.route(self.topic)
        moved = await resolve(self._client.cluster, route, to, before, "to")
        await self._stop_lanes()
        self._follow(route, {**before, **moved})

    async def range(self, start: Position, end: Position) -> AsyncGenerator[Message, None]:
        """The messages from `start` up to (not including) `end`, merged by the time they were stored.

        The reader's own place does not move. What arrives after the call is not part of the range.
        """
        self._client.check_open()
        self._client.start()
        cluster = self._client.cluster
        route = await cluster.route(self.topic)
        queues = chosen_queues(route, self._wanted_queues)
        first = await resolve(cluster, route, start, queues, "start")
        last = await resolve(cluster, route, end, queues, "end")
        ends = await offsets_at(cluster, route, "last", queues)
        news = asyncio.Event()
        share = self._buffer_bytes // (2 * len(queues))
        reading = self._reading(route, min(PAGE_BYTES, max(SMALLEST_PAGE_BYTES, share)), news.set)
        lanes = [
            Lane(reading, queue, first[queue], min(last[queue], ends[queue]))
            for queue in queues
            if queue in first and queue in last
        ]
        tasks = [self._client.scope.spawn(lane.run(), name=f"range-{self.topic}") for lane in lanes]
        try:
            async for message in _merged(lanes, news):
                yield message
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _merged(lanes: list[Lane], news: asyncio.Event) -> AsyncGenerator[Message, None]:
    """A queue that is read slowly holds the others up: its next message may be older than theirs."""
    heap: list[tuple[int, int]] = []
    for index, lane in enumerate(lanes):
        if await _has_more(lane, news):
            heap.append((lane.peek().store_ms, index))
    heapq.heapify(heap)
    while heap:
        index = heap[0][1]
        lane = lanes[index]
        yield lane.take(1)[0]
        if await _has_more(lane, news):
            heapq.heapreplace(heap, (lane.peek().store_ms, index))
        else:
            heapq.heappop(heap)


async def _has_more(lane: Lane, news: asyncio.Event) -> bool:
    while not lane.ready:
        if lane.error is not None:
            raise lane.error
        if lane.at_end:
            return False
        news.clear()
        await news.wait()
    return True


def _log_gap(gap: Gap) -> None:
    log.warning(
        "messages %d to %d of topic '%s', queue %d at %s are gone: reading goes on behind them",
        gap.asked_offset,
        gap.next_offset - 1,
        gap.queue.topic,
        gap.queue.queue_id,
        gap.queue.broker_name,
    )
