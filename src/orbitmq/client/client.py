"""The entrance: `connect` gives a `Client`, from which producers, consumers, readers and the administration come."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Generator, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from orbitmq.client.cluster import DEFAULT_NAMESRV_PORT, Clock, Cluster, parse_namesrv, wall_clock_ms
from orbitmq.client.errors import BadRequest, Closed
from orbitmq.client.identity import local_ip, make_client_id
from orbitmq.client.presence import Presence
from orbitmq.client.route_watch import RouteChanged, RouteWatch
from orbitmq.client.routes import TopicRoute
from orbitmq.client.scope import Scope
from orbitmq.client.times import Duration, seconds
from orbitmq.net.channel import ChannelPool
from orbitmq.wire.message_id import UniqIdFactory

if TYPE_CHECKING:
    from orbitmq.client.administration import Administration
    from orbitmq.client.check_back import Check
    from orbitmq.client.consumer import Consumer
    from orbitmq.client.producer import Producer
    from orbitmq.client.reading import Reader
    from orbitmq.client.tracing import Interceptor

NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
DEFAULT_NAMESRV: Final = f"127.0.0.1:{DEFAULT_NAMESRV_PORT}"
DEFAULT_TIMEOUT_S: Final = 3.0


class Part(Protocol):
    """Something of a client that has to be closed with it."""

    async def aclose(self) -> None: ...


def connect(
    namesrv: str | None = None,
    *,
    timeout: Duration = DEFAULT_TIMEOUT_S,
    client_id: str | None = None,
    instance: str | None = None,
    interceptors: Sequence[Interceptor] = (),
    tls: ssl.SSLContext | None = None,
    clock: Clock = wall_clock_ms,
    rng: Random | None = None,
) -> Client:
    """A client of the cluster behind these name servers.

    `namesrv` is "host:port", several separated by ";"; without it NAMESRV_ADDR of the environment counts, then
    127.0.0.1:9876. Nothing is contacted before the first use. Use it as `async with connect(...) as mq`.
    """
    if namesrv is None:
        namesrv = os.environ.get(NAMESRV_VARIABLE) or DEFAULT_NAMESRV
    if not isinstance(namesrv, str):
        raise BadRequest(
            f"the name server address is {type(namesrv).__name__}, not text",
            hint='pass "host:port", for example connect("127.0.0.1:9876")',
        )
    parse_namesrv(namesrv)  # a bad address is refused here, where it was written
    rng = rng or Random()
    return Client(
        namesrv,
        timeout_s=seconds(timeout, "timeout"),
        client_id=client_id or make_client_id(local_ip(), os.getpid(), rng.getrandbits(48), instance),
        interceptors=tuple(interceptors),
        tls=tls,
        clock=clock,
        rng=rng,
    )


class Client:
    """Connections, heartbeats and routes that all producers and consumers made from it share.

    Bound to the event loop of its first use. Closing it closes everything made from it.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        timeout_s: float,
        client_id: str,
        interceptors: tuple[Interceptor, ...],
        tls: ssl.SSLContext | None,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.client_id = client_id
        self.interceptors = interceptors
        self.clock = clock
        self.rng = rng
        self.closed = False
        self.scope = Scope("client")
        pool = ChannelPool(
            on_request=lambda channel, command: self.presence.serve(channel, command),
            on_lost=lambda channel: self.presence.connection_lost(channel),
            connect_timeout_s=timeout_s,
            tls=tls,
        )
        self.cluster = Cluster(namesrv, timeout_s=timeout_s, clock=clock, rng=rng, pool=pool)
        self.presence = Presence(self.cluster, client_id)
        self.routes = RouteWatch(self.cluster)
        self.cluster.routes.on_change = self._route_learnt
        # One factory for all producers: two would count separately and could make equal ids.
        self.ids = UniqIdFactory(local_ip(), os.getpid(), clock, process_hash=rng.getrandbits(32))
        self._parts: list[tuple[int, Part]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._admin: Administration | None = None
        self._closing: asyncio.Future[None] | None = None
        for interceptor in interceptors:
            interceptor.attach(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Client {self.client_id} of {';'.join(self.cluster.namesrv_addrs)}, {state}>"

    # --- what it gives ----------------------------------------------------------------------------------------

    def producer(
        self,
        group: str = "orbitmq-client",
        *,
        timeout: Duration | None = None,
        retries: int = 2,
        retry_not_stored: bool = False,
        choice: str = "round_robin",
        compression: str | None = "zlib",
        compress_from: int = 4096,
        batch_bytes: int = 512 * 1024,
        batch_messages: int = 4096,
        linger: Duration = 0.005,
        check: Check | None = None,
    ) -> Producer:
        """Sends messages; see `Producer` for the options. Several may share a group."""
        self.check_open()
        from orbitmq.client.producer import Producer

        return Producer(
            self,
            group,
            timeout=timeout,
            retries=retries,
            retry_not_stored=retry_not_stored,
            choice=choice,
            compression=compression,
            compress_from=compress_from,
            batch_bytes=batch_bytes,
            batch_messages=batch_messages,
            linger=linger,
            check=check,
        )

    def consumer(
        self, group: str, topics: str | Sequence[str] | Mapping[str, Any], **options: Any
    ) -> Consumer:
        """Receives messages as a member of a group; see `Consumer` for the options."""
        from orbitmq.client.consumer import Consumer

        self.check_open()
        return Consumer(self, group, topics, **options)

    def reader(self, topic: str, **options: Any) -> Reader:
        """Reads a topic from any position, without a group; see `Reader` for the options."""
        from orbitmq.client.reading import Reader

        self.check_open()
        return Reader(self, topic, **options)

    @property
    def admin(self) -> Administration:
        """Topics, groups, lag, dead letters, schedule: looked at and changed."""
        self.check_open()
        from orbitmq.client.administration import Administration

        if self._admin is None:
            self._admin = Administration(self)
        return self._admin

    def on_route_change(self, topic: str, callback: RouteChanged) -> Callable[[], None]:
        """Calls back with each new route of a topic (None: it is gone), until the function given back is called."""
        return self.routes.watch(topic, callback)

    def _route_learnt(self, route: TopicRoute) -> None:
        """Whoever learns of a broker first, the broker hears of this client, and all that use the topic follow."""
        self.presence.wake()
        self.routes.note(route.topic, route)

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts heartbeats and route refreshes. The first use does it by itself."""
        self.check_open()
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            raise BadRequest(
                "the client is used from another event loop than its first one",
                hint="make one client per event loop; orbitmq.sync serves threads",
            )
        self._loop = loop
        self.scope.keep(self.routes.run, name="routes")
        self.scope.keep(self.presence.run, name="heartbeats")

    def check_open(self) -> None:
        if self.closed:
            raise Closed("the client is closed", hint="open a new one with orbitmq.connect(...)")

    def adopt(self, part: Part, *, closed_first: bool = False) -> None:
        """Closes `part` with the client. Consumers are closed first: their handlers may still send."""
        self._parts.append((0 if closed_first else 1, part))

    def release(self, part: Part) -> None:
        """`part` was closed by itself."""
        self._parts = [(phase, one) for phase, one in self._parts if one is not part]

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        """`mq = await orbitmq.connect(...)`, for programs that close it themselves."""
        return self.__aenter__().__await__()

    async def close(self) -> None:
        """Closes consumers, producers, tasks and connections, in this order; a second call waits for the first."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        errors: list[Exception] = []
        try:
            for phase in (0, 1):
                parts = [part for order, part in reversed(self._parts) if order == phase]
                results = await asyncio.gather(*(part.aclose() for part in parts), return_exceptions=True)
                errors += [result for result in results if isinstance(result, Exception)]
            self._parts.clear()
        finally:
            self.closed = True
            await self.scope.aclose()
            await self.cluster.close()
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("parts failed to close", errors)
