"""One queue being read ahead: while a page is looked at, the next one is already on its way.

A lane pulls by itself until it has enough pages, and again when one is taken. A broker that goes away is asked again
until it is back; what waiting cannot mend is kept, and told when the pages before it are used up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.message import Message
from orbitmq.client.paging import Filter, Page, pull_page
from orbitmq.client.reader import Gap, read_addr
from orbitmq.client.routes import TopicRoute
from orbitmq.wire.fastjson import MessageQueue

log = logging.getLogger("orbitmq.reader")

PAGES_AHEAD: Final = 2
HOLD_S: Final = 15.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 1.0


@dataclass(slots=True)
class Reading:
    """What all lanes of a reader have in common."""

    cluster: Cluster
    route: TopicRoute
    wanted: Filter
    page_bytes: int
    on_gap: Callable[[Gap], None]
    wake: Callable[[], None]
    """Called when a lane has something for its reader: a page, an error, or its end."""


class Lane:
    """`run` is the pulling, owned by whoever made the lane; the rest is for the reader."""

    def __init__(self, reading: Reading, queue: MessageQueue, offset: int, end: int | None = None) -> None:
        """With an `end` the lane stops before that offset, without one it waits for new messages."""
        self.queue = queue
        self.offset = offset
        """Where the next pull begins."""
        self.end = end
        self.error: OrbitMQError | None = None
        self._reading = reading
        self._route = reading.route
        self._finished = False
        self._pages: deque[list[Message]] = deque()
        self._at = 0
        self._room = asyncio.Event()

    # --- for the reader ---------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return bool(self._pages)

    @property
    def at_end(self) -> bool:
        """Everything up to the end was taken."""
        return self._finished and not self._pages

    @property
    def position(self) -> int:
        """The offset to go on from: everything before was taken."""
        return self.peek().queue_offset if self._pages else self.offset

    def peek(self) -> Message:
        """The next message; only when `ready`."""
        return self._pages[0][self._at]

    def take(self, most: int) -> list[Message]:
        """Up to so many messages of the first page; only when `ready`."""
        messages = self._pages[0]
        whole = self._at == 0 and len(messages) <= most
        taken = messages if whole else messages[self._at : self._at + most]
        self._at += len(taken)
        if self._at == len(messages):
            self._pages.popleft()
            self._at = 0
            self._room.set()
        return taken

    # --- pulling ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        pause_s = 0.0
        while self.end is None or self.offset < self.end:
            try:
                if pause_s:
                    await self._look_again()
                page = await self._pull()
            except OrbitMQError as error:
                if not error.retryable:
                    self.error = error
                    self._reading.wake()
                    return
                if not pause_s:
                    log.warning("%s is not read for the moment: %s", self._name, error)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S) or FIRST_PAUSE_S
                await asyncio.sleep(pause_s)
                continue
            pause_s = 0.0
            if page.moved:
                self._reading.on_gap(Gap(self.queue, self.offset, page.next_offset))
                # Without this pause an end that moves back and forth would be asked for in a tight circle.
                await asyncio.sleep(FIRST_PAUSE_S)
            elif self.end is not None and page.next_offset <= self.offset:
                break  # an older end than expected: the queue was emptied meanwhile
            self.offset = page.next_offset
            self._keep(page)
            while len(self._pages) >= PAGES_AHEAD:
                self._room.clear()
                await self._room.wait()
        self._finished = True
        self._reading.wake()

    async def _look_again(self) -> None:
        """A broker that comes back may have another address. Until then the name server may not know it at all."""
        route = await self._reading.cluster.renewed_route(self.queue.topic)
        if route is not None and self.queue.broker_name in route.brokers:
            self._route = route

    async def _pull(self) -> Page:
        reading = self._reading
        return await pull_page(
            reading.cluster,
            read_addr(self._route, self.queue),
            self.queue,
            self.offset,
            reading.wanted,
            page_bytes=reading.page_bytes,
            hold_s=HOLD_S if self.end is None else 0.0,
        )

    def _keep(self, page: Page) -> None:
        messages = page.messages
        if self.end is not None and messages and messages[-1].queue_offset >= self.end:
            messages = [message for message in messages if message.queue_offset < self.end]
        if messages:
            self._pages.append(messages)
            self._reading.wake()

    @property
    def _name(self) -> str:
        return f"queue {self.queue.queue_id} of topic '{self.queue.topic}' at {self.queue.broker_name}"
