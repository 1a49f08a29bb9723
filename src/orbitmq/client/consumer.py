"""A member of a consumer group: joins, owns queues, gives their messages to whoever iterates or to a handler.

    async with mq.consumer("billing", "orders", tags="paid || refund") as inbox:
        async for msg in inbox:
            async with msg:
                await handle(msg.body)

Every message is delivered at least once. It is acknowledged by leaving `async with msg` or by `msg.ack()`, and by
nothing else; an exception has it retried with back-off, and after `max_retries` it is a dead letter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from orbitmq.client.answering import Answers
from orbitmq.client.assignments import Rebalance
from orbitmq.client.core.advice import Advice, HandlingTimes
from orbitmq.client.core.allocation import Strategy, strategy_named
from orbitmq.client.core.process_queue import Limits
from orbitmq.client.engine import Engine, Settings
from orbitmq.client.errors import BadRequest, Closed, OrbitMQError, Refused
from orbitmq.client.handling import Handler, Handling
from orbitmq.client.holding import Holding, Tally
from orbitmq.client.inbox import Inbox
from orbitmq.client.message import Message
from orbitmq.client.offset_store import FIRST, Start, start_place
from orbitmq.client.ordered import OrderedInbox
from orbitmq.client.pulling import PAGE_BYTES
from orbitmq.client.rates import Rates
from orbitmq.client.rebalancing import EVERY_S
from orbitmq.client.subscriptions import (
    BROADCASTING,
    CLUSTERING,
    SubscriptionMismatch,
    Topics,
    check_filters,
    check_group,
    subscriptions_of,
)
from orbitmq.client.times import Duration, seconds
from orbitmq.client.tracing import Interceptors
from orbitmq.wire.bodies import ConsumerData
from orbitmq.wire.command import Command
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.topics import RETRY_PREFIX

if TYPE_CHECKING:
    from orbitmq.client.client import Client
    from orbitmq.client.dedup import Guard

log = logging.getLogger("orbitmq.consumer")

CONCURRENCY: Final = 16
HANDOVER_S: Final = 10.0
COMMIT_EVERY_S: Final = 5.0
HANDLER_TIMEOUT_S: Final = 15 * 60.0
MISMATCH_MARK: Final = "SUBSCRIPTION_MISMATCH"


class Consumer:
    """See the module for its use; every option is keyword-only.

    tags, sql        which messages: `"A || B"`, or a condition on properties. A mapping of topics names its own.
    ordered          one message of a queue at a time, failures retried in place (`max_retries=None`: for ever)
    broadcast        every member gets everything; progress in a local file, failures are not repeated
    start            where a new group begins: "first", "last", a moment, or "auto" as official clients do
    concurrency      handlers at the same time, for `run`
    dedup            a guard that lets each message have its effect once, for `run`
    limits           when a queue is not pulled any further (messages, bytes, span of offsets)
    allocation       "average", "circle", "consistent-hash" or a strategy; the same in all members
    allow_mixed      join although other members subscribe differently
    handover         how long a queue that moves to another member waits for what is being handled
    """

    def __init__(
        self,
        client: Client,
        group: str,
        topics: Topics,
        *,
        tags: str | None = None,
        sql: str | None = None,
        ordered: bool = False,
        broadcast: bool = False,
        start: Start = "auto",
        concurrency: int = CONCURRENCY,
        max_retries: int | None = None,
        dedup: Guard | None = None,
        limits: Limits | None = None,
        allocation: str | Strategy = "average",
        allow_mixed: bool = False,
        handover: Duration = HANDOVER_S,
        handler_timeout: Duration | None = HANDLER_TIMEOUT_S,
        commit_every: Duration = COMMIT_EVERY_S,
        rebalance_every: Duration = EVERY_S,
        page_bytes: int = PAGE_BYTES,
        offsets_dir: str | Path | None = None,
    ) -> None:
        if concurrency < 1:
            raise BadRequest(f"concurrency={concurrency} handles nothing", hint="give 1 or more")
        if ordered and broadcast:
            raise BadRequest(
                "ordered=True and broadcast=True exclude each other",
                hint="order needs queue locks, which broadcasting members do not take",
            )
        self.client = client
        self.group = group
        self.ordered = ordered
        self.broadcast = broadcast
        self.concurrency = concurrency
        self.subscriptions = subscriptions_of(
            group, topics, tags=tags, sql=sql, broadcast=broadcast, now_ms=client.clock()
        )
        self.tally = Tally()
        self.times = HandlingTimes()
        self.rates = Rates()
        self.started_ms = 0
        self.try_handler: Callable[[Message], Awaitable[None]] | None = None
        self.closed = False
        self._settings = Settings(
            group=group,
            ordered=ordered,
            broadcast=broadcast,
            place=start_place(start),
            concurrency=concurrency,
            max_retries=max_retries,
            limits=limits or Limits(),
            strategy=strategy_named(allocation),
            handover_s=seconds(handover, "handover", zero=True),
            commit_every_s=seconds(commit_every, "commit_every"),
            rebalance_every_s=seconds(rebalance_every, "rebalance_every"),
            page_bytes=page_bytes,
            offsets_dir=None if offsets_dir is None else Path(offsets_dir),
        )
        self._handler_timeout_s = (
            None if handler_timeout is None else seconds(handler_timeout, "handler_timeout")
        )
        self._dedup = dedup
        self._allow_mixed = allow_mixed
        self._engine: Engine | None = None
        self._answers = Answers(self, client.presence)
        self._unwatch: list[Callable[[], None]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._refusal: OrbitMQError | None = None
        self._told: set[str] = set()
        self._closing: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Joins the group. Raises when it cannot work: an unknown topic, a bad filter, members that differ."""
        if self._engine is not None:
            raise BadRequest(
                f"the consumer of group '{self.group}' was started before", hint="make a new one"
            )
        client = self.client
        client.start()
        if self.group in client.presence.consumer_groups:
            raise BadRequest(
                f"client {client.client_id} has a consumer of group '{self.group}' already",
                hint="raise its concurrency, or connect a second client",
            )
        for topic in self._own_topics():
            await client.cluster.publish_route(topic)  # raises when nobody would ever create it
        await check_group(
            client.cluster,
            self.group,
            client.client_id,
            self.subscriptions,
            broadcast=self.broadcast,
            allow_mixed=self._allow_mixed,
        )
        await check_filters(client.cluster, self.group, client.client_id, self.subscriptions)
        if self._dedup is not None:
            await self._dedup.open()
        self._engine = Engine(client, self._settings, self.subscriptions, self.tally, self.times, self.rates)
        self.started_ms = client.clock()
        client.adopt(self, closed_first=True)
        try:
            await self._join(self._engine)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def stop(self) -> None:
        """Ends every iteration after the message it is at; closing is still needed, and waits for handlers."""
        if self._engine is not None:
            self._engine.inbox.close()

    async def aclose(self) -> None:
        """Stops pulling, lets handlers finish, commits, gives the queues back, leaves the group."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close-consumer-{self.group}")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.closed = True
        self.stop()
        for unwatch in self._unwatch:
            unwatch()
        had_handlers = bool(self._running)
        await self._end_handlers()
        if self._engine is not None:
            await self._engine.end(returns_only=not had_handlers)
            self._answers.stop()
            await self.client.presence.remove_consumer(self.group)
            if self._dedup is not None:
                await self._dedup.close()
            await self._engine.scope.aclose()
        self.client.release(self)

    async def _end_handlers(self) -> None:
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=self._settings.handover_s)
        for task in late:
            log.warning(
                "handlers of group '%s' still run after %g s and are cancelled",
                self.group,
                self._settings.handover_s,
            )
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _join(self, engine: Engine) -> None:
        presence = self.client.presence
        self._answers.start()
        presence.add_consumer(self)
        await presence.beat_now()
        if self._refusal is not None:
            raise self._refusal
        for topic in self.subscriptions:
            self._unwatch.append(self.client.on_route_change(topic, lambda _: self.rebalance_soon()))
        await engine.begin()

    def _own_topics(self) -> list[str]:
        return [topic for topic in self.subscriptions if not topic.startswith(RETRY_PREFIX)]

    # --- messages ---------------------------------------------------------------------------------------------

    def __aiter__(self) -> Inbox | OrderedInbox:
        if self._dedup is not None:
            raise BadRequest(
                f"the consumer of group '{self.group}' has dedup= and is iterated over",
                hint="a guard needs a handler to stand around: use run(handler) or App.on",
            )
        return self._line()

    async def __anext__(self) -> Message:
        return await self.__aiter__().__anext__()

    async def run(self, handler: Handler) -> None:
        """Calls the handler for every message, `concurrency` at a time, until the consumer is stopped.

        The handler's annotations say what it gets: the message, its decoded body, or both.
        """
        handling = Handling(
            self._line(),
            handler,
            group=self.group,
            concurrency=self.concurrency,
            times=self.times,
            timeout_s=self._handler_timeout_s,
            guard=self._dedup,
            interceptors=Interceptors(self.client.interceptors),
        )
        self.try_handler = handling.handle
        task = asyncio.create_task(handling.run(), name=f"handle-{self.group}")
        self._running.add(task)
        try:
            await task
        finally:
            self._running.discard(task)

    def _line(self) -> Inbox | OrderedInbox:
        if self._engine is None:
            raise BadRequest(
                f"the consumer of group '{self.group}' is not started",
                hint="use it as `async with client.consumer(...) as inbox`, or await start()",
            )
        return self._engine.inbox

    # --- seeing and steering ----------------------------------------------------------------------------------

    @property
    def holdings(self) -> Mapping[MessageQueue, Holding]:
        """The queues owned now."""
        return self._engine.assignments.holdings if self._engine is not None else {}

    @property
    def queues(self) -> list[MessageQueue]:
        return sorted(queue for queue, holding in self.holdings.items() if not holding.dropped)

    @property
    def members(self) -> list[str]:
        """Client ids of the group, as last heard."""
        return self._engine.rebalancer.members if self._engine is not None else []

    @property
    def rebalances(self) -> list[Rebalance]:
        """The last changes of the owned queues, each with its pause; the newest is last."""
        return list(self._engine.assignments.history) if self._engine is not None else []

    def positions(self) -> dict[MessageQueue, int]:
        """Per queue the offset before which everything is finished."""
        return {queue: holding.unfinished.commit_offset for queue, holding in self.holdings.items()}

    def advice(self) -> Advice | None:
        """How many handlers at once would keep the processor busy, from measured times; None: not known yet."""
        return self.times.advice()

    async def commit(self) -> None:
        """Saves the progress now instead of within `commit_every`."""
        if self._engine is None or self.closed:
            raise Closed(f"the consumer of group '{self.group}' is not running", hint="start it first")
        await self._engine.assignments.commit()

    def reset(self, queue: MessageQueue, offset: int) -> None:
        """Goes on with an owned queue at another offset; messages pulled of it before are forgotten."""
        if self._engine is not None:
            self._engine.reset(queue, offset)

    def rebalance_soon(self) -> None:
        if self._engine is not None and not self.closed:
            self._engine.rebalancer.wake()

    # --- membership, as heartbeats see it ---------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        place = self._settings.place
        from_where = "CONSUME_FROM_TIMESTAMP" if isinstance(place, int) else "CONSUME_FROM_LAST_OFFSET"
        if place == FIRST:
            from_where = "CONSUME_FROM_FIRST_OFFSET"
        return ConsumerData(
            group_name=self.group,
            consume_from_where=from_where,
            message_model=BROADCASTING if self.broadcast else CLUSTERING,
            subscription_data_set=list(self.subscriptions.values()),
        )

    def heartbeat_answer(self, addr: str, response: Command) -> None:
        remark = " ".join((response.remark or "").split())
        if response.code:
            kind = SubscriptionMismatch if MISMATCH_MARK in remark else Refused
            self._refusal = kind(
                f"{addr} refuses group '{self.group}': {remark}",
                hint="give all members of the group the same subscriptions, or use another group",
                code=response.code,
            )
        elif MISMATCH_MARK not in remark:
            return
        if remark not in self._told:
            self._told.add(remark)
            log.warning("%s about group '%s': %s", addr, self.group, remark)
