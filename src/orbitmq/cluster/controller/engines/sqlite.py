"""The default engine: one SQLite file, for one controller.

All work is done by one thread of its own, so that the loop never waits for the device; what is asked for meanwhile is
committed together. The file is locked for as long as the controller runs: a second one on it does not start.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from orbitmq.cluster.controller.engines import EngineFailed, Hold
from orbitmq.cluster.controller.state import GroupState, Stored, decode_state, encode_state

T = TypeVar("T")

_TABLE = (
    "CREATE TABLE IF NOT EXISTS groups (key TEXT PRIMARY KEY, revision INTEGER NOT NULL, state BLOB NOT NULL)"
)
_INSERT = "INSERT INTO groups (key, revision, state) VALUES (?, 1, ?) ON CONFLICT (key) DO NOTHING"
_UPDATE = "UPDATE groups SET revision = revision + 1, state = ? WHERE key = ? AND revision = ?"


class _Swap(NamedTuple):
    key: str
    state: bytes
    expected: int | None
    done: asyncio.Future[int | None]


class SqliteEngine:
    def __init__(self, path: str) -> None:
        self.name = f"sqlite {path}"
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="controller-sqlite")
        self._connection: sqlite3.Connection | None = None
        self._waiting: list[_Swap] = []
        self._draining: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._do(self._open)

    async def close(self) -> None:
        if self._draining is not None:
            await asyncio.gather(self._draining, return_exceptions=True)
        if self._connection is not None:
            await self._do(self._connection.close)
            self._connection = None
        self._thread.shutdown()

    async def hold(self, address: str) -> Hold:
        """The lock on the file is held by this process alone."""
        return Hold(True, float("inf"), address)

    async def load_all(self) -> dict[str, Stored]:
        rows = await self._do(
            lambda: self._opened.execute("SELECT key, revision, state FROM groups").fetchall()
        )
        return {key: Stored(decode_state(key, state), revision) for key, revision, state in rows}

    async def load(self, key: str) -> Stored | None:
        query = "SELECT revision, state FROM groups WHERE key = ?"
        row = await self._do(lambda: self._opened.execute(query, (key,)).fetchone())
        return None if row is None else Stored(decode_state(key, row[1]), row[0])

    async def swap(self, key: str, state: GroupState, expected: int | None) -> int | None:
        done: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Swap(key, encode_state(state), expected, done))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain(), name="controller-swaps")
        return await done

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                revisions = await self._do(functools.partial(self._commit, batch))
            except EngineFailed as error:
                for swap in batch:
                    if not swap.done.done():
                        swap.done.set_exception(error)
                continue
            for swap, revision in zip(batch, revisions, strict=True):
                if not swap.done.done():
                    swap.done.set_result(revision)

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            hint = (
                "another controller runs on it; one file serves one controller, for several use --etcd"
                if "locked" in str(error)
                else "look at the disk: is it full, or not writable? The controller can do nothing without it"
            )
            raise EngineFailed(f"the controller's file {self._path}: {error}; {hint}") from error

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise EngineFailed(f"the controller's file {self._path} is not open")
        return self._connection

    def _open(self) -> None:
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_TABLE)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _commit(self, batch: list[_Swap]) -> list[int | None]:
        connection = self._opened
        connection.execute("BEGIN IMMEDIATE")
        try:
            revisions = [self._swap(connection, swap) for swap in batch]
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return revisions

    @staticmethod
    def _swap(connection: sqlite3.Connection, swap: _Swap) -> int | None:
        if swap.expected is None:
            changed = connection.execute(_INSERT, (swap.key, swap.state)).rowcount
        else:
            changed = connection.execute(_UPDATE, (swap.state, swap.key, swap.expected)).rowcount
        return (swap.expected or 0) + 1 if changed == 1 else None
