"""Gets one frame stored: picks the queue, waits for the answer, and tries again by the rules of `core.retry_rules`.

Shared by everything that sends: single messages, batches, prepared messages, requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orbitmq.client.core.faults import Faults
from orbitmq.client.core.queue_choice import Choice
from orbitmq.client.core.retry_rules import (
    RetryRules,
    SendKind,
    counts_as_try,
    not_the_place,
    share_of_time,
)
from orbitmq.client.desks import LOOK_AGAIN_S, Desks
from orbitmq.client.errors import Closed, OrbitMQError, Unreachable, from_remoting, from_response
from orbitmq.client.fast_send import FrameMaker
from orbitmq.client.receipt import SEND_STATUS, IdRun, Receipt
from orbitmq.client.topic_desk import Door, Slot, TopicDesk
from orbitmq.net.errors import RemotingError
from orbitmq.wire.answer_json import Answer
from orbitmq.wire.codes import RequestCode

if TYPE_CHECKING:
    from orbitmq.client.client import Client
    from orbitmq.net.channel import Channel

log = logging.getLogger("orbitmq.client")

MOST_NAMES: Final = 10

Make = Callable[[FrameMaker, int, int, bytes, bytes, int, bytes], bytes]
"""One of FrameMaker's methods: which kind of frame is made for each try."""


