"""The moving parts of a running consumer: inbox, owned queues, pulls, and the loops that keep them going."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orbitmq.client.assignments import Assignments, Rules
from orbitmq.client.broadcast import LocalOffsets
from orbitmq.client.core import back_off
from orbitmq.client.core.advice import HandlingTimes
from orbitmq.client.core.allocation import Strategy
from orbitmq.client.core.process_queue import Limits
from orbitmq.client.holding import Holding, Shared, Tally
from orbitmq.client.inbox import Inbox
from orbitmq.client.locking import RENEW_EVERY_S, Locks
from orbitmq.client.offset_store import AUTO, LAST, BrokerOffsets, OffsetStore, first_offset
from orbitmq.client.ordered import OrderedHolding, OrderedInbox
from orbitmq.client.pulling import Puller
from orbitmq.client.rates import Rates
from orbitmq.client.rebalancing import Rebalancer
from orbitmq.client.returning import NoReturns, Returner
from orbitmq.client.scope import Scope
from orbitmq.client.tracing import Interceptors
from orbitmq.client.watched import watched_message
from orbitmq.wire.bodies import SubscriptionData
from orbitmq.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    from orbitmq.client.client import Client

log = logging.getLogger("orbitmq.consumer")

ADVISE_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What a consumer was told, checked and in the units of the machine."""

    group: str
    ordered: bool
    broadcast: bool
    place: str | int
    concurrency: int
    max_retries: int | None
    limits: Limits
    strategy: Strategy
    handover_s: float
    commit_every_s: float
    rebalance_every_s: float
    page_bytes: int
    offsets_dir: Path | None


class Engine:
    """Built when a consumer starts. `begin` starts its loops, `end` gives everything back."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        subscriptions: Mapping[str, SubscriptionData],
        tally: Tally,
        times: HandlingTimes,
        rates: Rates,
    ) -> None:
        self.settings = settings
        self.rates = rates
        self.scope = Scope(f"consumer-{settings.group}")
        self._client = client
        self._subscriptions = subscriptions
        self._tally = tally
        self._times = times
        self._advised = 0
        self._now = asyncio.get_running_loop().time
        self.inbox: Inbox | OrderedInbox = OrderedInbox(self._now) if settings.ordered else Inbox(times)
        self.assignments = self._make_assignments()
        self.rebalancer = Rebalancer(
            client.cluster,
            settings.group,
            client.client_id,
            subscriptions,
            self.assignments,
            strategy=settings.strategy,
            broadcast=settings.broadcast,
            introduce=client.presence.beat_now,
            every_s=settings.rebalance_every_s,
        )

    def _make_assignments(self) -> Assignments:
        client, settings = self._client, self.settings
        cluster, group = client.cluster, settings.group
        store: OffsetStore
        place = settings.place
        if settings.broadcast:
            store = LocalOffsets(settings.offsets_dir, client.client_id, group)
            # Broadcasting members begin at the end unless told otherwise: nobody waited for them.
            place = LAST if place == AUTO else place
        else:
            store = BrokerOffsets(cluster, group, place)
        retries = back_off.DEFAULT_MAX_RETRIES if settings.max_retries is None else settings.max_retries
        shared = Shared(
            settings.limits,
            self.inbox,
            self.scope,
            NoReturns(group) if settings.broadcast else Returner(cluster, group, max_retries=retries),
            self._tally,
            max_retries=settings.max_retries,
            message=watched_message(Interceptors(client.interceptors), group),
        )
        kind = OrderedHolding if settings.ordered else Holding
        return Assignments(
            self.scope,
            store,
            None if settings.broadcast else Locks(cluster, group, client.client_id),
            Rules(ordered=settings.ordered, handover_s=settings.handover_s),
            make=lambda queue, offset: kind(queue, offset, shared),
            first_offset=lambda queue: first_offset(cluster, queue, place),
            go_on=self._pull,
            moved=lambda: self.rebalancer.wake(),
            clock_ms=client.clock,
        )

    async def begin(self) -> None:
        await self.rebalancer.once()
        self.scope.keep(self.rebalancer.run, name="rebalance")
        self.scope.keep(self._commit_now_and_then, name="commit")
        if not self.settings.broadcast:
            self.scope.keep(self._renew_locks, name="locks")

    async def end(self, *, returns_only: bool) -> None:
        await self.assignments.leave_all(self.settings.handover_s, returns_only=returns_only)

    def reset(self, queue: MessageQueue, offset: int) -> None:
        holding = self.assignments.holdings.get(queue)
        if holding is not None:
            self.assignments.replace(holding, offset)

    def _pull(self, holding: Holding) -> None:
        puller = Puller(
            self._client.cluster,
            self.settings.group,
            holding,
            self._subscriptions[holding.queue.topic],
            self.inbox,
            self._tally,
            moved=self.assignments.replace,
            introduce=self._client.presence.introduce,
            away=self.rebalancer.doubt,
            page_bytes=self.settings.page_bytes,
        )
        holding.pull_task = self.scope.keep(puller.run, name=f"pull-{holding!r}")

    async def _commit_now_and_then(self) -> None:
        advise_at = self._now() + ADVISE_EVERY_S
        while True:
            await asyncio.sleep(self.settings.commit_every_s)
            await self.assignments.commit()
            self.rates.sample(self._now(), self._tally, self.assignments.holdings.values())
            if self._now() >= advise_at:
                advise_at = self._now() + ADVISE_EVERY_S
                self._advise()

    async def _renew_locks(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            await self.assignments.renew_locks()

    def _advise(self) -> None:
        advice, concurrency = self._times.advice(), self.settings.concurrency
        if advice is None or advice.concurrency == self._advised or not advice.differs_from(concurrency):
            return
        self._advised = advice.concurrency
        log.info("group '%s' runs %d handlers at once; %s", self.settings.group, concurrency, advice)
