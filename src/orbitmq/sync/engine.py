"""What is behind a blocking client in one process: a loop thread, the asynchronous client on it, a thread pool.

A fork leaves a child with the objects but without the threads. So every use looks whether it is still in the process
that made the engine; the child gets a new one, and nothing of the parent's is touched.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from orbitmq.client.client import Client, connect
from orbitmq.client.errors import BadRequest, Closed, OrbitMQError
from orbitmq.loop_thread import LoopClosed, LoopThread

P = ParamSpec("P")
T = TypeVar("T")

_HANDLER_THREAD: Final = "orbitmq-handler"


class Forked(OrbitMQError):
    """The object belongs to the process that this one was forked from."""


class Engine:
    """Belongs to one process. `client` is only touched in its loop's thread."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._thread = LoopThread("orbitmq-client", workers=_HANDLER_THREAD)
        try:
            self.client: Client = self._thread.run(_opened(options))
        except BaseException:
            self._thread.close()
            raise

    @property
    def forked(self) -> bool:
        return self._thread.forked

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._thread.run(work)
        except LoopClosed:
            raise Closed(
                "the client is closed", hint="open a new one with orbitmq.sync.connect(...)"
            ) from None

    def post(self, action: Callable[[], object]) -> None:
        """Has something done in the loop's thread without waiting for it."""
        self._thread.post(action)

    def refuse_in_handler(self, what: str) -> None:
        if threading.current_thread().name.startswith(_HANDLER_THREAD):
            raise BadRequest(
                f"{what} was called by a handler, for whose end it would wait",
                hint="call stop() of the consumer there, and close where it was opened",
            )

    def leave(self) -> None:
        """In a forked child: the parent goes on with it."""
        self._thread.leave()

    def close(self) -> None:
        """Handlers that run are waited for, as the asynchronous client does it."""
        self.refuse_in_handler("close()")
        try:
            self._thread.run(self.client.close())
        except LoopClosed:
            return
        finally:
            self._thread.close()


async def _opened(options: dict[str, Any]) -> Client:
    client = connect(**options)
    client.start()
    return client


class Engines:
    """The engine of the process at hand, opened when it is first needed. Safe to use from any thread."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._closed = False
        _all.add(self)

    @property
    def lock(self) -> AbstractContextManager[object]:
        """For what is made once per engine, and for nothing that waits for a handler."""
        return self._lock

    @property
    def closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        if self._closed:
            raise Closed("the client is closed", hint="open a new one with orbitmq.sync.connect(...)")

    def current(self) -> Engine:
        self.check_open()
        engine = self._engine
        if engine is not None:
            return engine
        with self._lock:
            self.check_open()
            if self._engine is None:
                self._engine = Engine(self._options)
            return self._engine

    def after_fork(self) -> None:
        """In the child. The lock is a new one: a thread of the parent may have held the old one."""
        self._lock = threading.RLock()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.leave()
        if client_id := self._options.get("client_id"):
            # Brokers tell clients apart by their ids, and the parent goes on using this one.
            self._options = {**self._options, "client_id": f"{client_id}#{os.getpid()}"}
        if instance := self._options.get("instance"):
            self._options = {**self._options, "instance": f"{instance}#{os.getpid()}"}

    def close(self) -> None:
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


_all: weakref.WeakSet[Engines] = weakref.WeakSet()


def _forked() -> None:
    for engines in list(_all):
        engines.after_fork()


def _close_all() -> None:
    """A program that ends without closing its clients still gives its queues back and commits its offsets."""
    for engines in list(_all):
        engines.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
atexit.register(_close_all)


class Facade(Protocol):
    """Something blocking with an asynchronous twin."""

    def _use(self) -> tuple[Engine, Any]:
        """The engine, and the twin in it."""


def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """A method of the asynchronous twin, with the same name and options, that returns when it is done."""

    @functools.wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> T:
        engine, twin = self._use()

        async def work() -> T:
            return await method(twin, *args, **kwargs)

        return engine.run(work())

    return call


def in_batches(engine: Engine, make: Callable[[], AsyncIterator[T]], size: int = 500) -> Iterator[T]:
    """An asynchronous iteration for blocking code; a batch costs one change of threads."""

    async def opened() -> AsyncIterator[T]:
        return make()

    source = engine.run(opened())

    async def batch() -> list[T]:
        found: list[T] = []
        async for item in source:
            found.append(item)
            if len(found) == size:
                break
        return found

    async def closed() -> None:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()

    try:
        while items := engine.run(batch()):
            yield from items
    finally:
        engine.run(closed())
