"""`connect` for blocking code, and what comes from it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from orbitmq.client import administration
from orbitmq.client.client import DEFAULT_TIMEOUT_S
from orbitmq.client.cluster import Clock, parse_namesrv, wall_clock_ms
from orbitmq.client.times import Duration, seconds
from orbitmq.sync.consumer import Consumer, Handler
from orbitmq.sync.engine import Engine, Engines, blocking, in_batches
from orbitmq.sync.producer import Producer
from orbitmq.sync.reader import Reader

if TYPE_CHECKING:
    from orbitmq.client.tracing import Interceptor


def connect(
    namesrv: str | None = None,
    *,
    timeout: Duration = DEFAULT_TIMEOUT_S,
    client_id: str | None = None,
    instance: str | None = None,
    interceptors: Sequence[Interceptor] = (),
    tls: ssl.SSLContext | None = None,
    clock: Clock = wall_clock_ms,
) -> Client:
    """As `orbitmq.connect`. Nothing is started before the first use."""
    if namesrv is not None:
        parse_namesrv(namesrv)  # a bad address is refused here, where it was written
    options = {
        "namesrv": namesrv,
        "timeout": seconds(timeout, "timeout"),
        "client_id": client_id,
        "instance": instance,
        "interceptors": tuple(interceptors),
        "tls": tls,
        "clock": clock,
    }
    return Client(Engines(options))


class Client:
    """Shared by any number of threads. Closing it closes everything made from it."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._producers: dict[str, Producer] = {}

    def __repr__(self) -> str:
        state = "closed" if self._engines.closed else "open"
        return f"<orbitmq.sync.Client, {state}>"

    @property
    def closed(self) -> bool:
        return self._engines.closed

    @property
    def client_id(self) -> str:
        """How brokers call this client; another one in a forked child."""
        return self._engines.current().client.client_id

    def producer(self, group: str = "orbitmq-client", **options: Any) -> Producer:
        """Sends messages; see `orbitmq.Producer` for the options. Any number of threads may share it.

        Asked for again with the same group and without options it is the same one: `mq.producer("app").send(...)` may
        be written in a loop.
        """
        self._engines.check_open()
        if options:
            return Producer(self._engines, group, options)
        with self._engines.lock:
            return self._producers.setdefault(group, Producer(self._engines, group, {}))

    def consumer(
        self,
        group: str,
        topics: str | Sequence[str] | Mapping[str, Any],
        *,
        handler: Handler | None = None,
        threads: int = 1,
        **options: Any,
    ) -> Consumer:
        """Receives messages as a member of a group; see `orbitmq.Consumer` for the options.

        Without a handler it is iterated over. With one, `handler(message)` is called in up to `threads` threads.
        """
        self._engines.check_open()
        return Consumer(self._engines, group, topics, handler, threads, options)

    def reader(self, topic: str, **options: Any) -> Reader:
        """Reads a topic from any position, without a group; see `orbitmq.Reader` for the options."""
        self._engines.check_open()
        return Reader(self._engines, topic, **options)

    @property
    def admin(self) -> Administration:
        """Topics, groups, lag, dead letters, schedule: looked at and changed."""
        self._engines.check_open()
        return Administration(self._engines)

    def __enter__(self) -> Self:
        self._engines.current()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Handlers that run are waited for; then everything is closed. Closing twice does no harm."""
        self._engines.close()


class Administration:
    """As `orbitmq.Administration`, each call returning when it is done."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def _use(self) -> tuple[Engine, administration.Administration]:
        engine = self._engines.current()
        return engine, engine.client.admin

    topics = blocking(administration.Administration.topics)
    topic = blocking(administration.Administration.topic)
    route = blocking(administration.Administration.route)
    create_topic = blocking(administration.Administration.create_topic)
    grow_topic = blocking(administration.Administration.grow_topic)
    delete_topic = blocking(administration.Administration.delete_topic)
    groups = blocking(administration.Administration.groups)
    groups_of = blocking(administration.Administration.groups_of)
    members = blocking(administration.Administration.members)
    create_group = blocking(administration.Administration.create_group)
    delete_group = blocking(administration.Administration.delete_group)
    progress = blocking(administration.Administration.progress)
    lag = blocking(administration.Administration.lag)
    reset = blocking(administration.Administration.reset)
    apply = blocking(administration.Administration.apply)
    message = blocking(administration.Administration.message)
    messages_by_key = blocking(administration.Administration.messages_by_key)
    dead_groups = blocking(administration.Administration.dead_groups)
    redrive = blocking(administration.Administration.redrive)
    scheduled = blocking(administration.Administration.scheduled)
    cancel = blocking(administration.Administration.cancel)
    open_transactions = blocking(administration.Administration.open_transactions)
    brokers = blocking(administration.Administration.brokers)
    clusters = blocking(administration.Administration.clusters)

    def dead_letters(self, group: str, **wanted: Any) -> Iterator[administration.DeadLetter]:
        """What a group could not handle, in the order of giving up."""
        engine, twin = self._use()
        return in_batches(engine, lambda: twin.dead_letters(group, **wanted))
