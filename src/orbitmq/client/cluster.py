"""A connection to a whole cluster: which name server to ask, where a topic lives, and requests to brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from random import Random
from types import TracebackType
from typing import Final, Self, TypeVar

from orbitmq.client.errors import (
    BadRequest,
    NotFound,
    OrbitMQError,
    Unreachable,
    from_remoting,
    from_response,
)
from orbitmq.client.routes import ClusterMap, RouteCache, TopicRoute, parse_cluster_map, parse_route
from orbitmq.net.channel import Channel, ChannelPool
from orbitmq.net.errors import RemotingError
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.errors import WireError
from orbitmq.wire.topics import DEFAULT_TOPIC

DEFAULT_NAMESRV_PORT: Final = 9876
DEFAULT_TIMEOUT_S: Final = 3.0
# Whoever asks because a broker failed shares the answer with all who ask within this time.
ROUTE_PAUSE_S: Final = 0.1
# How long a master whose place another one has taken may still answer what it was asked.
REPLACED_GRACE_S: Final = 0.5

Clock = Callable[[], int]
T = TypeVar("T")


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def parse_namesrv(text: str) -> tuple[str, ...]:
    """`host[:port]`, several separated by `;` (or `,`, which people type); the port defaults to 9876."""
    addrs: list[str] = []
    for part in text.replace(",", ";").split(";"):
        addr = part.strip()
        if not addr:
            continue
        host, colon, port = addr.rpartition(":")
        if not colon or addr.endswith("]"):  # a name without port, or an IPv6 address in brackets without one
            addr = f"{addr}:{DEFAULT_NAMESRV_PORT}"
        elif not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise BadRequest(
                f"'{part.strip()}' is not a name server address",
                hint="write HOST:PORT, several separated by ';', for example 127.0.0.1:9876",
            )
        if addr not in addrs:
            addrs.append(addr)
    if not addrs:
        raise BadRequest("no name server address is given", hint="pass -n HOST:PORT or set NAMESRV_ADDR")
    return tuple(addrs)


class Cluster:
    """Name servers, routes and pooled connections. Use it as an async context manager.

    One name server is chosen at random and kept until it fails, then the next in turn: all of them hold the
    same routes, and staying with one keeps the number of connections small.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        clock: Clock = wall_clock_ms,
        rng: Random | None = None,
        pool: ChannelPool | None = None,
    ) -> None:
        self.namesrv_addrs = parse_namesrv(namesrv)
        self.timeout_s = timeout_s
        self.clock = clock
        self.rng = rng or Random()
        self.routes = RouteCache()
        self._pool = pool or ChannelPool(connect_timeout_s=timeout_s)
        self._namesrv_index = self.rng.randrange(len(self.namesrv_addrs))
        self._renewing: dict[str, asyncio.Lock] = {}
        self._renewed: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._pool.close()

    @property
    def namesrv(self) -> str:
        """The name server that is asked next."""
        return self.namesrv_addrs[self._namesrv_index]

    async def request(
        self,
        addr: str,
        command: Command,
        *,
        accept: Collection[int] = (ResponseCode.SUCCESS,),
        timeout_s: float | None = None,
    ) -> Command:
        """Asks one server and returns its answer; codes that are not accepted are raised."""
        response = await self.ask(addr, command, timeout_s=timeout_s)
        if response.code not in accept:
            raise from_response(command.code, response.code, response.remark, addr)
        return response

    async def ask(self, addr: str, command: Command, *, timeout_s: float | None = None) -> Command:
        """Asks one server and returns its answer, whatever its code."""
        try:
            channel = await self._pool.get(addr)
            return await channel.request(command, timeout_s or self.timeout_s)
        except RemotingError as error:
            raise from_remoting(error) from error

    async def channel(self, addr: str) -> Channel:
        """The connection to a server, made if there is none."""
        try:
            return await self._pool.get(addr)
        except RemotingError as error:
            raise from_remoting(error) from error

    def living_channel(self, addr: str) -> Channel | None:
        """The connection to a server if there is one now; never connects."""
        return self._pool.peek(addr)

    async def oneway(self, addr: str, command: Command) -> None:
        """Sends without waiting for an answer: delivery is not known."""
        try:
            channel = await self._pool.get(addr)
            channel.oneway(command)
            await channel.drain()
        except RemotingError as error:
            raise from_remoting(error) from error

    async def ask_namesrv(
        self, command: Command, *, accept: Collection[int] = (ResponseCode.SUCCESS,)
    ) -> Command:
        """Asks the current name server, and the others in turn if it does not answer."""
        failures: list[str] = []
        for _ in self.namesrv_addrs:
            try:
                return await self.request(self.namesrv, command, accept=accept)
            except Unreachable as error:
                failures.append(str(error))
                self._namesrv_index = (self._namesrv_index + 1) % len(self.namesrv_addrs)
        raise Unreachable(
            "no name server answers: " + "; ".join(failures),
            hint="start one with `orbitmq server`, or pass its address with -n HOST:PORT",
        )

    async def tell_namesrvs(self, make: Callable[[], Command]) -> dict[str, Command]:
        """Sends a change to every name server, since they do not talk to each other; all must take it."""
        answers: dict[str, Command] = {}
        for addr in self.namesrv_addrs:
            answers[addr] = await self.request(addr, make())
        return answers

    async def cluster_map(self) -> ClusterMap:
        response = await self.ask_namesrv(request(RequestCode.GET_BROKER_CLUSTER_INFO))
        return _understood(parse_cluster_map, response.body)

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """The route of a topic; NotFound says whether the topic or every broker is missing."""
        route = await self.find_route(topic, refresh=refresh)
        if route is None:
            raise await self._no_route(topic)
        return route

    async def find_route(self, topic: str, *, refresh: bool = False) -> TopicRoute | None:
        """The route of a topic, or None if no name server knows it."""
        if not refresh and (known := self.routes.fresh(topic, self.clock())):
            return known
        command = request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
        )
        try:
            response = await self.ask_namesrv(
                command, accept=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
            )
        except Unreachable:
            # Brokers work on without name servers, so the last known route is still worth trying.
            if old := self.routes.stale(topic):
                return old
            raise
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            if (old := self.routes.stale(topic)) and not await self._is_known(old):
                return old
            self.routes.forget(topic)
            return None
        route = _understood(lambda body: parse_route(topic, body), response.body)
        self._leave_replaced(self.routes.stale(topic), route)
        self.routes.put(route, self.clock())
        return route

    async def _is_known(self, route: TopicRoute) -> bool:
        """Whether the name server has heard of the route's brokers: one that has just started has heard of none, and
        what it does not know of their topics says nothing.
        """
        known = (await self.cluster_map()).brokers
        return any(name in known for name in route.brokers)

    async def renewed_route(self, topic: str) -> TopicRoute | None:
        """The route as of now, for those whose broker failed: many may ask, the name server is asked seldom."""
        now = asyncio.get_running_loop().time
        async with self._renewing.setdefault(topic, asyncio.Lock()):
            if now() - self._renewed.get(topic, -ROUTE_PAUSE_S) < ROUTE_PAUSE_S:
                return self.routes.stale(topic)
            try:
                return await self.find_route(topic, refresh=True)
            finally:
                self._renewed[topic] = now()

    def _leave_replaced(self, before: TopicRoute | None, route: TopicRoute) -> None:
        """A master whose place another one has taken may be frozen: nobody goes on waiting for its answers."""
        if before is None:
            return
        for name, broker in route.brokers.items():
            old = before.brokers.get(name)
            if old is None or old.master is None or broker.master in (None, old.master):
                continue
            asyncio.get_running_loop().call_later(REPLACED_GRACE_S, self._leave, old.master)

    def _leave(self, addr: str) -> None:
        listed = (
            addr in broker.addrs.values() for route in self.routes.all() for broker in route.brokers.values()
        )
        if not any(listed):  # as a slave it is in its place again
            self._pool.drop(addr)

    async def publish_route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """The route to send along: the topic's own, or the one its first message will create."""
        route = await self.find_route(topic, refresh=refresh)
        if route is not None:
            return route
        template = await self.find_route(DEFAULT_TOPIC, refresh=refresh)
        if template is None:
            raise await self._no_route(topic)
        return template.as_template_for(topic)

    async def broker_addr(self, name_or_addr: str) -> str:
        """The master address of a broker given by name; an address is returned as it is."""
        if ":" in name_or_addr:
            return name_or_addr
        known = (await self.cluster_map()).brokers
        broker = known.get(name_or_addr)
        if broker is None:
            names = ", ".join(sorted(known)) or "none"
            raise NotFound(f"no broker is called '{name_or_addr}'", hint=f"registered brokers: {names}")
        if broker.readable_addr is None:
            raise NotFound(f"broker '{name_or_addr}' has no address", hint="wait until it registers again")
        return broker.master or broker.readable_addr

    async def _no_route(self, topic: str) -> OrbitMQError:
        brokers = (await self.cluster_map()).brokers
        if not brokers:
            return NotFound(
                f"topic '{topic}' has no route: no broker is registered at {self.namesrv}",
                hint="start a broker with `orbitmq broker -n "
                f"{self.namesrv}`, or check that it uses this name server",
                code=ResponseCode.TOPIC_NOT_EXIST,
                retryable=True,  # brokers that come back register by themselves
            )
        return NotFound(
            f"topic '{topic}' does not exist on any of {len(brokers)} broker(s) known to {self.namesrv}",
            hint=f"make it with `orbitmq topic create {topic}`, or check the name with `orbitmq topic list`",
            code=ResponseCode.TOPIC_NOT_EXIST,
        )


def _understood(parse: Callable[[bytes], T], body: bytes) -> T:
    try:
        return parse(body)
    except WireError as error:
        raise OrbitMQError(
            f"the name server's answer is not understood: {error}",
            hint="check that the address is a name server",
        ) from error
