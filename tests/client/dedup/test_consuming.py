"""`dedup=` in a running consumer, against a real broker: what a handler says counts only with its transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import orbitmq
from orbitmq.testing import Server

LIMIT_S = 20.0


class Bank:
    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE effects (name TEXT)")

    def effects(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as db:
            return [name for (name,) in db.execute("SELECT name FROM effects ORDER BY rowid")]


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path / "bank.db")


def consume(
    server: Server,
    bank: Bank,
    handler: Callable[..., Any],
    keys: list[str],
    done: Callable[[], bool],
    **options: Any,
) -> None:
    """Sends a message for each key and runs the handler until `done`; time passes, so that retries come at once."""

    async def main() -> None:
        app = orbitmq.App(server.namesrv)
        guard = orbitmq.Dedup.sqlite(bank.path)
        app.on("payments", group="bank", dedup=guard, start="earliest", **options)(handler)
        server.create_topic("payments")
        async with asyncio.timeout(LIMIT_S), app:
            for key in keys:
                await app.producer().send("payments", b"pay", keys=[key], order_key="one queue")
            while not done():
                await asyncio.sleep(0.02)
                await asyncio.to_thread(server.advance, minutes=1)

    asyncio.run(main())


@pytest.mark.parametrize("ordered", [False, True])
def test_two_sends_have_one_effect(orbitmq_server: Server, bank: Bank, ordered: bool) -> None:
    ran = []

    async def pay(msg: orbitmq.Message) -> None:
        await msg.transaction.execute("INSERT INTO effects VALUES (?)", (msg.keys[0],))
        ran.append(msg.keys[0])

    keys = ["a", "b", "a", "c", "b", "last"]
    consume(orbitmq_server, bank, pay, keys, lambda: "last" in bank.effects(), ordered=ordered, concurrency=1)
    assert bank.effects() == ["a", "b", "c", "last"] == ran


def test_a_handler_that_is_not_async_has_the_same_transaction(orbitmq_server: Server, bank: Bank) -> None:
    def pay(msg: orbitmq.Message) -> None:
        assert msg.transaction.execute("INSERT INTO effects VALUES (?)", (msg.keys[0],)) == 1
        assert (msg.keys[0],) in msg.transaction.fetch("SELECT name FROM effects")

    consume(orbitmq_server, bank, pay, ["a", "a", "last"], lambda: "last" in bank.effects(), concurrency=1)
    assert bank.effects() == ["a", "last"]


@pytest.mark.parametrize("how", ["raise", "retry", "retry in a thread"])
def test_a_failed_try_has_no_effect_and_the_next_one_does(
    orbitmq_server: Server, bank: Bank, how: str
) -> None:
    tries = []

    async def pay(msg: orbitmq.Message) -> None:
        await msg.transaction.execute("INSERT INTO effects VALUES (?)", (f"try {msg.reconsume_times}",))
        tries.append(msg.reconsume_times)
        if msg.reconsume_times == 0:
            assert how != "raise", "on purpose"
            msg.retry()

    def pay_in_thread(msg: orbitmq.Message) -> None:
        msg.transaction.execute("INSERT INTO effects VALUES (?)", (f"try {msg.reconsume_times}",))
        tries.append(msg.reconsume_times)
        if msg.reconsume_times == 0:
            msg.retry()

    handler = pay_in_thread if "thread" in how else pay
    consume(orbitmq_server, bank, handler, ["a"], lambda: bool(bank.effects()))
    assert tries == [0, 1] and bank.effects() == ["try 1"]


def test_a_dead_letter_has_no_effect_and_is_new_when_it_is_redriven(
    orbitmq_server: Server, bank: Bank
) -> None:
    async def pay(msg: orbitmq.Message) -> None:
        await msg.transaction.execute("INSERT INTO effects VALUES (?)", (msg.keys[0],))
        if not orbitmq_server.dead("bank"):
            msg.dead("no account")

    def dead() -> bool:
        return len(orbitmq_server.dead("bank")) == 1

    consume(orbitmq_server, bank, pay, ["a"], dead)
    assert bank.effects() == []

    async def redrive() -> None:
        async with orbitmq.connect(orbitmq_server.namesrv) as mq:
            await mq.admin.redrive("bank")

    asyncio.run(redrive())
    consume(orbitmq_server, bank, pay, [], lambda: bool(bank.effects()))
    assert bank.effects() == ["a"]


def test_an_early_ack_waits_for_the_commit(orbitmq_server: Server, bank: Bank) -> None:
    """`msg.ack()` in the handler, then an error: the message must come again."""
    tries = []

    async def pay(msg: orbitmq.Message) -> None:
        tries.append(msg.reconsume_times)
        await msg.transaction.execute("INSERT INTO effects VALUES (?)", (f"try {len(tries)}",))
        msg.ack()
        assert len(tries) > 1, "on purpose"

    consume(orbitmq_server, bank, pay, ["a"], lambda: bool(bank.effects()))
    assert bank.effects() == ["try 2"]


def test_iterating_with_dedup_is_refused_because_nothing_would_guard_it(
    orbitmq_server: Server, bank: Bank
) -> None:
    async def main() -> None:
        orbitmq_server.create_topic("payments")
        guard = orbitmq.Dedup.sqlite(bank.path)
        async with (
            orbitmq.connect(orbitmq_server.namesrv) as mq,
            mq.consumer("bank", "payments", dedup=guard) as consumer,
        ):
            with pytest.raises(orbitmq.BadRequest, match="dedup=") as caught:
                aiter(consumer)
        assert "run(handler)" in caught.value.hint

    asyncio.run(main())