class Delivery:
    def __init__(self, client: Client, group: str, rules: RetryRules, choice: Choice) -> None:
        self.client = client
        self.group = group
        self.rules = rules
        self.faults = Faults()
        self.closed = False
        self._desks = Desks(client, group, choice, self.faults, self.check_open)
        self.desks = self._desks.open
        self._watch_latency = choice is Choice.LEAST_LATENCY
        self._clock = client.clock
        self._time: Callable[[], float] = _not_started

    def address_of(self, broker: str) -> str:
        """The master of a broker that this producer has sent to."""
        return self._desks.address_of(broker)

    async def desk(self, topic: str, timeout_s: float) -> TopicDesk:
        """The desk of a topic; waits for its route, and for a master if it had one before."""
        desk = self.desks.get(topic)
        if desk is None:
            self._time = asyncio.get_running_loop().time
            desk = await self._desks.get(topic, timeout_s)
        return desk

    def close(self) -> None:
        self.closed = True
        self._desks.close()

    def check_open(self) -> None:
        if self.closed:
            raise self._closed_error()
        self.client.check_open()

    def _closed_error(self) -> Closed:
        if self.client.closed:
            return Closed("the client is closed", hint="open a new one with orbitmq.connect(...)")
        return Closed(
            f"the producer of group '{self.group}' is closed", hint="make a new one: mq.producer(...)"
        )

    # --- sending ----------------------------------------------------------------------------------------------

    async def deliver(
        self,
        make: Make,
        desk: TopicDesk,
        slot: Slot | None,
        kind: SendKind,
        ids: str | IdRun,
        more: bytes,
        sys_flag: int,
        body: bytes,
        timeout_s: float,
    ) -> Receipt:
        """Sends until a broker has stored it or the tries or the time are used up; then the last error is raised.

        `slot` fixes the queue of the first try. All tries carry the same unique id.
        """
        faults, now = self.faults, self._time
        start = now()
        if slot is None:
            slot = desk.choose(faults, start)
        channel = slot.door.channel
        msg_id = ids.encode() if type(ids) is str else b""
        if channel is None or channel.closed or not channel.writable:
            failure: OrbitMQError | Receipt = Unreachable("not sent yet")
            tried: list[str] = []
        else:
            share_s = (
                timeout_s
                if desk.alone or kind is not SendKind.AWAITED
                else timeout_s / self.rules.tries(kind)
            )
            opaque = channel.next_opaque()
            frame = make(slot.frames, opaque, self._clock(), msg_id, more, sys_flag, body)
            try:
                answer = await channel.submit(opaque, frame, start + share_s, share_s)
            except RemotingError as error:
                failure = self._failed(slot, error)
            else:
                if answer.code == 0:
                    if faults.any or self._watch_latency or now() - start > faults.slow_s:
                        faults.note(slot.broker, now() - start, now())
                    return Receipt(answer, slot.place, ids)
                failure = self._judge(slot, answer, ids)
            tried = [slot.broker]
        return await self._keep_trying(
            make, desk, slot, kind, ids, more, sys_flag, body, start + timeout_s, tried, failure
        )

    async def _keep_trying(
        self,
        make: Make,
        desk: TopicDesk,
        slot: Slot,
        kind: SendKind,
        ids: str | IdRun,
        more: bytes,
        sys_flag: int,
        body: bytes,
        deadline: float,
        tried: list[str],
        outcome: OrbitMQError | Receipt,
    ) -> Receipt:
        """The second and later tries; also the first when the connection has to be made before."""
        rules, now = self.rules, self._time
        tries = rules.tries(kind)
        msg_id = ids.encode() if type(ids) is str else b""
        stored: Receipt | None = None
        spent = sum(isinstance(outcome, Receipt) or counts_as_try(outcome) for _ in tried)
        asked = set(tried)
        """By name, since the route was last looked at."""
        while spent < tries:
            if tried:
                if tries == 1 or not self._again(kind, outcome):
                    break
                stored = outcome if isinstance(outcome, Receipt) else stored
                if await self._anywhere_else(desk, kind, asked, outcome, deadline):
                    asked.clear()
            left_s = deadline - now()
            if left_s <= 0:
                break
            if tried:
                found = self._next_slot(desk, slot, kind, tuple(asked))
                if found is None:
                    outcome = desk.no_queue()
                    continue
                slot = found
            share_s = share_of_time(left_s, tries - spent, alone=desk.alone or not rules.elsewhere(kind))
            tried.append(slot.broker)
            asked.add(slot.broker)
            started = now()
            try:
                channel = await self._channel(slot.door, share_s)
                opaque = channel.next_opaque()
                frame = make(slot.frames, opaque, self._clock(), msg_id, more, sys_flag, body)
                answer = await channel.submit(opaque, frame, started + share_s, share_s)
            except RemotingError as error:
                outcome = self._failed(slot, error)
            except OrbitMQError as error:
                self.faults.isolate(slot.broker, now())
                outcome = error
            else:
                self.faults.note(slot.broker, now() - started, now())
                if answer.code == 0:
                    return Receipt(answer, slot.place, ids)
                outcome = self._judge(slot, answer, ids)
            if isinstance(outcome, Receipt) or counts_as_try(outcome):
                spent += 1
        if isinstance(outcome, Receipt):
            return outcome
        if stored is not None:  # less safe than wished, but stored: an error would hide that
            return stored
        if not tried:
            raise Unreachable(
                f"a message to '{desk.topic}' was not sent in time",
                hint="raise timeout=, or send less at once",
            )
        if isinstance(outcome, Unreachable) or not_the_place(outcome):
            self._look_again(desk)  # for whoever sends next
        if len(tried) > 1:
            names = tried if len(tried) <= MOST_NAMES else list(dict.fromkeys(tried))
            outcome.add_note(f"tried {len(tried)} times: {', '.join(names)}")
        raise outcome

    async def _anywhere_else(
        self,
        desk: TopicDesk,
        kind: SendKind,
        asked: set[str],
        outcome: OrbitMQError | Receipt,
        deadline: float,
    ) -> bool:
        """After a failure: when nobody else is left to ask, looks for a change of the route. True if it did."""
        moved = isinstance(outcome, OrbitMQError) and not_the_place(outcome)
        if not moved or (self.rules.elsewhere(kind) and not desk.only(asked)):
            self._look_again(desk)
            return False
        before = desk.version
        try:
            async with asyncio.timeout_at(deadline):
                await self._renew(desk, deadline)
                if desk.version == before:
                    await asyncio.sleep(LOOK_AGAIN_S)
        except TimeoutError:
            log.debug("nobody took the place of those that failed a message to '%s'", desk.topic)
        return True

    async def _renew(self, desk: TopicDesk, deadline: float) -> None:
        """Looks for the brokers of a topic; when it has none at all, waits for the first."""
        if self.desks.get(desk.topic) is desk:
            await self._refresh(desk.topic)
            return
        try:
            await self._desks.get(desk.topic, deadline - self._time())
        except OrbitMQError as error:
            # What the broker said, or did not, tells more than this.
            log.debug("no place for a message to '%s': %s", desk.topic, error)

    def _next_slot(self, desk: TopicDesk, slot: Slot, kind: SendKind, asked: tuple[str, ...]) -> Slot | None:
        if not self.rules.elsewhere(kind):
            return desk.now(slot)
        return desk.choose(self.faults, self._time(), asked) if desk.slots else None

    async def oneway(
        self,
        desk: TopicDesk,
        slot: Slot | None,
        msg_id: str,
        more: bytes,
        sys_flag: int,
        body: bytes,
        timeout_s: float,
    ) -> None:
        """Hands the message to the connection. Waits only while the connection is being made or is full."""
        start = self._time()
        if slot is None:
            slot = desk.choose(self.faults, start)
        channel = slot.door.channel
        if channel is None or channel.closed or not channel.writable:
            try:
                channel = await self._channel(slot.door, timeout_s)
            except OrbitMQError:
                self.faults.isolate(slot.broker, self._time())
                self._look_again(desk)
                raise
        frame = slot.frames.oneway(
            channel.next_opaque(), self._clock(), msg_id.encode(), more, sys_flag, body
        )
        try:
            channel.push(frame)
        except RemotingError as error:
            raise from_remoting(error) from error

    async def _channel(self, door: Door, timeout_s: float) -> Channel:
        """A connection with room in its buffer."""
        self.check_open()
        try:
            async with asyncio.timeout(timeout_s):
                channel = await self.client.cluster.channel(door.addr)
                if not channel.writable:
                    await channel.drain()
        except TimeoutError:
            raise Unreachable(
                f"broker '{door.name}' at {door.addr} took nothing within {timeout_s:g} s",
                hint="it is overloaded or frozen, or something between drops packets; nothing was sent",
            ) from None
        except RemotingError as error:
            raise from_remoting(error) from error
        door.channel = channel
        return channel

    def _failed(self, slot: Slot, error: RemotingError) -> OrbitMQError:
        self.faults.isolate(slot.broker, self._time())
        made = from_remoting(error)
        made.__cause__ = error
        return made

    def _judge(self, slot: Slot, answer: Answer, ids: str | IdRun) -> OrbitMQError | Receipt:
        """An answer that is not plain success: stored, but less safely than wished; or not stored."""
        if answer.code in SEND_STATUS:
            return Receipt(answer, slot.place, ids)
        return from_response(RequestCode.SEND_MESSAGE_V2, answer.code, answer.remark, slot.door.addr)

    def _again(self, kind: SendKind, outcome: OrbitMQError | Receipt) -> bool:
        if isinstance(outcome, Receipt):
            return self.rules.retry_not_stored and self.rules.elsewhere(kind)
        return self.rules.worth_another_try(kind, outcome)

    def _look_again(self, desk: TopicDesk) -> None:
        """Asks for the route in the background: brokers may have moved. The next try does not wait for it."""
        if self._time() < desk.next_look or self.client.scope.closed:
            return
        desk.next_look = self._time() + LOOK_AGAIN_S
        self.client.scope.spawn(self._refresh(desk.topic), name=f"look-again-{desk.topic}")

    async def _refresh(self, topic: str) -> None:
        try:
            await self.client.routes.look_again(topic)
        except OrbitMQError as error:
            # The old route is still worth trying; who sends hears of it when that fails too.
            log.info("the route of '%s' was not learnt anew: %s", topic, error)


def _not_started() -> float:
    raise Closed("the producer was not started", hint="send inside a running event loop")
