"""Tokens and effects in one SQLite file.

SQLite has one writer at a time, over all processes. So a message's transaction begins with its handler's first
statement, not before: what a handler waits for until then (another service, a lock) holds up nobody. The price
is that another process may have committed the same token meanwhile; the first statement then finds out.

All statements run in a thread of their own, because a `BEGIN` may wait for another process and a `COMMIT` waits
for the disk.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, TypeVar

from orbitmq.client.dedup import Params
from orbitmq.client.dedup.guarding import HandledElsewhere
from orbitmq.client.dedup.tokens import Name
from orbitmq.client.errors import BadRequest, OrbitMQError

T = TypeVar("T")

BUSY_SECONDS: Final = 30.0
PRUNE_EVERY_SECONDS: Final = 3600.0
PRUNE_ROWS: Final = 10_000

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS orbitmq_handled (
    scope TEXT NOT NULL,
    token TEXT NOT NULL,
    handled_at INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER)),
    PRIMARY KEY (scope, token)
) WITHOUT ROWID
"""
_AGE: Final = "CREATE INDEX IF NOT EXISTS orbitmq_handled_at ON orbitmq_handled (handled_at)"
_FIND: Final = "SELECT 1 FROM orbitmq_handled WHERE scope = ? AND token = ?"
_NOTE: Final = "INSERT INTO orbitmq_handled (scope, token) VALUES (?, ?) ON CONFLICT DO NOTHING"
_PRUNE: Final = """
DELETE FROM orbitmq_handled WHERE (scope, token) IN (
    SELECT scope, token FROM orbitmq_handled WHERE handled_at < CAST(strftime('%s', 'now') AS INTEGER) - ? LIMIT ?
)
"""


class _Thread:
    """One connection, and the only thread that uses it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="orbitmq-dedup")
        self.db: sqlite3.Connection | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` after everything asked for before; once begun it is done, even if nobody waits."""

        def in_thread() -> T:
            if self.db is None:
                self.db = _connect(self._path)
            return work(self.db)

        return await asyncio.get_running_loop().run_in_executor(self._pool, in_thread)

    async def close(self) -> None:
        def in_thread() -> None:
            if self.db is not None:
                self.db.close()
                self.db = None

        await asyncio.get_running_loop().run_in_executor(self._pool, in_thread)
        self._pool.shutdown()


class SqliteLedger:
    """Where `Dedup.sqlite` keeps tokens: the table `orbitmq_handled` beside the user's own."""

    def __init__(self, path: str, *, keep: timedelta) -> None:
        self.path = path
        self._keep_seconds = int(keep.total_seconds())
        self._next_prune = 0.0
        self._threads: tuple[_Thread, _Thread] | None = None
        self.writing = asyncio.Lock()

    async def open(self) -> None:
        if self.path in ("", ":memory:"):
            raise BadRequest(
                "a dedup database in memory forgets every token with its process",
                hint="name a file, the one in which the effects are stored",
            )
        writer, reader = _Thread(self.path), _Thread(self.path)
        try:
            await writer.run(_prepare)
        except sqlite3.Error as error:
            await writer.close()
            await reader.close()
            raise BadRequest(
                f"the dedup database {self.path} cannot be used: {error}",
                hint="check the path: its folder must exist, and folder and file must be writable",
            ) from error
        self._threads = writer, reader
        self.writing = asyncio.Lock()
        self._next_prune = 0.0

    async def close(self) -> None:
        if self._threads is not None:
            writer, reader = self._threads
            self._threads = None
            await writer.close()
            await reader.close()

    async def begin(self, name: Name) -> SqliteTransaction | None:
        await self._prune_if_due()
        found = await self._reader.run(lambda db: db.execute(_FIND, name).fetchone())
        return None if found else SqliteTransaction(self, name)

    @property
    def writer(self) -> _Thread:
        return self._opened()[0]

    @property
    def _reader(self) -> _Thread:
        return self._opened()[1]

    def _opened(self) -> tuple[_Thread, _Thread]:
        if self._threads is None:
            raise BadRequest(f"the dedup database {self.path} is closed", hint="open the guard first")
        return self._threads

    async def _prune_if_due(self) -> None:
        """Forgets a bounded number of old tokens now and then, between messages."""
        now = asyncio.get_running_loop().time()
        if now < self._next_prune:
            return
        async with self.writing:
            removed = await self.writer.run(
                lambda db: db.execute(_PRUNE, (self._keep_seconds, PRUNE_ROWS)).rowcount
            )
        self._next_prune = now + (0.0 if removed == PRUNE_ROWS else PRUNE_EVERY_SECONDS)


class SqliteTransaction:
    """The transaction of one message: it begins, and takes the token, with the first statement."""

    def __init__(self, ledger: SqliteLedger, name: Name) -> None:
        self._ledger = ledger
        self._name = name
        self._writing = False
        self._over = False

    async def execute(self, sql: str, params: Params = ()) -> int:
        await self._ensure_begun()
        return await self._ledger.writer.run(lambda db: max(0, db.execute(sql, params).rowcount))

    async def fetch(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        await self._ensure_begun()
        return await self._ledger.writer.run(lambda db: db.execute(sql, params).fetchall())

    async def connection(self) -> sqlite3.Connection:
        await self._ensure_begun()
        return await self._ledger.writer.run(lambda db: db)

    async def commit(self) -> None:
        await self._ensure_begun()
        try:
            await self._ledger.writer.run(_commit)
        finally:
            await self._end()

    async def rollback(self) -> None:
        await self._end()

    async def _ensure_begun(self) -> None:
        if self._over:
            raise BadRequest(
                "the message's transaction is over",
                hint="use msg.transaction only inside the handler, and await every statement",
            )
        if self._writing:
            return
        await self._ledger.writing.acquire()
        self._writing = True
        if not await self._ledger.writer.run(self._take_token):
            await self._end()
            raise HandledElsewhere(f"message {self._name.token!r} was handled by another process meanwhile")

    def _take_token(self, db: sqlite3.Connection) -> bool:
        db.execute("BEGIN IMMEDIATE")
        return db.execute(_NOTE, self._name).rowcount == 1

    async def _end(self) -> None:
        self._over = True
        if not self._writing:
            return
        self._writing = False
        try:
            # Also after a COMMIT whose caller was cancelled: the thread works in order, and then finds
            # nothing left to undo.
            await self._ledger.writer.run(_undo)
        finally:
            self._ledger.writing.release()


def _connect(path: str) -> sqlite3.Connection:
    # `isolation_level=None`: the module must not begin or commit transactions on its own.
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    # The offset is committed on the strength of this commit, so it has to outlive a power cut.
    db.execute("PRAGMA synchronous = FULL")
    return db


def _prepare(db: sqlite3.Connection) -> None:
    db.execute(_TABLE)
    db.execute(_AGE)


def _commit(db: sqlite3.Connection) -> None:
    if not db.in_transaction:
        raise OrbitMQError(
            "the message's transaction was ended before its handler returned",
            hint="leave out COMMIT and ROLLBACK: return to commit, raise to roll back",
        )
    db.execute("COMMIT")


def _undo(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        db.execute("ROLLBACK")
