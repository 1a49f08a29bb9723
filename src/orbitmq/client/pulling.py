"""Keeps one queue flowing: pull, cut the page, hand it to the inbox, pull again.

A pull that finds nothing is held by the broker until a message comes. Whatever goes wrong is tried again; a queue
only stops being pulled when its holding is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from orbitmq.client.cluster import Cluster
from orbitmq.client.core.pages import Page, cut
from orbitmq.client.errors import NotFound, OrbitMQError, Unreachable
from orbitmq.client.holding import Holding, Line, Tally
from orbitmq.client.message import Message
from orbitmq.client.routes import MASTER_ID, BrokerData
from orbitmq.wire.bodies import SubscriptionData
from orbitmq.wire.codes import PullFlag, RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.subscription import matches_tag

log = logging.getLogger("orbitmq.consumer")

SUSPEND_MS: Final = 15_000
# A slave that has lost its master holds a pull and hears of nothing: it is asked again soon, and so is the master.
SUSPEND_AT_SLAVE_MS: Final = 2_000
# Brokers look at held pulls every 5 s, so an answer may be that much later than asked for.
TIMEOUT_S: Final = 30.0
RETRY_AFTER_S: Final = 1.0
# Another master is looked for often at first, and less often when none has come for some seconds.
LOOK_AGAIN_S: Final = 0.1
QUICK_LOOKS: Final = 50
BUSY_RETRY_AFTER_S: Final = 0.02
MAX_MESSAGES: Final = 4096
PAGE_BYTES: Final = 1024 * 1024

_ACCEPTED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
# The broker does not know this member, or an older subscription of it: a heartbeat heals both.
_UNKNOWN_MEMBER: Final = (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST)

Moved = Callable[[Holding, int], None]
Introduce = Callable[[str], Awaitable[None]]


class Puller:
    """Pulls for one holding until it is dropped. `run` is a loop that the consumer's scope owns."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        holding: Holding,
        subscription: SubscriptionData,
        line: Line,
        tally: Tally,
        *,
        moved: Moved,
        introduce: Introduce,
        away: Callable[[], None] = lambda: None,
        max_messages: int = MAX_MESSAGES,
        page_bytes: int = PAGE_BYTES,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._holding = holding
        self._subscription = subscription
        self._line = line
        self._tally = tally
        self._moved = moved
        self._introduce = introduce
        self._away = away
        self._max_messages = max_messages
        self._page_bytes = page_bytes
        self._retry_after_s = retry_after_s
        self._broker_id = MASTER_ID
        self._asked = ""
        self._failures = 0
        self._troubled = False

    async def run(self) -> None:
        holding = self._holding
        while not holding.dropped:
            room = await holding.wait_for_room()
            try:
                if await self._pull(min(room, self._max_messages)):
                    return
                if self._troubled:
                    self._troubled = False
                    log.info("%r is pulled again", holding)
            except OrbitMQError as error:
                await self._recover(error)

    async def _pull(self, count: int) -> bool:
        """One pull; True when the queue has to be taken anew from another offset."""
        holding = self._holding
        offset = holding.unfinished.next_offset
        addr, is_master = await self._member()
        self._asked = addr
        hold_ms = SUSPEND_MS if is_master else SUSPEND_AT_SLAVE_MS
        try:
            response = await self._cluster.request(
                addr,
                request(RequestCode.PULL_MESSAGE, self._header(offset, count, hold_ms)),
                accept=_ACCEPTED,
                timeout_s=TIMEOUT_S,
            )
        except OrbitMQError as error:
            if error.code in _UNKNOWN_MEMBER:
                await self._introduce(addr)
            raise
        if holding.dropped:
            return True
        holding.last_pull_ms = self._cluster.clock()
        self._broker_id = int(response.ext.get("suggestWhichBrokerId") or MASTER_ID)
        next_offset = int(response.ext["nextBeginOffset"])
        if response.code != ResponseCode.PULL_RETRY_IMMEDIATELY or next_offset > offset:
            # A slave that only points to its master has not helped: the two must not be asked in a tight circle.
            self._failures = 0
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            log.warning(
                "offset %d of %r is outside of what the broker holds (%s to %s); going on at %d",
                offset,
                holding,
                response.ext.get("minOffset"),
                response.ext.get("maxOffset"),
                next_offset,
            )
            self._moved(holding, next_offset)
            return True
        if response.code == ResponseCode.SUCCESS and response.body:
            self._take(response, next_offset)
        elif next_offset > offset:
            holding.unfinished.add((), (), next_offset)
        elif response.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            await self._sent_away()
        return False

    def _take(self, response: Command, next_offset: int) -> None:
        holding, buf = self._holding, response.body
        page = cut(buf)
        self._tally.pulled += len(page.starts)
        self._tally.pulled_bytes += len(buf)
        if self._subscription.tags_set:
            page = self._wanted(page, buf)
        try:
            holding.unfinished.add(page.offsets, page.sizes, next_offset)
        except ValueError as error:
            raise OrbitMQError(
                f"{holding.queue.broker_name} answered a pull with other offsets than asked for: {error}",
                hint="check the broker; the pull is repeated",
                retryable=True,
            ) from error
        if page.starts:
            self._line.put(holding, buf, page.starts)

    def _wanted(self, page: Page, buf: bytes) -> Page:
        """Brokers compare hashes of tags, and two tags can share one."""
        broker = self._holding.queue.broker_name
        keep = [
            index
            for index, start in enumerate(page.starts)
            if matches_tag(self._subscription, Message(buf, start, broker).tag)
        ]
        if len(keep) == len(page.starts):
            return page
        return Page(
            [page.starts[index] for index in keep],
            [page.offsets[index] for index in keep],
            [page.sizes[index] for index in keep],
        )

    def _header(self, offset: int, count: int, hold_ms: int) -> dict[str, str]:
        queue, subscription = self._holding.queue, self._subscription
        return {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": str(PullFlag.SUSPEND),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(hold_ms),
            "subVersion": str(subscription.sub_version),
            "expressionType": subscription.expression_type,
            "bname": queue.broker_name,
            "pageBytes": str(self._page_bytes),
        }

    async def _addr(self) -> str:
        return (await self._member())[0]

    async def _member(self) -> tuple[str, bool]:
        """The master, or whom the broker suggested; another member of its set when that one is not there.

        The address, and whether it is the master's.
        """
        queue = self._holding.queue
        route = await self._cluster.find_route(queue.topic)
        broker = route.brokers.get(queue.broker_name) if route else None
        addr = choose_addr(broker, self._broker_id) if broker else None
        if addr is None:
            raise NotFound(
                f"broker '{queue.broker_name}' of topic '{queue.topic}' has no address",
                hint="wait until it registers again",
            )
        return addr, broker is not None and addr == broker.master

    async def _recover(self, error: OrbitMQError) -> None:
        if error.code == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(BUSY_RETRY_AFTER_S)
            return
        if not self._troubled:
            self._troubled = True
            log.warning("%r is not pulled at the moment: %s", self._holding, error)
        self._failures += 1
        gone = isinstance(error, Unreachable)
        if gone:
            self._broker_id += 1  # a lost master may have slaves
            self._away()
        elif error.code in _UNKNOWN_MEMBER and self._failures == 1:
            return  # it has been told meanwhile
        else:
            self._broker_id = MASTER_ID
        if not gone and error.code != ResponseCode.SERVICE_NOT_AVAILABLE and not isinstance(error, NotFound):
            await asyncio.sleep(self._retry_after_s)
            return
        # A broker that came back may have another address, and another broker may have become the master.
        elsewhere = await self._look_again()
        if not elsewhere or self._failures > 1:
            await self._pause()

    async def _sent_away(self) -> None:
        """Who was asked is not the master and says so. If the route calls it one, the route is old."""
        if await self._addr() == self._asked:
            self._failures += 1
            if not await self._look_again():
                await self._pause()

    async def _pause(self) -> None:
        quick = self._failures <= QUICK_LOOKS
        await asyncio.sleep(min(LOOK_AGAIN_S, self._retry_after_s) if quick else self._retry_after_s)

    async def _look_again(self) -> bool:
        """Renews the route; whether it names somebody else to ask than who has just failed."""
        try:
            await self._cluster.renewed_route(self._holding.queue.topic)
            return await self._addr() != self._asked
        except OrbitMQError as error:
            log.debug("no fresh route: %s", error)
            return False


def choose_addr(broker: BrokerData, wanted_id: int) -> str | None:
    """The member with this id, or the next one, or any."""
    if wanted_id in broker.addrs:
        return broker.addrs[wanted_id]
    later = [broker_id for broker_id in broker.addrs if broker_id > wanted_id]
    return broker.addrs[min(later)] if later else broker.readable_addr
