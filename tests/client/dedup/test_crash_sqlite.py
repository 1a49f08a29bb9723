"""Exactly one effect with SQLite, whatever happens to the consumer processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.client.dedup.crashes import GROUP, TOPIC, crash_around_the_commit, members_come_and_go
from tests.client.dedup.worker import Job
from tests.support.server_process import ServerProcess

KEYS = [f"payment-{number}" for number in range(90)]


@pytest.mark.parametrize("story", [crash_around_the_commit, members_come_and_go])
def test_each_payment_is_made_once(
    story: Callable[[Job, list[str], Callable[[], list[str]]], None], tmp_path: Path
) -> None:
    database = tmp_path / "bank.db"
    with closing(sqlite3.connect(database)) as db, db:
        db.execute("CREATE TABLE effects (name TEXT)")

    def effects() -> list[str]:
        with closing(sqlite3.connect(database)) as db:
            return [name for (name,) in db.execute("SELECT name FROM effects")]

    with ServerProcess(tmp_path) as server:
        story(Job(server.namesrv, TOPIC, GROUP, sqlite=str(database)), KEYS, effects)
