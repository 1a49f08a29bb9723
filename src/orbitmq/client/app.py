"""Handlers by decorator: a program that reacts to messages, in the fewest lines.

app = orbitmq.App("127.0.0.1:9876")

@app.on("orders", group="billing", tags="paid", concurrency=8)
async def bill(order: Order) -> None: ...

app.run()                    # or `orbitmq run module:app`, or `async with app:` inside another program
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from orbitmq.client.client import Client, connect
from orbitmq.client.consumer import Consumer
from orbitmq.client.consumer_options import ConsumerOptions, check_options
from orbitmq.client.errors import BadRequest, Closed
from orbitmq.client.handling import Call, caller
from orbitmq.client.message import Message
from orbitmq.client.subscriptions import Filter, Sql, Topics

if TYPE_CHECKING:
    from orbitmq.client.producer import Producer

log = logging.getLogger("orbitmq.app")

H = TypeVar("H", bound=Callable[..., Any])
Hook = Callable[..., Any]

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class _Group:
    """All handlers of one consumer group: they are one member with one set of subscriptions."""

    options: ConsumerOptions
    filters: dict[str, Filter | None] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)

    async def dispatch(self, msg: Message) -> None:
        await self.calls[msg.topic](msg)


class App:
    """Handlers, hooks and the client they share. One App runs in one event loop at a time."""

    def __init__(self, namesrv: str | None = None, **connect_options: Any) -> None:
        self.namesrv = namesrv
        self._connect_options = connect_options
        self._groups: dict[str, _Group] = {}
        self._checks: dict[str, Hook] = {}
        self._startup: list[Hook] = []
        self._shutdown: list[Hook] = []
        self._client: Client | None = None
        self._producers: dict[str, Producer] = {}
        self._consumers: dict[str, Consumer] = {}
        self._handling: list[asyncio.Task[None]] = []
        self._stopping: asyncio.Event | None = None

    # --- decorators -------------------------------------------------------------------------------------------

    def on(
        self,
        topics: str | Sequence[str] | Mapping[str, Filter | None],
        *,
        group: str,
        tags: str | None = None,
        sql: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[H], H]:
        """Calls the function for the messages of these topics, as a member of the group.

        Several handlers may share a group, each with topics of its own and all with the same options.
        """
        check_options(options)
        filters = _filters(topics, tags, sql)

        def register(handler: H) -> H:
            entry = self._groups.setdefault(group, _Group(options))
            if entry.options != options:
                raise BadRequest(
                    f"two handlers of group '{group}' have different options",
                    hint="a group is one consumer: give its handlers the same options, or another group",
                )
            call = caller(handler)
            for topic, wish in filters.items():
                if topic in entry.calls:
                    raise BadRequest(
                        f"topic '{topic}' has a handler in group '{group}' already",
                        hint="use another group to handle every message twice",
                    )
                entry.filters[topic] = wish
                entry.calls[topic] = call
            return handler

        return register

    def on_check(self, group: str) -> Callable[[H], H]:
        """Asked by brokers what became of a transaction of this producer group."""

        def register(handler: H) -> H:
            self._checks[group] = handler
            return handler

        return register

    def on_startup(self, hook: H) -> H:
        """Called before the first message; with the app if it takes an argument."""
        self._startup.append(hook)
        return hook

    def on_shutdown(self, hook: H) -> H:
        """Called after the last message; with the app if it takes an argument."""
        self._shutdown.append(hook)
        return hook

    # --- while it runs ----------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        if self._client is None:
            raise Closed(
                "the app does not run", hint="use it in handlers and hooks, or inside `async with app:`"
            )
        return self._client

    @property
    def handlers(self) -> dict[str, list[str]]:
        """Group to topics."""
        return {group: sorted(entry.calls) for group, entry in sorted(self._groups.items())}

    def consumer(self, group: str) -> Consumer:
        """The running consumer of a group, to look at its queues, pauses and advice."""
        if group not in self._consumers:
            raise BadRequest(f"no handler of group '{group}' runs", hint=f"groups: {', '.join(self._groups)}")
        return self._consumers[group]

    def producer(self, group: str = "orbitmq-app", **options: Any) -> Producer:
        """A producer of the app's client; the same one for the same group."""
        found = self._producers.get(group)
        if found is None:
            found = self._producers[group] = self.client.producer(group, **options)
        return found

    async def start(self) -> None:
        """Connects, calls the startup hooks, joins all groups."""
        if self._client is not None:
            raise BadRequest("the app runs already", hint="stop it first")
        self._client = connect(self.namesrv, **self._connect_options)
        self._stopping = asyncio.Event()
        try:
            await self._client.__aenter__()
            for group, handler in self._checks.items():
                self.producer(group).on_check(handler)
            for hook in self._startup:
                await self._call(hook)
            for group, entry in self._groups.items():
                self._consumers[group] = await self._client.consumer(
                    group, entry.filters, **entry.options
                ).start()
            self._handling = [
                asyncio.create_task(consumer.run(self._groups[group].dispatch), name=f"app-{group}")
                for group, consumer in self._consumers.items()
            ]
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ends in order: no new messages, handlers finish, progress is saved, shutdown hooks, connections."""
        if self._stopping is not None:
            self._stopping.set()
        client = self._client
        if client is None:
            return
        ended: list[BaseException | None] = []
        try:
            await asyncio.gather(*(consumer.aclose() for consumer in self._consumers.values()))
            ended = await asyncio.gather(*self._handling, return_exceptions=True)
            for hook in self._shutdown:
                await self._call(hook)
        finally:
            self._consumers.clear()
            self._producers.clear()
            self._handling = []
            self._client = None
            await client.close()
        for result in ended:
            if isinstance(result, Exception):
                raise result

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def stop_soon(self) -> None:
        """Makes `serve` end; may be called from a handler."""
        if self._stopping is not None:
            self._stopping.set()

    async def serve(self, *, ready: Callable[[], None] | None = None) -> None:
        """Runs until `stop_soon`, SIGINT or SIGTERM; raises what ended a consumer before that."""
        async with self:
            assert self._stopping is not None
            with self._stopped_by_signals(self._stopping):
                if ready is not None:
                    ready()
                stopping = asyncio.create_task(self._stopping.wait(), name="app-stop")
                await asyncio.wait([stopping, *self._handling], return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await stopping

    def run(self, *, ready: Callable[[], None] | None = None) -> None:
        """`serve` in an event loop of its own: the last line of a program."""
        main = self.serve(ready=ready)
        try:
            import uvloop
        except ImportError:  # no wheel for this platform: slower, the same otherwise
            asyncio.run(main)
        else:
            uvloop.run(main)

    async def _call(self, hook: Hook) -> None:
        result: Awaitable[Any] | Any = hook(self) if inspect.signature(hook).parameters else hook()
        if inspect.isawaitable(result):
            await result

    @contextlib.contextmanager
    def _stopped_by_signals(self, stopping: asyncio.Event) -> Iterator[None]:
        """The first signal stops in order; a second one ends the process as usual."""
        loop = asyncio.get_running_loop()
        caught: list[signal.Signals] = []

        def stop() -> None:
            for number in caught:
                loop.remove_signal_handler(number)
            caught.clear()
            stopping.set()

        for number in STOP_SIGNALS:
            try:
                loop.add_signal_handler(number, stop)
            except (NotImplementedError, RuntimeError, ValueError):
                # Windows, or not the main thread: whoever runs the loop there stops the app by `stop_soon`.
                log.debug("%s does not stop the app here", number.name)
            else:
                caught.append(number)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)


def _filters(topics: Topics, tags: str | None, sql: str | None) -> dict[str, Filter | None]:
    if tags is not None and sql is not None:
        raise BadRequest("both tags= and sql= are given", hint="choose one; SQL can compare TAGS too")
    common: Filter | None = tags if sql is None else Sql(sql)
    if isinstance(topics, Mapping):
        return dict(topics)
    return dict.fromkeys([topics] if isinstance(topics, str) else topics, common)
