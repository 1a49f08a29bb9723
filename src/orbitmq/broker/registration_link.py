"""One name server as a broker sees it: what it should be told, and a worker that tells it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orbitmq.net.channel import Channel
from orbitmq.net.errors import RemotingError, RequestTimeout
from orbitmq.wire import fastjson
from orbitmq.wire.checksum import crc32
from orbitmq.wire.codes import RequestCode, ResponseCode, response_name
from orbitmq.wire.command import Command, request
from orbitmq.wire.errors import WireError
from orbitmq.wire.headers import (
    BrokerIdentityHeader,
    DataVersionResponse,
    RegisterBrokerHeader,
    RegisterBrokerResponse,
    parse,
    to_ext,
)

if TYPE_CHECKING:
    from orbitmq.broker.registration import Registrar

log = logging.getLogger("orbitmq.broker")

UNREGISTER_TIMEOUT_S: Final = 3.0
# A name server that comes back knows nothing: until the brokers have told it, new clients find no topic.
LONGEST_RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a name server told the broker when it registered."""

    master_addr: str | None
    ha_server_addr: str | None
    order_config: dict[str, str]


class Refused(Exception):
    """The name server answered, and the answer was no."""


class NameServerLink:
    """Connects, registers, retries. Nothing wanted is forgotten: after a failure all topics are wanted."""

    def __init__(self, owner: Registrar, addr: str) -> None:
        self.addr = addr
        self.registered = False
        self.error = "not tried yet"
        self.answer: Answer | None = None
        self._owner = owner
        self._channel: Channel | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._all_wanted = False
        self._query_first = False
        self._topics: dict[str, Any] = {}
        self._version: object = None
        self._waiting: list[asyncio.Future[str]] = []
        self._served: list[asyncio.Future[str]] = []
        self._failures = 0

    def start(self) -> None:
        if self._task is None:
            self._all_wanted = True
            self._wake.set()
            self._task = asyncio.create_task(self._work(), name=f"register-{self.addr}")

    async def stop(self, *, unregister: bool = True) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._served += self._waiting
        self._waiting = []
        self._settle("stopped")
        channel, self._channel = self._channel, None
        self.registered = False
        if channel is None or channel.closed:
            return
        if unregister:
            await self._unregister(channel)
        await channel.aclose()

    async def _unregister(self, channel: Channel) -> None:
        who = self._owner.identity
        header = BrokerIdentityHeader(
            broker_name=who.name, broker_addr=who.addr, cluster_name=who.cluster, broker_id=who.broker_id
        )
        try:
            await channel.request(
                request(RequestCode.UNREGISTER_BROKER, to_ext(header)), UNREGISTER_TIMEOUT_S
            )
        except RemotingError as error:
            log.info("not unregistered from name server %s: %s", self.addr, error.what)

    def want_all(self, *, query_first: bool) -> asyncio.Future[str]:
        # A question about the data version is enough only if nobody asks for more.
        self._query_first = query_first and (self._query_first or not self._all_wanted)
        self._all_wanted = True
        return self._wait()

    def want_topics(self, wrapper: Mapping[str, Any]) -> asyncio.Future[str] | None:
        if not self.registered:
            # All topics are due anyway; an attempt under way may have been encoded before this change.
            self._all_wanted, self._query_first = True, False
            return None
        self._topics.update(wrapper["topicConfigTable"])
        self._version = wrapper["dataVersion"]
        return self._wait()

    def _wait(self) -> asyncio.Future[str]:
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._task is None:
            waiting.set_result("stopped")
        else:
            self._waiting.append(waiting)
            self._wake.set()
        return waiting

    def _settle(self, error: str) -> None:
        for each in self._served:
            if not each.done():
                each.set_result(error)
        self._served = []

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._served, self._waiting = self._waiting, []
            self.error = await self._attempt()
            self._settle(self.error)
            if self.error:
                await self._back_off()
            elif self._all_wanted or self._topics:
                self._wake.set()

    async def _attempt(self) -> str:
        """Does what is wanted; returns what went wrong, and leaves everything wanted in that case."""
        if not self._owner.may_register():
            return "not now: a controller has to confirm that this broker is master"
        try:
            channel = await self._connected()
            if self._all_wanted:
                await self._tell_all(channel)
            if self._topics:
                await self._tell_topics(channel)
        except (RemotingError, WireError, Refused) as error:
            return self._failed(error)
        except Exception as error:
            # A worker that dies would let the broker vanish from the routes without a word.
            log.exception("registering with name server %s failed", self.addr)
            return self._failed(error)
        if self._failures:
            log.info("registered with name server %s again", self.addr)
        self._failures = 0
        return ""

    def _failed(self, error: Exception) -> str:
        self.registered = False
        self._all_wanted, self._query_first = True, False
        self._failures += 1
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        log.log(level, "not registered with name server %s, trying again: %s", self.addr, error)
        return str(error) or type(error).__name__

    async def _back_off(self) -> None:
        """Waits before the next try, longer each time, but not when somebody wants it now."""
        delay_s = min(self._owner.retry_s * 2 ** min(self._failures - 1, 10), LONGEST_RETRY_S)
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            self._wake.set()

    async def _connected(self) -> Channel:
        if self._channel is None or self._channel.closed:
            self.registered = False
            self._all_wanted, self._query_first = True, False
            self._channel = await Channel.connect(self.addr, on_lost=self._lost)
        return self._channel

    def _lost(self, channel: Channel) -> None:
        if channel is not self._channel or self._task is None:
            return
        # The name server dropped us with the connection. Not at once: it may be closing every connection.
        self.registered = False
        self._all_wanted, self._query_first = True, False
        asyncio.get_running_loop().call_later(self._owner.retry_s, self._wake.set)

    async def _tell_all(self, channel: Channel) -> None:
        self._all_wanted = False
        if self._query_first and self.registered and await self._is_current(channel):
            return
        self._query_first = False
        self._topics.clear()
        await self._register(channel, self._owner.full_body())
        self.registered = True

    async def _tell_topics(self, channel: Channel) -> None:
        wrapper = {"dataVersion": self._version, "topicConfigTable": self._topics}
        self._topics = {}
        await self._register(channel, self._owner.partial_body(wrapper))

    async def _is_current(self, channel: Channel) -> bool:
        who = self._owner.identity
        header = BrokerIdentityHeader(
            broker_name=who.name, broker_addr=who.addr, cluster_name=who.cluster, broker_id=who.broker_id
        )
        query = request(RequestCode.QUERY_DATA_VERSION, to_ext(header), self._owner.data_version())
        try:
            reply = await channel.request(query, self._owner.timeout_s)
        except RequestTimeout:
            return False
        return reply.code == ResponseCode.SUCCESS and not parse(DataVersionResponse, reply.ext).changed

    async def _register(self, channel: Channel, body: bytes) -> None:
        who = self._owner.identity
        header = RegisterBrokerHeader(
            broker_name=who.name,
            broker_addr=who.addr,
            cluster_name=who.cluster,
            ha_server_addr=who.ha_addr,
            broker_id=who.broker_id,
            compressed=self._owner.compressed,
            body_crc32=crc32(body),
        )
        command = request(RequestCode.REGISTER_BROKER, to_ext(header), body)
        reply = await channel.request(command, self._owner.timeout_s)
        if reply.code != ResponseCode.SUCCESS:
            raise Refused(f"it answered {response_name(reply.code)} ({reply.code}): {reply.remark or ''}")
        self.answer = _parse_answer(reply)
        self._owner.answered()


def _parse_answer(reply: Command) -> Answer:
    header = parse(RegisterBrokerResponse, reply.ext)
    body = fastjson.loads(reply.body) if reply.body else {}
    table = body.get("table") if isinstance(body, dict) else None
    order = {str(topic): str(value) for topic, value in table.items()} if isinstance(table, dict) else {}
    return Answer(header.master_addr or None, header.ha_server_addr or None, order)
