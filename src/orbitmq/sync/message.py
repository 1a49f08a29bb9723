"""A message in blocking code: the same attributes, settled from any thread."""

from __future__ import annotations

from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Self, TypeVar

from orbitmq.client import message as asynchronous
from orbitmq.client.dedup import Params
from orbitmq.client.dedup import Transaction as AsynchronousTransaction
from orbitmq.client.message import DONE, Settled
from orbitmq.client.times import Duration
from orbitmq.sync.engine import Engine

T = TypeVar("T")


class Message(asynchronous.Message):
    """Use it as a context manager, or settle it with `ack`, `retry` or `dead`, which return when it is done."""

    __slots__ = ("_engine", "_twin")

    def __init__(self, twin: asynchronous.Message, engine: Engine) -> None:
        super().__init__(twin._buf, twin._start, twin.broker, twin._origin)
        if twin.transaction is not None:
            self.transaction = Transaction(twin.transaction, engine)
        self._twin = twin
        self._engine = engine

    @property
    def settled(self) -> bool:
        return self._twin.settled

    def ack(self) -> Settled:
        async def work() -> None:
            await self._twin.ack()

        self._engine.run(work())
        return DONE

    def retry(self, after: Duration | None = None, *, reason: str = "") -> Settled:
        async def work() -> None:
            await self._twin.retry(after, reason=reason)

        self._engine.run(work())
        return DONE

    def dead(self, reason: str = "") -> Settled:
        async def work() -> None:
            await self._twin.dead(reason)

        self._engine.run(work())
        return DONE

    def __enter__(self) -> Self:
        self._engine.run(self._twin.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._engine.run(self._twin.__aexit__(kind, error, trace))


class Transaction:
    """The open database transaction of a message under `dedup=`, as `msg.transaction` in a handler's thread."""

    def __init__(self, twin: AsynchronousTransaction, engine: Engine) -> None:
        self._twin = twin
        self._engine = engine

    def execute(self, sql: str, params: Params = ()) -> int:
        """Runs one statement; returns how many rows it changed."""
        return self._engine.run(_awaited(self._twin.execute(sql, params)))

    def fetch(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """Runs one statement; returns all its rows."""
        return self._engine.run(_awaited(self._twin.fetch(sql, params)))


async def _awaited(work: Awaitable[T]) -> T:
    return await work
