"""Tokens and effects in PostgreSQL.

The token is inserted first, in the transaction that the handler's statements join. A second member with the same
message waits at that insert until the first has committed (then it is a duplicate) or failed (then it is its
turn): the database is the lock, so it is released by whatever ends the connection, also `kill -9`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Final

from orbitmq.client.dedup import Params
from orbitmq.client.dedup.drivers import load, without_password
from orbitmq.client.dedup.tokens import Name
from orbitmq.client.errors import BadRequest, OrbitMQError, Unreachable

log = logging.getLogger("orbitmq.client.dedup")

CONNECT_SECONDS: Final = 10.0
# A member that hangs in its handler must not hang those who got its messages after it.
LOCK_WAIT: Final = "30s"
PRUNE_EVERY_SECONDS: Final = 3600.0
PRUNE_ROWS: Final = 10_000
_CREATE_LOCK: Final = 0x0B17_DEDB

_EXISTS: Final = "SELECT to_regclass('orbitmq_handled') IS NOT NULL"
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS orbitmq_handled (
    scope text NOT NULL,
    token text NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, token)
)
"""
_AGE: Final = "CREATE INDEX IF NOT EXISTS orbitmq_handled_at ON orbitmq_handled (handled_at)"
_NOTE: Final = "INSERT INTO orbitmq_handled (scope, token) VALUES (%s, %s) ON CONFLICT DO NOTHING"
_PRUNE: Final = """
DELETE FROM orbitmq_handled WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM orbitmq_handled WHERE handled_at < now() - %s LIMIT %s FOR UPDATE SKIP LOCKED
))
"""


class PostgresLedger:
    """Where `Dedup.redis_postgres` keeps tokens: the table `orbitmq_handled` beside the user's own."""

    def __init__(self, dsn: str, *, keep: timedelta, connections: int) -> None:
        self._dsn = dsn
        self._keep = keep
        self._connections = connections
        self._next_prune = 0.0
        self._pool: Any = None
        self._psycopg: Any = None

    async def open(self) -> None:
        self._psycopg = load("psycopg")
        kind = load("psycopg_pool").AsyncConnectionPool
        pool = kind(
            self._dsn,
            min_size=1,
            max_size=self._connections,
            timeout=CONNECT_SECONDS,
            configure=_configure,
            check=kind.check_connection,
            kwargs={"autocommit": True},
            open=False,
        )
        try:
            await pool.open(wait=True, timeout=CONNECT_SECONDS)
            async with pool.connection() as connection:
                await _prepare(connection)
        except self._psycopg.Error as error:
            await pool.close()
            raise self._unreachable(error) from error
        except BaseException:
            await pool.close()
            raise
        self._pool = pool
        self._next_prune = 0.0

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await pool.close()

    async def begin(self, name: Name) -> PostgresTransaction | None:
        if self._pool is None:
            raise BadRequest("the dedup database is closed", hint="open the guard first")
        try:
            return await self._begin(name)
        except self._psycopg.errors.LockNotAvailable as error:
            raise OrbitMQError(
                f"another member has been handling {name.token!r} for more than {LOCK_WAIT}",
                hint="the message comes again; look for a handler that hangs or takes very long",
                retryable=True,
            ) from error
        except self._psycopg.OperationalError as error:
            raise self._unreachable(error) from error

    async def _begin(self, name: Name) -> PostgresTransaction | None:
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(self._pool.connection())
            await self._prune_if_due(connection)
            await stack.enter_async_context(connection.transaction())
            if (await connection.execute(_NOTE, name)).rowcount == 0:
                return None
            return PostgresTransaction(self._psycopg, connection, stack.pop_all())
        raise AssertionError("the stack never swallows an error")

    async def _prune_if_due(self, connection: Any) -> None:
        """Forgets a bounded number of old tokens now and then, between messages."""
        now = asyncio.get_running_loop().time()
        if now < self._next_prune:
            return
        self._next_prune = now + PRUNE_EVERY_SECONDS
        removed = (await connection.execute(_PRUNE, (self._keep, PRUNE_ROWS))).rowcount
        if removed == PRUNE_ROWS:
            self._next_prune = now

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(
            f"PostgreSQL at {without_password(self._dsn)} cannot be used: {error}",
            hint="check that it runs, address, user and password of the dsn, and that `connections` suffice",
        )


class PostgresTransaction:
    """The transaction of one message; it holds a connection of the pool until it ends."""

    def __init__(self, psycopg: Any, connection: Any, stack: AsyncExitStack) -> None:
        self._psycopg = psycopg
        self._connection = connection
        self._stack = stack
        self._over = False

    async def execute(self, sql: str, params: Params = ()) -> int:
        changed: int = (await self._run(sql, params)).rowcount
        return max(0, changed)

    async def fetch(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        return list(await (await self._run(sql, params)).fetchall())

    async def connection(self) -> Any:
        self._check_open()
        return self._connection

    async def commit(self) -> None:
        self._check_open()
        if self._connection.info.transaction_status == self._psycopg.pq.TransactionStatus.INERROR:
            # The server would answer COMMIT with a quiet rollback: the message would be lost.
            await self.rollback()
            raise OrbitMQError(
                "a statement of the handler failed, so the message's transaction cannot be committed",
                hint="let the error through, or wrap the statement in a savepoint",
            )
        self._over = True
        try:
            await self._stack.aclose()
        except self._psycopg.OperationalError as error:
            raise Unreachable(
                f"the answer of PostgreSQL to COMMIT is missing: {error}",
                hint="the message comes again, and the token tells whether it was committed",
                maybe_processed=True,
            ) from error

    async def rollback(self) -> None:
        if self._over:
            return
        self._over = True
        # Leaving the block with `Rollback` undoes it without an error of its own.
        undo = self._psycopg.Rollback()
        try:
            await self._stack.__aexit__(type(undo), undo, None)
        except self._psycopg.Error as error:
            # The server undoes what a lost connection leaves, and the caller has an error of its own.
            log.warning("the transaction of a failed message could not be rolled back: %s", error)

    async def _run(self, sql: str, params: Params) -> Any:
        self._check_open()
        # Without parameters a `%` in the statement is only itself.
        return await self._connection.execute(sql, params or None)

    def _check_open(self) -> None:
        if self._over:
            raise BadRequest(
                "the message's transaction is over",
                hint="use msg.transaction only inside the handler, and await every statement",
            )


async def _configure(connection: Any) -> None:
    await connection.execute(f"SET lock_timeout = '{LOCK_WAIT}'")


async def _prepare(connection: Any) -> None:
    """Makes the table unless it is there: then no right to create tables is needed."""
    if (await (await connection.execute(_EXISTS)).fetchone())[0]:
        return
    async with connection.transaction():
        # Two members that start together would both create it, and one would fail.
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK,))
        await connection.execute(_TABLE)
        await connection.execute(_AGE)
