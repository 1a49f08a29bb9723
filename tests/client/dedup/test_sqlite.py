from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orbitmq.client.dedup import Dedup, Guard
from orbitmq.client.errors import BadRequest, OrbitMQError
from tests.client.dedup.cases import CASES, FakeMessage, Place, handle, opened, run_case


class SqlitePlace:
    insert = "INSERT INTO effects VALUES (?)"

    def __init__(self, path: Path) -> None:
        self.path = path
        asyncio.run(self.run("CREATE TABLE effects (name TEXT)"))

    def guard(self, **options: Any) -> Guard:
        return Dedup.sqlite(self.path, **options)

    async def effects(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as db:
            return [name for (name,) in db.execute("SELECT name FROM effects ORDER BY name")]

    async def run(self, sql: str) -> None:
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute(sql)


@pytest.fixture
def place(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path / "shop.db")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_every_guard_promises(place: SqlitePlace, case: Callable[[Place], Awaitable[None]]) -> None:
    run_case(case, place)


def test_a_handler_that_waits_before_its_first_statement_holds_up_nobody(place: SqlitePlace) -> None:
    async def case(place: Place) -> None:
        guard = await opened(place)
        waiting, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            msg = FakeMessage()
            async with guard.guard(msg, "billing"):
                waiting.set()
                await go_on.wait()
                await msg.transaction.execute(place.insert, ("slow",))

        task = asyncio.create_task(slow())
        await waiting.wait()
        assert await handle(place, guard, FakeMessage(keys=["quick"]))
        assert await place.effects() == ["quick"]
        go_on.set()
        await task
        assert await place.effects() == ["quick", "slow"]
        await guard.close()

    run_case(case, place)


def test_a_statement_that_fails_may_be_dealt_with_by_the_handler(place: SqlitePlace) -> None:
    async def case(place: Place) -> None:
        guard = await opened(place)
        msg = FakeMessage()
        async with guard.guard(msg, "billing"):
            with pytest.raises(sqlite3.OperationalError):
                await msg.transaction.execute("INSERT INTO nowhere VALUES (1)")
            await msg.transaction.execute(place.insert, ("b",))
        assert await place.effects() == ["b"]
        await guard.close()

    run_case(case, place)


def test_a_handler_that_commits_by_itself_is_told_and_not_handled_twice(place: SqlitePlace) -> None:
    async def case(place: Place) -> None:
        guard = await opened(place)

        async def commit(msg: FakeMessage) -> None:
            await msg.transaction.execute("COMMIT")

        with pytest.raises(OrbitMQError, match="ended before its handler returned") as caught:
            await handle(place, guard, FakeMessage(), then=commit)
        assert "leave out COMMIT" in caught.value.hint
        assert not await handle(place, guard, FakeMessage())
        assert await place.effects() == ["order-1"]
        await guard.close()

    run_case(case, place)


def test_a_commit_whose_handler_was_cancelled_meanwhile_counts(place: SqlitePlace) -> None:
    """The cancellation comes while the thread is in COMMIT: done is done, and the next copy is a duplicate."""

    async def case(place: Place) -> None:
        guard = await opened(place)
        ready = asyncio.Event()

        async def tell(msg: FakeMessage) -> None:
            ready.set()

        task = asyncio.create_task(handle(place, guard, FakeMessage(), then=tell))
        await ready.wait()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        ran = await handle(place, guard, FakeMessage())
        assert await place.effects() == ["order-1"], f"handler ran again: {ran}"
        await guard.close()

    run_case(case, place)


def test_closing_leaves_no_thread_and_no_lock_behind(place: SqlitePlace) -> None:
    async def case(place: Place) -> None:
        guard = await opened(place)
        await handle(place, guard, FakeMessage())
        await guard.close()

    run_case(case, place)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("orbitmq-dedup")]
    with closing(sqlite3.connect(place.path, timeout=0)) as db:
        db.execute("BEGIN EXCLUSIVE")


def test_a_guard_serves_one_event_loop_after_the_other(place: SqlitePlace) -> None:
    guard = place.guard()

    async def open_twice_at_once(new: bool) -> None:
        await asyncio.gather(guard.open(), guard.open())
        ran = await asyncio.gather(*(handle(place, guard, FakeMessage()) for _ in range(3)))
        assert any(ran) is new
        await asyncio.gather(guard.close(), guard.close())

    asyncio.run(open_twice_at_once(True))
    asyncio.run(open_twice_at_once(False))


@pytest.mark.parametrize(
    ("path", "what"), [("nowhere/shop.db", "cannot be used"), (":memory:", "forgets every token")]
)
def test_a_useless_path_is_refused_when_the_consumer_starts(tmp_path: Path, path: str, what: str) -> None:
    place = path if path.startswith(":") else str(tmp_path / path)
    with pytest.raises(BadRequest, match=what) as caught:
        asyncio.run(Dedup.sqlite(place).open())
    assert caught.value.hint
