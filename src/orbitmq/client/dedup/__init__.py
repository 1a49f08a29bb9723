"""Idempotent consumption: a message that arrives twice has its effect once.

In:   a message about to be handled.
Out:  an answer, "new" or "handled before", and for a new one a database transaction that the handler's
      own statements join. Effect and token are committed together or not at all.

A message arrives twice when a producer sends it twice, when a consumer dies between the effect and the
commit of its offset, and when a queue moves to another member meanwhile. All three look alike here: the same
token. `tokens.py` makes it, `claims.py` lets one of two simultaneous duplicates wait for the other,
`guarding.py` is the order of steps, `sqlite.py`, `postgres.py` and `redis_cache.py` are the places where
tokens are kept, `blocking.py` is for handlers in threads.

Invariants:

* A token is committed in the transaction that holds the effect, never before and never after.
* Caches hold only committed tokens, so a cache may be lost or wrong in one direction only: it may not know.
* What is unknown (a lost answer to COMMIT, a database out of reach) is an error: the message comes again.

Imports nothing heavy: the drivers are loaded when a guard of their kind is opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, Final, Protocol

__all__ = ["Dedup", "Guard", "Guarded", "Params", "Transaction"]

Params = Sequence[Any] | Mapping[str, Any]
KEEP: Final = timedelta(days=7)


class Transaction(Protocol):
    """The open database transaction of one message, as `msg.transaction`.

    The statements are the database's own (`?` for SQLite, `%s` for PostgreSQL). It is committed when the
    handler returns and rolled back when it raises, or asks for a retry or the dead-letter topic.
    """

    async def execute(self, sql: str, params: Params = ()) -> int:
        """Runs one statement; returns how many rows it changed."""
        ...

    async def fetch(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """Runs one statement; returns all its rows."""
        ...

    async def connection(self) -> Any:
        """The driver's own connection inside this transaction, for libraries that want one."""
        ...


class Guarded(Protocol):
    """What a guard asks of a message."""

    @property
    def topic(self) -> str: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def keys(self) -> Sequence[str]: ...
    @property
    def msg_id(self) -> str: ...
    @property
    def rejected(self) -> bool:
        """True once the handler asked for a retry or for the dead-letter topic."""
        ...

    transaction: Any


class Guard(Protocol):
    """What a consumer asks of `dedup=`.

    One guard may serve several consumers. Each calls `open` when it starts and `close` when it has stopped.
    """

    async def open(self) -> None:
        """Connects, so that a missing driver or database is told at the start. Counted."""
        ...

    async def close(self) -> None:
        """Lets go of everything once it was called as often as `open`."""
        ...

    def guard(self, msg: Any, group: str = "") -> AbstractAsyncContextManager[bool]:
        """Entering gives True for a new message, with `msg.transaction` set; False for one handled before.

        Leave it before the message is acknowledged: leaving is the commit, and may raise.
        """
        ...


class Dedup:
    """The guards there are, by the place where tokens are kept.

    All take `token`, a function of the message (by default topic, tag and keys; the message id if it has no
    keys), `keep`, how long a token is remembered, and `scope`, under whose name (by default the consumer
    group's): another scope handles everything anew.
    """

    @staticmethod
    def sqlite(
        path: str | os.PathLike[str],
        *,
        token: Callable[[Any], str] | None = None,
        keep: timedelta = KEEP,
        scope: str | None = None,
    ) -> Guard:
        """Tokens and effects in one SQLite file, shared by any number of processes of one machine."""
        from orbitmq.client.dedup.guarding import LedgerGuard
        from orbitmq.client.dedup.sqlite import SqliteLedger

        return LedgerGuard(SqliteLedger(os.fspath(path), keep=keep), token=token, scope=scope)

    @staticmethod
    def redis_postgres(
        redis_url: str,
        dsn: str,
        *,
        token: Callable[[Any], str] | None = None,
        keep: timedelta = KEEP,
        scope: str | None = None,
        connections: int = 10,
    ) -> Guard:
        """Tokens and effects in PostgreSQL, with Redis in front to answer for what was handled lately.

        `connections` is the number of transactions at a time: at least the consumer's concurrency.
        Needs `pip install 'orbitmq[redis,postgres]'`. Redis may come and go; PostgreSQL may not.
        """
        from orbitmq.client.dedup.guarding import LedgerGuard
        from orbitmq.client.dedup.postgres import PostgresLedger
        from orbitmq.client.dedup.redis_cache import RedisCache

        ledger = PostgresLedger(dsn, keep=keep, connections=connections)
        return LedgerGuard(ledger, cache=RedisCache(redis_url, keep=keep), token=token, scope=scope)
