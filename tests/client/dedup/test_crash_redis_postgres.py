"""Exactly one effect with real Redis and PostgreSQL; collected where they are installed (see conftest.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from scripts.services import redis_and_postgres
from tests.client.dedup.crashes import GROUP, TOPIC, crash_around_the_commit, members_come_and_go
from tests.client.dedup.worker import Job
from tests.support.server_process import ServerProcess

KEYS = [f"payment-{number}" for number in range(90)]


@pytest.mark.parametrize("story", [crash_around_the_commit, members_come_and_go])
def test_each_payment_is_made_once(
    story: Callable[[Job, list[str], Callable[[], list[str]]], None], tmp_path: Path
) -> None:
    def effects() -> list[str]:
        return [name for (name,) in db.execute("SELECT name FROM effects")]

    with (
        redis_and_postgres() as (redis, postgres),
        ServerProcess(tmp_path) as server,
        psycopg.connect(postgres.dsn, autocommit=True) as db,
    ):
        db.execute("CREATE TABLE effects (name text)")
        job = Job(server.namesrv, TOPIC, GROUP, redis=redis.url, postgres=postgres.dsn)
        story(job, KEYS, effects)
