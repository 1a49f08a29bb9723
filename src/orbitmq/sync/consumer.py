"""Consuming in blocking code: by iteration, or by a handler that runs in threads."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from orbitmq.client import consumer
from orbitmq.client import message as asynchronous
from orbitmq.client.assignments import Rebalance
from orbitmq.client.core.advice import Advice
from orbitmq.client.decoding import arguments_of
from orbitmq.client.errors import BadRequest, Closed
from orbitmq.client.times import Duration, seconds
from orbitmq.sync.engine import Engine, Engines, Forked, blocking
from orbitmq.sync.message import Message
from orbitmq.wire.fastjson import MessageQueue

T = TypeVar("T")
Handler = Callable[..., object]
"""Its annotations say what it gets: the message, its decoded body, or both."""


class Consumer:
    """As `orbitmq.Consumer`. Use it as a context manager; any number of threads may iterate at the same time.

    with mq.consumer("billing", "orders") as inbox:
        for msg in inbox:
            with msg: ...

    With a handler the messages go to it instead, in up to `threads` threads, until the block is left:

    with mq.consumer("billing", "orders", handler=bill, threads=8) as consumer:
        consumer.wait()
    """

    def __init__(
        self,
        engines: Engines,
        group: str,
        topics: str | Sequence[str] | Mapping[str, Any],
        handler: Handler | None,
        threads: int,
        options: dict[str, Any],
    ) -> None:
        if "concurrency" in options:
            raise BadRequest("concurrency= is for asynchronous consumers", hint="say threads= here")
        self.group = group
        self._engines = engines
        self._topics = topics
        self._handler = handler
        self._options = {**options, "concurrency": threads}
        self._opened: tuple[Engine, consumer.Consumer] | None = None
        self._handling: asyncio.Task[None] | None = None
        self._ended = threading.Event()

    def _use(self) -> tuple[Engine, consumer.Consumer]:
        if self._opened is None:
            raise Closed(
                f"the consumer of group '{self.group}' is not running",
                hint="use it inside `with mq.consumer(...) as inbox`",
            )
        if self._opened[0].forked:
            raise Forked(
                f"the consumer of group '{self.group}' was started before this process was forked",
                hint="start consumers in the child, after the fork: the parent goes on with this one",
            )
        return self._opened

    # --- life -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> Self:
        """Joins the group; with a handler, messages come to it from now on."""
        if self._opened is not None:
            raise BadRequest(
                f"the consumer of group '{self.group}' was started before", hint="make a new one"
            )
        engine = self._engines.current()

        async def started() -> consumer.Consumer:
            twin = await engine.client.consumer(self.group, self._topics, **self._options).start()
            if self._handler is not None:
                self._handle(engine, twin, self._handler)
            return twin

        self._opened = (engine, engine.run(started()))
        return self

    def _handle(self, engine: Engine, twin: consumer.Consumer, handler: Handler) -> None:
        """In the loop's thread."""
        self._handling = asyncio.create_task(twin.run(in_threads(handler, engine)), name=f"sync-{self.group}")
        self._handling.add_done_callback(lambda _: self._ended.set())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Handlers that run are waited for, progress is saved, queues are given back. Twice does no harm."""
        if self._opened is None or self._opened[0].forked or self._engines.closed:
            return
        engine, twin = self._opened
        engine.refuse_in_handler("close()")
        engine.run(twin.aclose())

    def stop(self) -> None:
        """Ends every iteration and `wait`, from any thread, handlers included; closing is still needed."""
        engine, twin = self._use()

        async def stopped() -> None:
            twin.stop()

        engine.run(stopped())

    def wait(self, timeout: Duration | None = None) -> bool:
        """Blocks while the handler works, until `stop`, or the time is over (False). Raises what ended it."""
        self._use()
        if self._handling is None:
            raise BadRequest(
                "there is no handler to wait for", hint="pass handler=, or iterate over the consumer"
            )
        if not self._ended.wait(None if timeout is None else seconds(timeout, "timeout", zero=True)):
            return False
        if not self._handling.cancelled() and (error := self._handling.exception()) is not None:
            raise error
        return True

    def run(self, handler: Handler) -> None:
        """Calls the handler in up to `threads` threads for every message, and blocks until `stop`."""
        engine, twin = self._use()
        if self._handling is not None:
            raise BadRequest(f"the consumer of group '{self.group}' has a handler", hint="use wait()")

        async def begin() -> None:
            self._handle(engine, twin, handler)

        self._handler = handler
        engine.run(begin())
        self.wait()

    # --- messages ---------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        """Every message, until the consumer is stopped."""
        while (message := self.receive(None)) is not None:
            yield message

    def receive(self, timeout: Duration | None = 1.0) -> Message | None:
        """The next message; None when none came in time, or the consumer was stopped.

        A message that is never settled holds its queue's progress: use `with message`, or settle it.
        """
        engine, twin = self._use()
        if self._handler is not None:
            raise BadRequest(
                f"the messages of group '{self.group}' go to its handler",
                hint="leave handler= out to receive them here",
            )
        limit_s = None if timeout is None else seconds(timeout, "timeout", zero=True)
        taken: list[asynchronous.Message] = []

        async def take() -> None:
            try:
                async with asyncio.timeout(limit_s):
                    taken.append(await anext(aiter(twin)))
            except (StopAsyncIteration, TimeoutError):
                return

        try:
            engine.run(take())
        except BaseException as error:
            # Ctrl-C may come just when a message does, which nobody will see: it has to be handed out again.
            engine.post(functools.partial(_give_back, taken, error))
            raise
        return Message(taken[0], engine) if taken else None

    # --- seeing and steering ----------------------------------------------------------------------------------

    commit = blocking(consumer.Consumer.commit)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues owned now."""
        return self._look(lambda twin: twin.queues)

    @property
    def members(self) -> list[str]:
        """Client ids of the group, as last heard."""
        return self._look(lambda twin: twin.members)

    def positions(self) -> dict[MessageQueue, int]:
        """Per queue the offset before which everything is finished."""
        return self._look(lambda twin: twin.positions())

    @property
    def rebalances(self) -> list[Rebalance]:
        """The last changes of the owned queues, each with its pause; the newest is last."""
        return self._look(lambda twin: twin.rebalances)

    def reset(self, queue: MessageQueue, offset: int) -> None:
        """Goes on with an owned queue at another offset; messages pulled of it before are forgotten."""
        self._look(lambda twin: twin.reset(queue, offset))

    def advice(self) -> Advice | None:
        """How many threads would keep the processor busy, from measured times; None: not known yet."""
        return self._look(lambda twin: twin.advice())

    def _look(self, question: Callable[[consumer.Consumer], T]) -> T:
        engine, twin = self._use()

        async def look() -> T:
            return question(twin)

        return engine.run(look())


def in_threads(handler: Handler, engine: Engine) -> Callable[[asynchronous.Message], Awaitable[None]]:
    """The handler as the asynchronous consumer calls it."""
    arguments = arguments_of(handler)

    async def call(msg: asynchronous.Message) -> None:
        await asyncio.to_thread(handler, *arguments(Message(msg, engine)))

    return call


def _give_back(taken: list[asynchronous.Message], error: BaseException) -> None:
    for message in taken:
        message.fail(error)
