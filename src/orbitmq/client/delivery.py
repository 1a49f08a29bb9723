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
from orbitmq.client.core.retry_rules import RetryRules, SendKind, share_of_time
from orbitmq.client.errors import Closed, OrbitMQError, Unreachable, from_remoting, from_response
from orbitmq.client.fast_send import FrameMaker
from orbitmq.client.outgoing import check_topic
from orbitmq.client.receipt import SEND_STATUS, IdRun, Receipt
from orbitmq.client.routes import TopicRoute
from orbitmq.client.topic_desk import Door, Slot, TopicDesk
from orbitmq.net.errors import RemotingError
from orbitmq.wire.answer_json import Answer
from orbitmq.wire.codes import RequestCode

if TYPE_CHECKING:
    from orbitmq.client.client import Client
    from orbitmq.net.channel import Channel

log = logging.getLogger("orbitmq.client")

# After a failure the route is asked for again, but not more often than this.
LOOK_AGAIN_S: Final = 1.0

Make = Callable[[FrameMaker, int, int, bytes, bytes, int, bytes], bytes]
"""One of FrameMaker's methods: which kind of frame is made for each try."""


class Delivery:
    def __init__(self, client: Client, group: str, rules: RetryRules, choice: Choice) -> None:
        self.client = client
        self.group = group
        self.rules = rules
        self.faults = Faults()
        self.closed = False
        self.desks: dict[str, TopicDesk] = {}
        self._choice = choice
        self._watch_latency = choice is Choice.LEAST_LATENCY
        self._doors: dict[str, Door] = {}
        self._opening: dict[str, asyncio.Task[TopicDesk]] = {}
        self._unwatch: dict[str, Callable[[], None]] = {}
        self._clock = client.clock
        self._time: Callable[[], float] = _not_started

    # --- topics -----------------------------------------------------------------------------------------------

    async def desk(self, topic: str, timeout_s: float) -> TopicDesk:
        """The desk of a topic; callers that come while its route is being asked for share the question."""
        desk = self.desks.get(topic)
        if desk is not None:
            return desk
        check_topic(topic)
        self.check_open()
        self.client.start()
        self._time = asyncio.get_running_loop().time
        task = self._opening.get(topic)
        if task is None:
            task = self._opening[topic] = self.client.scope.spawn(
                self._open(topic), name=f"route-{topic}", awaited=True
            )
            task.add_done_callback(lambda _: self._opening.pop(topic, None))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(task)
        except TimeoutError:
            raise Unreachable(
                f"the route of topic '{topic}' was not learnt within {timeout_s:g} s",
                hint=f"check the name servers {'; '.join(self.client.cluster.namesrv_addrs)}",
            ) from None

    async def _open(self, topic: str) -> TopicDesk:
        desk = TopicDesk(self.group, topic, self.client.rng, self._choice)
        route = await self.client.cluster.publish_route(topic)
        desk.follow(route, self._doors)
        if self.closed:
            raise self._closed_error()
        self.desks[topic] = desk
        self._unwatch[topic] = self.client.on_route_change(topic, lambda new: self._follow(topic, new))
        return desk

    def _follow(self, topic: str, route: TopicRoute | None) -> None:
        desk = self.desks.get(topic)
        if desk is None:
            return
        if route is not None:
            desk.follow(route, self._doors)
            return
        # The topic was deleted: the next send asks anew and finds out whether it may be made again.
        del self.desks[topic]
        self._unwatch.pop(topic)()

    def address_of(self, broker: str) -> str:
        """The master of a broker that this producer has sent to."""
        door = self._doors.get(broker)
        if door is None:
            raise Unreachable(
                f"broker '{broker}' is in no route any more",
                hint="wait until it registers with a name server",
            )
        return door.addr

    def close(self) -> None:
        self.closed = True
        self.desks.clear()
        for unwatch in self._unwatch.values():
            unwatch()
        self._unwatch.clear()

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
        msg_id = ids.encode() if type(ids) is str else b""
        stored: Receipt | None = None
        for number in range(len(tried), rules.tries(kind)):
            if number:
                if not self._again(kind, outcome):
                    break
                stored = outcome if isinstance(outcome, Receipt) else stored
                self._look_again(desk)
            left_s = deadline - now()
            if left_s <= 0:
                break
            if number and rules.elsewhere(kind):
                slot = desk.choose(self.faults, now(), tuple(tried))
            share_s = share_of_time(
                left_s, rules.tries(kind) - number, alone=desk.alone or not rules.elsewhere(kind)
            )
            tried.append(slot.broker)
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
        if isinstance(outcome, Receipt):
            return outcome
        if stored is not None:  # less safe than wished, but stored: an error would hide that
            return stored
        if not tried:
            raise Unreachable(
                f"a message to '{desk.topic}' was not sent in time",
                hint="raise timeout=, or send less at once",
            )
        if len(tried) > 1:
            outcome.add_note(f"tried {len(tried)} times: {', '.join(tried)}")
        raise outcome

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
            await self.client.routes.refresh(topic)
        except OrbitMQError as error:
            # The old route is still worth trying; who sends hears of it when that fails too.
            log.info("the route of '%s' was not learnt anew: %s", topic, error)


def _not_started() -> float:
    raise Closed("the producer was not started", hint="send inside a running event loop")
