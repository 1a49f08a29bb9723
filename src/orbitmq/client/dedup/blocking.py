"""A message's transaction for a handler that is not `async` and runs in a thread: the same statements, blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from orbitmq.client.dedup import Params, Transaction

T = TypeVar("T")


class BlockingTransaction:
    """Every statement runs where the transaction lives, in the event loop's thread, while this thread waits."""

    def __init__(self, transaction: Transaction, loop: asyncio.AbstractEventLoop) -> None:
        self._transaction = transaction
        self._loop = loop

    def execute(self, sql: str, params: Params = ()) -> int:
        """Runs one statement; returns how many rows it changed."""
        return self._wait(self._transaction.execute(sql, params))

    def fetch(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """Runs one statement; returns all its rows."""
        return self._wait(self._transaction.fetch(sql, params))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
