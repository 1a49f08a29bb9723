"""Delayed and timed messages: the engine, driven by the event loop."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from orbitmq.broker.room import Room
from orbitmq.broker.timing import rules
from orbitmq.broker.timing.engine import POLL_MS, Engine
from orbitmq.broker.timing.lane import Lane
from orbitmq.broker.timing.listing import list_scheduled
from orbitmq.broker.timing.recall import recall
from orbitmq.net.connection import Connection
from orbitmq.store.durability import Durable
from orbitmq.store.flush import ThreadRunner
from orbitmq.wire import topics as names
from orbitmq.wire.codes import OrbitCode, RequestCode
from orbitmq.wire.command import Command
from orbitmq.wire.properties import Prop
from orbitmq.wire.recall import RecallHandle

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.send import Draft
    from orbitmq.broker.timers import Timers
    from orbitmq.net.service import Handler

log = logging.getLogger("orbitmq.broker")

SLICE_S: Final = 0.004
"""How long one step may hold the loop; clients are served between steps."""
_FAILED_MS: Final = 1_000
_APART_MS: Final = 20
"""Steps are this far apart: what becomes due meanwhile shares one commit. A message is at most so late for it."""
_LEAST_QUEUES: Final = 4


class Timing(Room):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0
        self._running = False
        self.engine = Engine(broker.store, broker.delays, ThreadRunner(self._loop), self._delivered)
        self.engine.roller.on_done = self._rolled
        broker.store.cleaner.guards.append(self._may_go)

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.RECALL_MESSAGE: self._recall, OrbitCode.LIST_SCHEDULED: self._list}

    # --- messages come --------------------------------------------------------------------------------------

    def divert(self, draft: Draft) -> None:
        broker = self._broker
        topic = draft.topic
        due_ms = rules.divert(
            draft,
            broker.clock(),
            broker.store.settings.delay_levels_ms,
            broker.config.timer_max_delay_sec * 1000,
        )
        if due_ms is None:
            return
        draft.after_store.append(self._stored)
        msg_id = draft.properties.get(Prop.UNIQ_KEY)
        if msg_id:
            handle = RecallHandle(topic, broker.config.broker_name, due_ms, msg_id)
            draft.answer["recallHandle"] = handle.encode()

    divert_delay = divert
    """For messages that the broker itself stores again."""

    def _stored(self, log_offset: int, queue_offset: int) -> None:
        """It may be due before the next look: the loop is woken as soon as the message can be seen."""
        self._stored_soon_due()

    def _stored_soon_due(self) -> None:
        store = self._broker.store
        store.when_durable(store.log.position, self._visible)

    def _visible(self, outcome: Durable) -> None:
        self._wake(_APART_MS / 1000)

    # --- time passes ----------------------------------------------------------------------------------------

    def start(self, timers: Timers) -> None:
        self._running = True
        lane = Lane(self._broker, self._stored_soon_due)
        self._broker.gateway.hot_send.delayed = lane.take
        self._wake(0.0)

    def _wake(self, delay_s: float) -> None:
        if not self._running:
            return
        when = self._loop.time() + delay_s
        if self._timer is not None:
            if self._when <= when:
                return
            self._timer.cancel()
        self._when = when
        self._timer = self._loop.call_at(when, self._run)

    def _run(self) -> None:
        self._timer = None
        broker = self._broker
        delay_ms: float = POLL_MS
        try:
            if not broker.config.is_slave:
                deadline = self._loop.time() + SLICE_S
                more = self.engine.step(broker.clock(), lambda: self._loop.time() >= deadline)
                now_ms = broker.clock()
                delay_ms = 0 if more else max(_APART_MS, self.engine.next_ms(now_ms) - now_ms)
        except Exception:
            log.exception("delivering waiting messages failed and will be tried again")
            delay_ms = _FAILED_MS
        self._wake(delay_ms / 1000)

    def next_due_ms(self, now_ms: int) -> int | None:
        return self.engine.next_due_ms(now_ms)

    def time_has_passed(self) -> bool:
        deadline = self._loop.time() + SLICE_S
        return self.engine.step(self._broker.clock(), lambda: self._loop.time() >= deadline)

    def stop(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        self.engine.close()

    def _delivered(self, topic: str, count: int, size: int) -> None:
        broker = self._broker
        broker.stats.put(topic, count, size)
        if broker.topics.get(topic) is None and topic not in broker.store.mark.deleted_topics:
            self._restore(topic)

    def _restore(self, topic: str) -> None:
        """The broker died before the settings of a new topic were saved, and the log only had waiting
        messages.
        """
        broker = self._broker
        found = max(broker.store.queues_of(topic), default=0) + 1
        queues = found if topic.startswith(names.RETRY_PREFIX) else max(_LEAST_QUEUES, found)
        log.warning(
            "topic %s got a delayed message but has no settings; it is made with %d queues", topic, queues
        )
        broker.topics.create_internal(topic, queues, broker.clock())
        # During the start everything is registered a moment later anyway.
        if hasattr(broker, "registrar"):
            broker.register_soon(topic)

    # --- old log files --------------------------------------------------------------------------------------

    def _may_go(self, log_end: int) -> bool:
        """A slave's master writes waiting messages anew, and the copies arrive here as well."""
        return self._broker.config.is_slave or self.engine.roller.may_go(log_end)

    def _rolled(self) -> None:
        self._loop.call_soon(partial(self._clean_again, self._broker.store.cleaner.postponed_by_hand))

    def _clean_again(self, by_hand: bool) -> None:
        if self._running:
            self._broker.store.cleaner.run(by_hand)

    # --- requests -------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """What was stored since the last step is known before somebody asks about it."""
        deadline = self._loop.time() + SLICE_S
        self.engine.indexer.advance(lambda: self._loop.time() >= deadline)

    def _recall(self, conn: Connection, command: Command) -> Command | None:
        self._catch_up()
        return recall(self._broker, self.engine, conn, command)

    def _list(self, conn: Connection, command: Command) -> Command:
        self._catch_up()
        return list_scheduled(self._broker, self.engine, command)
