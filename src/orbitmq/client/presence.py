"""What brokers know about this client, and what they ask of it.

A broker pushes to clients it has heard of: checks of open transactions, replies to requests, changes of a
consumer group's members. It hears of them by heartbeats, every 30 seconds and whenever something changes, and it
forgets them with their connection; so a lost connection is made again and introduced at once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError, from_remoting
from orbitmq.net.channel import Channel
from orbitmq.net.errors import RemotingError
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode, ResponseCode, request_name
from orbitmq.wire.command import Command, request

log = logging.getLogger("orbitmq.client")

PERIOD_S: Final = 30.0
# After a failed round the next comes sooner: a broker that restarted does not know us any more.
FAILED_FIRST_S: Final = 1.0
GOODBYE_S: Final = 1.0

Reply = Command | None
Handler = Callable[[Channel, Command], "Reply | Awaitable[Reply]"]
"""Serves a request of a broker; None means "not mine", and the next handler of that code is asked."""


class Member(Protocol):
    """One consumer of the client, as heartbeats show it."""

    group: str

    def consumer_data(self) -> bodies.ConsumerData: ...

    def heartbeat_answer(self, addr: str, response: Command) -> None: ...


class Presence:
    """Heartbeats out, requests of brokers in. Its `run` is a loop that the client's scope owns."""

    def __init__(self, cluster: Cluster, client_id: str, *, period_s: float = PERIOD_S) -> None:
        self.client_id = client_id
        self._cluster = cluster
        self._period_s = period_s
        self._producers: Counter[str] = Counter()
        self._consumers: dict[str, Member] = {}
        self._handlers: dict[int, list[Handler]] = {}
        # Which connection was last told which state of ours: a broker knows us by the connection.
        self._told: dict[str, tuple[Channel, int]] = {}
        self._state = 0
        self._wake = asyncio.Event()
        self._hurry = False
        self._everyone = False

    @property
    def producer_groups(self) -> frozenset[str]:
        return frozenset(self._producers)

    @property
    def consumer_groups(self) -> frozenset[str]:
        return frozenset(self._consumers)

    # --- members ----------------------------------------------------------------------------------------------

    def add_producer(self, group: str) -> None:
        self._producers[group] += 1
        if self._producers[group] == 1:
            self._changed()

    async def remove_producer(self, group: str) -> None:
        self._producers[group] -= 1
        if self._producers[group] <= 0:
            del self._producers[group]
            self._changed()
            await self._say_goodbye("producerGroup", group)

    def add_consumer(self, member: Member) -> None:
        """The brokers hear of it with the next beat; `await beat_now()` when they must know before going on."""
        self._consumers[member.group] = member
        self._changed()

    async def remove_consumer(self, group: str) -> None:
        if self._consumers.pop(group, None) is not None:
            self._changed()
            await self._say_goodbye("consumerGroup", group)

    # --- requests of brokers ----------------------------------------------------------------------------------

    def on(self, code: int, handler: Handler) -> Callable[[], None]:
        """Serves requests with this code until the function given back is called."""
        handlers = self._handlers.setdefault(int(code), [])
        handlers.append(handler)

        def remove() -> None:
            if handler in handlers:
                handlers.remove(handler)

        return remove

    def serve(self, channel: Channel, command: Command) -> Reply | Awaitable[Reply]:
        """The `on_request` of every connection of the client."""
        handlers = tuple(self._handlers.get(command.code, ()))
        if len(handlers) == 1:
            result = handlers[0](channel, command)
            if inspect.isawaitable(result):
                return self._finish(command, result)
            return result or self._nobody(command)
        return self._serve_in_turn(handlers, channel, command)

    async def _serve_in_turn(
        self, handlers: tuple[Handler, ...], channel: Channel, command: Command
    ) -> Reply:
        reply: Reply = None
        for handler in handlers:
            result: Any = handler(channel, command)
            answer = await result if inspect.isawaitable(result) else result
            reply = reply or answer
            if reply is not None and not command.is_oneway:
                return reply
        return reply or self._nobody(command)

    async def _finish(self, command: Command, work: Awaitable[Reply]) -> Reply:
        return await work or self._nobody(command)

    def _nobody(self, command: Command) -> Reply:
        if command.is_oneway:
            return None
        name = request_name(command.code)
        if not self._handlers.get(command.code):
            remark = f"{name} is not served by this client"
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        return command.reply(
            ResponseCode.SYSTEM_ERROR, remark=f"{name}: nobody in client {self.client_id} has that group"
        )

    # --- heartbeats -------------------------------------------------------------------------------------------

    def targets(self) -> list[str]:
        """Every master of the known routes; slaves too when somebody consumes, because they are read from."""
        found: dict[str, None] = {}
        for route in self._cluster.routes.all():
            for broker in route.brokers.values():
                if self._consumers:
                    found.update(dict.fromkeys(broker.addrs.values()))
                elif broker.master is not None:
                    found[broker.master] = None
        return list(found)

    async def beat_now(self) -> list[str]:
        """One heartbeat to every broker; gives the addresses that did not take it. Raises nothing of theirs."""
        if not self._producers and not self._consumers:
            return []
        targets = self.targets()
        if self._everyone:
            targets = list(dict.fromkeys([*targets, *await self._all_masters()]))
        taken = await asyncio.gather(*(self._beat_or_log(addr) for addr in targets))
        return [addr for addr, ok in zip(targets, taken, strict=True) if not ok]

    def reach_everyone(self) -> None:
        """Beats go to every master of the cluster from now on, not only to those of topics in use."""
        self._everyone = True
        self.wake()

    async def introduce(self, addr: str) -> None:
        """Makes sure the broker knows this client by its present connection, before it has to push to it."""
        told = self._told.get(addr)
        if told is None or told[0].closed or told[1] != self._state:
            await self._beat(addr)

    def wake(self) -> None:
        """Something that brokers should know has changed: the next beat comes now."""
        self._hurry = True
        self._wake.set()

    def connection_lost(self, channel: Channel) -> None:
        """The `on_lost` of every connection: the broker forgot us with it."""
        told = self._told.get(channel.addr)
        if told is not None and told[0] is channel:
            del self._told[channel.addr]
            self._wake.set()

    async def run(self) -> None:
        failed_pause_s = FAILED_FIRST_S
        while True:
            self._wake.clear()
            self._hurry = False
            failed = await self.beat_now()
            failed_pause_s = min(failed_pause_s * 2, self._period_s) if failed else FAILED_FIRST_S
            pause_s = failed_pause_s if failed else self._period_s
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            if not self._hurry:  # a broker that just went away needs a moment to come back
                await asyncio.sleep(min(FAILED_FIRST_S, self._period_s))

    def _changed(self) -> None:
        self._state += 1
        self.wake()

    async def _all_masters(self) -> list[str]:
        try:
            brokers = (await self._cluster.cluster_map()).brokers.values()
        except OrbitMQError as error:
            log.warning("not every broker hears of this client: %s", error)
            return []
        return [broker.master for broker in brokers if broker.master is not None]

    async def _beat_or_log(self, addr: str) -> bool:
        try:
            await self._beat(addr)
        except OrbitMQError as error:
            log.warning("no heartbeat to %s: %s", addr, error)
            return False
        return True

    async def _beat(self, addr: str) -> None:
        channel = await self._cluster.channel(addr)
        # Told before the first wait: of two beats on one connection the later one holds the later state.
        state = self._state
        members = tuple(self._consumers.values())
        command = request(RequestCode.HEART_BEAT, body=bodies.encode(self._data(members)))
        try:
            response = await channel.request(command, self._cluster.timeout_s)
        except RemotingError as error:
            raise from_remoting(error) from error
        self._told[addr] = (channel, state)
        for member in members:
            member.heartbeat_answer(addr, response)

    def _data(self, members: tuple[Member, ...]) -> bodies.HeartbeatData:
        return bodies.HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[bodies.ProducerData(group_name=group) for group in self._producers],
            consumer_data_set=[member.consumer_data() for member in members],
        )

    async def _say_goodbye(self, field: str, group: str) -> None:
        """To brokers with a living connection; the others have forgotten us with theirs."""
        known = [addr for addr, (channel, _) in self._told.items() if not channel.closed]

        async def tell(addr: str) -> None:
            command = request(RequestCode.UNREGISTER_CLIENT, {"clientID": self.client_id, field: group})
            try:
                await self._cluster.ask(addr, command, timeout_s=min(GOODBYE_S, self._cluster.timeout_s))
            except OrbitMQError as error:
                log.info("%s was not told that group '%s' left: %s", addr, group, error)

        await asyncio.gather(*(tell(addr) for addr in known))
