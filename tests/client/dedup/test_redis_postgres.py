"""With real servers, started for this file; collected where they are installed (see conftest.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
import redis

from orbitmq.client.dedup import Dedup, Guard
from orbitmq.client.errors import OrbitMQError, Unreachable
from scripts.services import PostgresService, RedisService, redis_and_postgres
from tests.client.dedup.cases import CASES, FakeMessage, Place, handle, opened, run_case

Servers = tuple[RedisService, PostgresService]
numbers = count()


class PostgresPlace:
    insert = "INSERT INTO effects VALUES (%s)"

    def __init__(self, servers: Servers) -> None:
        self.redis, self.postgres = servers
        name = f"place{next(numbers)}"
        asyncio.run(self._run(self.postgres.dsn, f"CREATE DATABASE {name}"))
        self.dsn = self.postgres.dsn.replace("/postgres?", f"/{name}?")
        asyncio.run(self.run("CREATE TABLE effects (name text)"))
        self.forget_cache()

    def guard(self, **options: Any) -> Guard:
        return Dedup.redis_postgres(self.redis.url, self.dsn, **options)

    async def effects(self) -> list[str]:
        async with await psycopg.AsyncConnection.connect(self.dsn) as db:
            rows = await (await db.execute("SELECT name FROM effects ORDER BY name")).fetchall()
        return [name for (name,) in rows]

    async def run(self, sql: str) -> None:
        await self._run(self.dsn, sql)

    @staticmethod
    async def _run(dsn: str, sql: str) -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as db:
            await db.execute(sql.replace("- 700000", "- interval '700000 s'"))

    def forget_cache(self) -> None:
        with redis.Redis.from_url(self.redis.url) as client:
            client.flushall()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with redis_and_postgres() as both:
        yield both


@pytest.fixture
def place(servers: Servers) -> PostgresPlace:
    return PostgresPlace(servers)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_every_guard_promises(place: PostgresPlace, case: Callable[[Place], Awaitable[None]]) -> None:
    run_case(case, ForgetfulPlace(place) if "forgotten" in case.__name__ else place)


class ForgetfulPlace:
    """Redis would still know the tokens whose age the case changes behind its back."""

    def __init__(self, place: PostgresPlace) -> None:
        self.place = place
        self.insert = place.insert
        self.guard = place.guard
        self.effects = place.effects

    async def run(self, sql: str) -> None:
        await self.place.run(sql)
        self.place.forget_cache()


def test_redis_answers_for_what_another_member_handled(place: PostgresPlace) -> None:
    async def case(place: PostgresPlace) -> None:
        first, second = await opened(place), await opened(place)
        assert await handle(place, first, FakeMessage())
        # Without the row only Redis can know.
        await place.run("DELETE FROM orbitmq_handled")
        assert not await handle(place, second, FakeMessage())
        await first.close()
        await second.close()

    run_case(case, place)  # type: ignore[arg-type]


def test_redis_hears_of_a_token_only_after_the_commit(place: PostgresPlace) -> None:
    async def case(place: PostgresPlace) -> None:
        guard = await opened(place)
        async with redis.asyncio.Redis.from_url(place.redis.url) as client:
            async with guard.guard(FakeMessage(), "billing"):
                assert await client.dbsize() == 0
            assert await client.dbsize() == 1
            (key,) = await client.keys()
            assert 0 < await client.ttl(key) <= 86_400
        await guard.close()

    run_case(case, place)  # type: ignore[arg-type]


def test_without_redis_the_database_tells_duplicates_alone(
    place: PostgresPlace, caplog: pytest.LogCaptureFixture
) -> None:
    async def case(place: PostgresPlace) -> None:
        first = await opened(place)
        place.redis.stop()
        try:
            assert await handle(place, first, FakeMessage())
            second = await opened(place)
            assert not await handle(place, second, FakeMessage())
        finally:
            place.redis.start()
        await first.close()
        await second.close()

    run_case(case, place)  # type: ignore[arg-type]
    assert "PostgreSQL alone tells duplicates" in caplog.text


def test_a_restarted_database_is_used_again(place: PostgresPlace) -> None:
    async def case(place: PostgresPlace) -> None:
        guard = await opened(place)
        assert await handle(place, guard, FakeMessage())

        async def pull_the_plug(msg: FakeMessage) -> None:
            place.postgres.stop()

        with pytest.raises(OrbitMQError, match="COMMIT is missing"):
            await handle(place, guard, FakeMessage(keys=["order-2"]), then=pull_the_plug)
        place.postgres.start()
        assert await place.effects() == ["order-1"]
        assert await handle(place, guard, FakeMessage(keys=["order-2"]))
        assert await place.effects() == ["order-1", "order-2"]
        await guard.close()

    run_case(case, place)  # type: ignore[arg-type]


def test_a_failed_statement_that_the_handler_swallows_is_not_taken_for_success(place: PostgresPlace) -> None:
    """PostgreSQL answers the COMMIT of a failed transaction with a rollback and no error."""

    async def case(place: PostgresPlace) -> None:
        guard = await opened(place)

        async def swallow(msg: FakeMessage) -> None:
            with pytest.raises(psycopg.errors.UndefinedTable):
                await msg.transaction.execute("INSERT INTO nowhere VALUES (1)")

        with pytest.raises(OrbitMQError, match="cannot be committed") as caught:
            await handle(place, guard, FakeMessage(), then=swallow)
        assert "savepoint" in caught.value.hint
        assert await handle(place, guard, FakeMessage())
        await guard.close()

    run_case(case, place)  # type: ignore[arg-type]


def test_two_members_that_start_together_make_one_table(place: PostgresPlace) -> None:
    async def case(place: PostgresPlace) -> None:
        guards = [place.guard() for _ in range(4)]
        await asyncio.gather(*(guard.open() for guard in guards))
        assert await handle(place, guards[0], FakeMessage())
        await asyncio.gather(*(guard.close() for guard in guards))

    run_case(case, place)  # type: ignore[arg-type]


def test_more_handlers_than_connections_take_turns(place: PostgresPlace) -> None:
    async def case(place: PostgresPlace) -> None:
        guard = await opened(place, connections=2)
        messages = [FakeMessage(keys=[f"order-{number:02}"]) for number in range(20)]
        assert all(await asyncio.gather(*(handle(place, guard, msg) for msg in messages)))
        assert len(await place.effects()) == 20
        await guard.close()

    run_case(case, place)  # type: ignore[arg-type]


def test_a_database_out_of_reach_is_told_when_the_consumer_starts(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.client.dedup.postgres.CONNECT_SECONDS", 0.3)
    guard = Dedup.redis_postgres(servers[0].url, "postgresql://me:secret@127.0.0.1:1/shop")
    with pytest.raises(Unreachable, match="127.0.0.1:1/shop") as caught:
        asyncio.run(guard.open())
    assert "secret" not in str(caught.value) and "dsn" in caught.value.hint
