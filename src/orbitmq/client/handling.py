"""Runs a handler over an inbox: so many at once, each measured, none forever.

A handler that returns acknowledges its message; one that raises has it retried. A body that cannot be decoded goes
to the dead letters at once, because it would fail the same way every time.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.core.advice import HandlingTimes
from orbitmq.client.decoding import Undecodable, arguments_of, plain_function
from orbitmq.client.dedup.blocking import BlockingTransaction
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.message import Message, Settled

if TYPE_CHECKING:
    from orbitmq.client.dedup import Guard
    from orbitmq.client.tracing import Interceptors

log = logging.getLogger("orbitmq.consumer")

Handler = Callable[..., Any]
Call = Callable[[Message], Awaitable[None]]

# Every message is measured at first, later one of so many: the figures do not change much any more.
MEASURE_ALL: Final = 64
MEASURE_ONE_OF: Final = 16
WATCH_EVERY_S: Final = 1.0


class HandlerTimeout(OrbitMQError):
    """A handler took longer than it may."""


class _Metered:
    """Awaits something and adds up the time in which it was really running."""

    __slots__ = ("_work", "busy_s")

    def __init__(self, work: Awaitable[None]) -> None:
        self._work = work
        self.busy_s = 0.0

    def __await__(self) -> Generator[Any, Any, None]:
        clock = time.perf_counter
        steps = self._work.__await__()
        step: Callable[[Any], Any] = steps.send
        value: Any = None
        while True:
            begun = clock()
            try:
                waits_for = step(value)
            except StopIteration:
                return
            finally:
                self.busy_s += clock() - begun
            try:
                value = yield waits_for
                step = steps.send
            except BaseException as error:
                value, step = error, steps.throw


class _Later:
    """An origin that only writes down what a handler decided, to be done when it is safe."""

    def __init__(self) -> None:
        self.decision: Callable[[Message], Settled] | None = None

    def finish(self, msg: Message) -> None:
        self.decision = Message.ack

    def retry(self, msg: Message, after_s: float | None, reason: str) -> Awaitable[None]:
        self.decision = lambda real: real.retry(after_s, reason=reason)
        return Settled()

    def bury(self, msg: Message, reason: str) -> Awaitable[None]:
        self.decision = lambda real: real.dead(reason)
        return Settled()

    def release(self, msg: Message) -> None:
        self.decision = None


class _Worker:
    """What one worker is doing, for the watch."""

    __slots__ = ("overdue", "since", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.since: float | None = None
        self.overdue = False


class Handling:
    """One handler with its workers. `run` ends when the inbox is closed and every worker is done."""

    def __init__(
        self,
        inbox: AsyncIterator[Message],
        handler: Handler,
        *,
        group: str,
        concurrency: int,
        times: HandlingTimes,
        timeout_s: float | None = None,
        guard: Guard | None = None,
        interceptors: Interceptors | None = None,
    ) -> None:
        self._inbox = inbox
        self._group = group
        self._times = times
        self._timeout_s = timeout_s
        self._guard = guard
        self._interceptors = interceptors or None
        self._call = caller(handler)
        self._workers = [_Worker() for _ in range(concurrency)]
        self._handled = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, worker in enumerate(self._workers):
                worker.task = group.create_task(self._work(worker), name=f"handler-{self._group}-{number}")
            if self._timeout_s is not None:
                watch = asyncio.create_task(self._watch(), name=f"handler-watch-{self._group}")
                group.create_task(self._end_watch(watch))

    async def handle(self, msg: Message) -> None:
        """Runs the handler on one message, without settling it."""
        if self._interceptors is None:
            await self._guarded(msg)
            return
        with self._interceptors.handling(msg, self._group):
            await self._guarded(msg)

    async def _work(self, worker: _Worker) -> None:
        clock = time.perf_counter
        async for msg in self._inbox:
            self._handled += 1
            worker.since = begun = clock()
            try:
                if self._handled > MEASURE_ALL and self._handled % MEASURE_ONE_OF:
                    await self.handle(msg)
                else:
                    metered = _Metered(self.handle(msg))
                    await metered
                    self._times.record(metered.busy_s, clock() - begun)
            except Undecodable as error:
                log.warning("%s", error)
                msg.dead(f"{type(error).__name__}: {error}")
            except Exception as error:
                msg.fail(error)
            except BaseException as error:
                if not worker.overdue or worker.task is None or worker.task.uncancel():
                    msg.fail(error)
                    raise
                msg.fail(self._too_long())
            else:
                if not msg.settled:
                    msg.ack()
            finally:
                worker.since = None
                worker.overdue = False

    async def _guarded(self, msg: Message) -> None:
        if self._guard is None:
            await self._call(msg)
            return
        later = _Later()
        inner = msg.for_origin(later)
        async with self._guard.guard(inner, self._group) as new:
            if new:
                await self._call(inner)
            else:
                log.debug("%r was handled before", msg)
        # Only now is the effect committed, so only now may the message be settled.
        if later.decision is not None:
            later.decision(msg)

    async def _watch(self) -> None:
        """Cancels handlers that take too long: one that hangs would hold up its queue for good."""
        assert self._timeout_s is not None
        pause_s = min(WATCH_EVERY_S, self._timeout_s / 4)
        while True:
            await asyncio.sleep(pause_s)
            latest = time.perf_counter() - self._timeout_s
            for worker in self._workers:
                if worker.since is not None and worker.since < latest and not worker.overdue and worker.task:
                    worker.overdue = True
                    worker.task.cancel()

    async def _end_watch(self, watch: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait([worker.task for worker in self._workers if worker.task])
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    def _too_long(self) -> HandlerTimeout:
        return HandlerTimeout(
            f"the handler of group '{self._group}' took longer than {self._timeout_s:g} s and was cancelled",
            hint="look for calls without a timeout, or raise handler_timeout=",
        )


def caller(handler: Handler) -> Call:
    """The handler with decoded arguments; one that is not async runs in a thread."""
    arguments = arguments_of(handler)
    if inspect.iscoroutinefunction(plain_function(handler)):

        async def call(msg: Message) -> None:
            await handler(*arguments(msg))

        return call

    async def call_in_thread(msg: Message) -> None:
        later = _Later()
        # What it says about its message is done here: nothing of a consumer may be touched from another thread.
        inner = msg.for_origin(later)
        if msg.transaction is not None:
            inner.transaction = BlockingTransaction(msg.transaction, asyncio.get_running_loop())
        result = await asyncio.to_thread(handler, *arguments(inner))
        if inspect.isawaitable(result):
            await result
        if later.decision is not None:
            later.decision(msg)

    return call_in_thread
