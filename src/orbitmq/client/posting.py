"""Messages that are sent without waiting, and travel in company: gathered for a moment, then sent as a batch."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from orbitmq.client.batching import Batcher, Entry, entry_bytes
from orbitmq.client.core.batches import Gathering
from orbitmq.client.core.retry_rules import SendKind
from orbitmq.client.delivery import Delivery
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.receipt import Receipt
from orbitmq.client.topic_desk import Slot, TopicDesk


class Posted(NamedTuple):
    entry: Entry
    answer: asyncio.Future[Receipt]


class Post:
    """One gathering per queue; a posted message waits at most `linger_s` for company.

    Messages of one key keep their order: a queue's next batch is sent when the one before has its answer.
    """

    def __init__(self, delivery: Delivery, batcher: Batcher, linger_s: float) -> None:
        self._delivery = delivery
        self._batcher = batcher
        self._linger_s = linger_s
        self._gatherings: dict[tuple[str, Slot], Gathering[Posted]] = {}
        self._timers: dict[tuple[str, Slot], tuple[asyncio.TimerHandle, TopicDesk, float]] = {}
        self._sending: dict[Slot, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, desk: TopicDesk, entry: Entry, timeout_s: float) -> asyncio.Future[Receipt]:
        loop = asyncio.get_running_loop()
        slot = entry.slot or self._shared_slot(desk, loop.time())
        place = (desk.topic, slot)
        answer: asyncio.Future[Receipt] = loop.create_future()
        gathering = self._gatherings.get(place)
        if gathering is None:
            gathering = self._gatherings[place] = Gathering(self._batcher.limits, self._linger_s)
        ready = gathering.add(Posted(entry, answer), entry_bytes(entry), loop.time())
        if ready:
            self._send(desk, slot, ready, timeout_s)
        if gathering.items and place not in self._timers:
            timer = loop.call_at(gathering.due, self._due, desk, slot, timeout_s)
            self._timers[place] = (timer, desk, timeout_s)
        return answer

    async def flush(self) -> None:
        """Sends what waits and returns when everything posted before has its answer."""
        for (_, slot), (timer, desk, timeout_s) in tuple(self._timers.items()):
            timer.cancel()
            self._due(desk, slot, timeout_s)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _shared_slot(self, desk: TopicDesk, now: float) -> Slot:
        """Messages without a key join whatever of the topic is being gathered: company comes before fairness."""
        for topic, slot in self._gatherings:
            if topic == desk.topic and self._gatherings[topic, slot].items and slot in desk.slots:
                return slot
        return desk.choose(self._delivery.faults, now)

    def _due(self, desk: TopicDesk, slot: Slot, timeout_s: float) -> None:
        self._timers.pop((desk.topic, slot), None)
        gathering = self._gatherings.pop((desk.topic, slot), None)
        if gathering is not None and gathering.items:
            self._send(desk, slot, gathering.take(), timeout_s)

    def _send(self, desk: TopicDesk, slot: Slot, posted: list[Posted], timeout_s: float) -> None:
        work = self._deliver(desk, slot, posted, timeout_s, self._sending.get(slot))
        task = self._delivery.client.scope.spawn(work, name=f"post-{desk.topic}")
        self._sending[slot] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._sent(slot, done, posted))

    async def _deliver(
        self,
        desk: TopicDesk,
        slot: Slot,
        posted: list[Posted],
        timeout_s: float,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            await asyncio.wait((before,))
        ordered = any(one.entry.slot is not None for one in posted)
        kind = SendKind.ORDERED if ordered else SendKind.POSTED
        try:
            receipts = await self._batcher.send_entries(
                desk, slot, [one.entry for one in posted], timeout_s, kind
            )
        except OrbitMQError as error:
            for one in posted:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        for one, receipt in zip(posted, receipts, strict=True):
            if not one.answer.done():
                one.answer.set_result(receipt)

    def _sent(self, slot: Slot, task: asyncio.Task[None], posted: list[Posted]) -> None:
        self._tasks.discard(task)
        if self._sending.get(slot) is task:
            del self._sending[slot]
        for one in posted:  # only after a cancelled task is anybody left
            if not one.answer.done():
                one.answer.cancel()
