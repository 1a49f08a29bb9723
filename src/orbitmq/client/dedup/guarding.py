"""The order of steps around a handler: claim, cache, database, handler, commit, cache.

A ledger is where tokens are committed together with effects; a cache only saves questions to it. Neither is
known here by name: `sqlite.py` and `postgres.py` are ledgers, `redis_cache.py` is a cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from orbitmq.client.dedup import Transaction
from orbitmq.client.dedup.claims import Claims, Recent
from orbitmq.client.dedup.tokens import Name, name_of
from orbitmq.client.errors import BadRequest, OrbitMQError


class HandledElsewhere(OrbitMQError):
    """Another process committed the same token while this one was handling the message."""


class LedgerTransaction(Transaction, Protocol):
    """A transaction that holds a token. Exactly one of `commit` and `rollback` ends it."""

    async def commit(self) -> None:
        """Makes token and effect durable; raises `HandledElsewhere` when another process was faster."""
        ...

    async def rollback(self) -> None:
        """Undoes everything. Does nothing if it is undone already."""
        ...


class Ledger(Protocol):
    """A database that keeps tokens."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def begin(self, name: Name) -> LedgerTransaction | None:
        """A transaction for a new name; None if the name was committed before."""
        ...


class Cache(Protocol):
    """Answers for committed names without the ledger, or does not know. Its failures are its own affair."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def knows(self, name: Name) -> bool: ...
    async def add(self, name: Name) -> None: ...


class LedgerGuard:
    """A `Guard` on a ledger, with or without a cache in front of it."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        cache: Cache | None = None,
        token: Callable[[Any], str] | None = None,
        scope: str | None = None,
    ) -> None:
        self._ledger = ledger
        self._cache = cache
        self._token = token
        self._scope = scope
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._claims = Claims()
        self._recent = Recent()

    async def open(self) -> None:
        self._use_this_loop()
        async with self._opening:
            if self._users == 0:
                await self._open_parts()
            self._users += 1

    async def close(self) -> None:
        async with self._opening:
            if self._users == 1:
                await self._close_parts()
            self._users = max(0, self._users - 1)

    def _use_this_loop(self) -> None:
        """A guard is often a global of its module, and a program's tests run it in one loop after the other."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._opening = asyncio.Lock()
            self._claims = Claims()
            self._users = 0

    async def _open_parts(self) -> None:
        await self._ledger.open()
        try:
            if self._cache is not None:
                await self._cache.open()
        except BaseException:
            await self._close_parts()
            raise

    async def _close_parts(self) -> None:
        try:
            if self._cache is not None:
                await self._cache.close()
        finally:
            await self._ledger.close()

    @asynccontextmanager
    async def guard(self, msg: Any, group: str = "") -> AsyncIterator[bool]:
        if self._users == 0:
            raise BadRequest("the dedup guard is not open", hint="call `await dedup.open()` first")
        name = name_of(msg, self._scope or group, self._token)
        async with self._claims.hold(name):
            transaction = await self._begin(name)
            if transaction is None:
                yield False
                return
            msg.transaction = transaction
            try:
                yield True
                if msg.rejected:
                    # The message comes again, or is somebody's decision later: then it must be new.
                    await transaction.rollback()
                    return
                await transaction.commit()
            except HandledElsewhere:
                await transaction.rollback()
            except BaseException:
                await transaction.rollback()
                raise
            finally:
                msg.transaction = None
            await self._remember(name)

    async def _begin(self, name: Name) -> LedgerTransaction | None:
        """The cheap questions first: this process, the cache, the ledger."""
        if name in self._recent:
            return None
        if self._cache is not None and await self._cache.knows(name):
            self._recent.add(name)
            return None
        transaction = await self._ledger.begin(name)
        if transaction is None:
            await self._remember(name)
        return transaction

    async def _remember(self, name: Name) -> None:
        self._recent.add(name)
        if self._cache is not None:
            await self._cache.add(name)
