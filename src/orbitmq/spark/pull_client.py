"""Reads a stretch of a queue in pages, several pulls under way at a time, through whatever happens to the broker.

A pull's answer says where it ended, but waiting for that would cost a round trip per page. So the stretch is cut into
windows of as many messages as fit into a page, and the pulls of the next windows go out before the first is
answered; a window that an answer does not fill is finished by another pull. OrbitMQ brokers honour `pageBytes`;
others ignore it and send what they are configured to (32 messages), which the first two answers show.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from orbitmq.client.errors import from_response
from orbitmq.spark.brokers import Brokers
from orbitmq.spark.connection import Answer
from orbitmq.spark.errors import BrokerLost, DataLost, SourceError, explained
from orbitmq.spark.records import Heads, record_starts
from orbitmq.spark.unwrap import INNER_BATCH_FLAGS
from orbitmq.wire.codes import PullFlag, RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import QUEUE_OFFSET_AT, SYS_FLAG_AT
from orbitmq.wire.topics import TOOLS_GROUP

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from orbitmq.spark.page_parts import PageParts

log = logging.getLogger("orbitmq.spark")

# What an OrbitMQ broker answers at most: each page costs its reader something beside its messages.
MOST_PER_PULL: Final = 8192
# Brokers look at so many units for one filtered pull, so a larger window would always need a second one.
FILTERED_WINDOW: Final = 800
SMALLEST_WINDOW: Final = 32
PAGE_PARTS: Final = "pageParts"
MOST_IN_FLIGHT: Final = 16
PROBES: Final = 2
# Smaller pages, of brokers that send no others, are put together before they are decoded.
LARGE_PAGE_BYTES: Final = 1 << 20
FIRST_PAUSE_S: Final = 0.1
MOST_PAUSE_S: Final = 2.0


class QueueSlice(NamedTuple):
    """Messages `start` up to before `end` of one queue."""

    queue: MessageQueue
    start: int
    end: int


class Page(NamedTuple):
    """Records as they were received, and those of them that belong to the slice."""

    data: npt.NDArray[np.uint8]
    heads: Heads
    window: tuple[int, int] | None
    """Queue offsets to keep, where that can only be told after decoding."""


Quick = Callable[["npt.NDArray[np.uint8]", int, int], "pa.RecordBatch | None"]


@dataclass(frozen=True)
class PullSettings:
    group: str = TOOLS_GROUP
    tags: str = "*"
    page_bytes: int = 2 << 20
    retry_timeout_s: float = 30.0
    fail_on_data_loss: bool = True

    @property
    def filtered(self) -> bool:
        return self.tags.strip() not in ("", "*")


class PageSize:
    """How many messages to ask for at once, learnt from what came: one for all slices of a task."""

    def __init__(self, settings: PullSettings) -> None:
        self._page_bytes = settings.page_bytes
        self._counts: list[int] = []
        self._message_bytes = 0.0
        self._most = FILTERED_WINDOW if settings.filtered else MOST_PER_PULL
        self.window = self._most
        # A filter's answers tell little about sizes; unfiltered, the first ones are waited for.
        self.in_flight = 4 if settings.filtered else 1

    def learn(self, asked: int, covered: int, size: int) -> None:
        """An answer to a pull for `asked` messages went `covered` messages on and has `size` bytes."""
        if covered <= 0 or not size:
            return
        mean = size / covered
        self._message_bytes = mean if not self._message_bytes else 0.8 * self._message_bytes + 0.2 * mean
        if len(self._counts) < PROBES:
            if covered < asked:
                self._counts.append(covered)
            else:
                self._counts = [MOST_PER_PULL] * PROBES
            if len(self._counts) < PROBES:
                return
        most = self._most
        if (
            self._counts[0] == self._counts[1]
        ):  # twice the same number: a limit of the broker, not the page's size
            most = min(most, max(self._counts[0], SMALLEST_WINDOW))
        fitting = int(0.95 * self._page_bytes / self._message_bytes)
        self.window = max(1, min(most, fitting))
        expected = self.window * self._message_bytes
        self.in_flight = max(2, min(MOST_IN_FLIGHT, int(2 * self._page_bytes / expected)))


class SliceReader:
    """Iterate for the pages of one slice, in order.

    `quick` is shown each large page of consecutive messages first, with its first offset and the one behind its last;
    what it makes of the page is handed out instead. With `parts`, brokers may send only what its columns are made of.
    """

    def __init__(
        self,
        brokers: Brokers,
        piece: QueueSlice,
        settings: PullSettings,
        sizes: PageSize | None = None,
        *,
        quick: Quick | None = None,
        parts: PageParts | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._brokers = brokers
        self._queue = piece.queue
        self._settings = settings
        self._sizes = sizes or PageSize(settings)
        self._quick = None if settings.filtered else quick
        self._parts = None if settings.filtered else parts
        self._clock = clock
        self._sleep = sleep
        self._end = piece.end
        self._position = piece.start
        """Everything before it was handed out."""
        self._issued = piece.start
        self._in_flight: deque[tuple[int, int, int]] = deque()
        self._addr: str | None = None
        self._avoided: str | None = None

    def __iter__(self) -> Iterator[Page | pa.RecordBatch]:
        failing_since: float | None = None
        pause = FIRST_PAUSE_S
        while self._position < self._end:
            before = self._position
            try:
                page = self._next_page()
            except (BrokerLost, SourceError) as error:
                if not error.retryable:
                    raise
                now = self._clock()
                failing_since = failing_since if failing_since is not None else now
                self._give_up_or_wait(error, now - failing_since, pause)
                pause = min(2 * pause, MOST_PAUSE_S)
                continue
            if self._position > before:
                failing_since, pause = None, FIRST_PAUSE_S
            if page is not None:
                yield page

    # --- asking -----------------------------------------------------------------------------------------------

    def _next_page(self) -> Page | pa.RecordBatch | None:
        addr = self._address()
        connection = self._brokers.connection(addr)
        self._fill(addr)
        opaque, start, stop = self._in_flight.popleft()
        answer = connection.receive(opaque)
        return self._judge(answer, start, stop)

    def _fill(self, addr: str) -> None:
        commands: list[Command] = []
        windows: list[tuple[int, int]] = []
        while self._issued < self._end and len(self._in_flight) + len(windows) < self._sizes.in_flight:
            stop = min(self._issued + self._sizes.window, self._end)
            windows.append((self._issued, stop))
            commands.append(self._command(self._issued, stop))
            self._issued = stop
        if commands:
            opaques = self._brokers.connection(addr).send(*commands)
            self._in_flight.extend((opaque, *window) for opaque, window in zip(opaques, windows, strict=True))

    def _command(self, start: int, stop: int) -> Command:
        settings = self._settings
        ext = {
            "consumerGroup": settings.group,
            "topic": self._queue.topic,
            "queueId": str(self._queue.queue_id),
            "queueOffset": str(start),
            "maxMsgNums": str(stop - start),
            "sysFlag": str(PullFlag.SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": settings.tags or "*",
            "subVersion": "0",
            "expressionType": "TAG",
            "bname": self._queue.broker_name,
            "pageBytes": str(settings.page_bytes),
        }
        if self._parts is not None:
            ext[PAGE_PARTS] = str(self._parts.wanted)
        return request(RequestCode.PULL_MESSAGE, ext)

    def _address(self) -> str:
        if self._addr is None:
            addrs = list(self._brokers.members(self._queue).values())
            others = [addr for addr in addrs if addr != self._avoided]
            self._addr = others[0] if others else self._brokers.readable(self._queue)
        return self._addr

    def _is_slave(self) -> bool:
        return self._addr != self._brokers.master(self._queue)

    def _restart_at(self, offset: int) -> None:
        """Go on from here; what is under way is no longer wanted."""
        if self._addr is not None and self._in_flight:
            connection = self._brokers.connection(self._addr)
            for opaque, _, _ in self._in_flight:
                connection.forget(opaque)
        self._in_flight.clear()
        self._position = self._issued = offset

    def _give_up_or_wait(self, error: SourceError, failing_s: float, pause: float) -> None:
        queue = self._queue
        if failing_s >= self._settings.retry_timeout_s:
            raise BrokerLost(
                f"topic {queue.topic!r} on {queue.broker_name} queue {queue.queue_id} cannot be read on from "
                f"offset {self._position} (of {self._end}) for {failing_s:.0f} s: {error}",
                hint="start the broker again, or raise retryTimeoutMs",
            ) from error
        log.warning("%s queue %d: %s; trying again", queue.topic, queue.queue_id, error)
        self._in_flight.clear()
        self._issued = self._position
        if self._addr is not None:
            self._brokers.drop(self._addr)
            self._avoided, self._addr = self._addr, None
        self._sleep(pause)
        try:
            self._brokers.find_route(queue.topic, refresh=True)
        except SourceError as again:
            log.warning("%s: %s", queue.topic, again)  # the old route is still worth a try

    # --- judging ----------------------------------------------------------------------------------------------

    def _judge(self, answer: Answer, start: int, stop: int) -> Page | pa.RecordBatch | None:
        code = answer.code
        if code not in _PULL_CODES:
            assert self._addr is not None
            raise explained(from_response(RequestCode.PULL_MESSAGE, code, answer.remark, self._addr))
        following = int(answer.ext["nextBeginOffset"])
        low, high = int(answer.ext["minOffset"]), int(answer.ext["maxOffset"])
        if code == ResponseCode.SUCCESS and following > start:
            cut = answer.ext.get(PAGE_PARTS)
            page: Page | pa.RecordBatch | None
            if cut is None:
                self._sizes.learn(stop - start, following - start, len(answer.body))
                page = self._taken(answer.body, start, min(following, stop))
            else:
                size, page = self._cut(answer.body, cut, start, following)
                self._sizes.learn(stop - start, following - start, size)
            self._advance(min(following, stop), stop)
            return page
        if not low <= start < high and self._is_slave():
            # Only a master can tell that messages are gone; a slave may simply not have them yet.
            raise BrokerLost(f"the slave {self._addr} has messages {low} to {high - 1} only, not {start}")
        if start < low:
            self._missing(
                start, min(low, self._end), f"the queue begins at {low} now: older ones were cleaned away"
            )
            self._restart_at(min(low, self._end))
        elif start >= high:
            self._missing(
                start, self._end, f"the queue ends at {high} now: the broker lost them, or has a new topic"
            )
            self._restart_at(self._end)
        elif following > start:
            if code == ResponseCode.PULL_NOT_FOUND or not self._settings.filtered:
                why = f"the broker cannot read them ({answer.remark or 'no reason given'})"
                self._missing(start, min(following, stop), why)
            self._advance(min(following, stop), stop)
        else:
            raise BrokerLost(f"{self._addr} does not get past offset {start}: {answer.remark}")
        return None

    def _advance(self, reached: int, stop: int) -> None:
        self._position = reached
        if not self._in_flight:
            self._issued = reached  # cut what is left anew, with what was just learnt
        elif reached < stop and self._addr is not None:
            opaque = self._brokers.connection(self._addr).send(self._command(reached, stop))[0]
            self._in_flight.appendleft((opaque, reached, stop))

    def _taken(self, data: npt.NDArray[np.uint8], start: int, stop: int) -> Page | pa.RecordBatch | None:
        if self._quick is not None and len(data) >= LARGE_PAGE_BYTES:
            made = self._quick(data, start, stop)
            if made is not None:
                return made
        heads = Heads(data, record_starts(data))
        offsets = heads.field(QUEUE_OFFSET_AT, ">i8")
        if len(offsets) == stop - start and (offsets == np.arange(start, stop)).all():
            return Page(data, heads, None)
        flags = heads.field(SYS_FLAG_AT, ">i4")
        if (flags & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS).any():
            return Page(data, heads, (start, stop))
        inside = (offsets >= start) & (offsets < stop)
        if not self._settings.filtered:
            edges = np.concatenate(([start - 1], offsets[inside].astype(np.int64), [stop]))
            for gap in np.flatnonzero(np.diff(edges) > 1):
                self._missing(int(edges[gap]) + 1, int(edges[gap + 1]), "the broker left them out as damaged")
        return Page(data, heads.subset(inside), None) if inside.any() else None

    def _cut(
        self, data: npt.NDArray[np.uint8], cut: str, start: int, following: int
    ) -> tuple[int, pa.RecordBatch]:
        """Bytes of the records, and their columns, from a page that the broker has cut to the wanted parts."""
        assert self._addr is not None
        if self._parts is None or cut != str(self._parts.wanted):
            raise BrokerLost(f"{self._addr} sent parts of messages ({cut}) that were not asked for")
        try:
            return self._parts.batch(data, start, following)
        except ValueError as error:
            raise BrokerLost(f"{self._addr} sent a page that is not what it says: {error}") from error

    def _missing(self, start: int, end: int, why: str) -> None:
        queue = self._queue
        lost = DataLost(queue.topic, queue.broker_name, queue.queue_id, start, end, why)
        if self._settings.fail_on_data_loss:
            raise lost
        log.warning("going on without: %s", lost)


_PULL_CODES: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
