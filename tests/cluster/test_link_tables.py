"""Tables over a group's link: before the log, in order, and answered for only when they are saved."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_links import Links, put, same_log, until, with_links

TOPICS = {"topicConfigTable": {"Copied": {"readQueueNums": 4}}, "dataVersion": {"counter": 1}}


def test_a_slave_gets_all_tables_before_the_log(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        tables = {"offsets": b'{"offsetTable":{"Copied@g":{0:1}}}', "topics": TOPICS}
        master = await links.master(tmp_path / "m", tables)
        put(master.store, b"one", b"two")
        slave = links.slave(tmp_path / "s", master)
        await until(lambda: same_log(master.store, slave.store), "the log arrives")
        assert slave.tables == [
            ("offsets", {"offsetTable": {"Copied@g": {0: 1}}}, 0),
            ("topics", TOPICS, 0),
        ]
        await master.has_member(2)
        master.shipper.send_table("topics", {"changed": True})
        before = master.store.log.position
        put(master.store, b"three")
        await until(lambda: same_log(master.store, slave.store), "more of the log arrives")
        assert slave.tables[2] == ("topics", {"changed": True}, before)

    with_links(run)


def test_a_table_is_answered_for_when_it_is_saved_and_until_then_nobody_joins(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        saving: list[asyncio.Future[None]] = []

        def apply(name: str, data: dict[str, Any]) -> asyncio.Future[None]:
            saving.append(asyncio.get_running_loop().create_future())
            return saving[-1]

        master = await links.master(tmp_path / "m", {"topics": TOPICS})
        end = put(master.store, b"one")
        links.slave(tmp_path / "s", master, apply_table=apply)
        await until(lambda: saving and 2 in master.in_sync.ack_set and master.in_sync.held == end, "the log")
        assert master.in_sync.wish() is None  # elected now, it would not know the topic
        saving[0].set_result(None)
        await master.has_member(2)

        shipper = master.shipper
        first = shipper.table_saved("topics", shipper.send_table("topics", TOPICS))
        second = shipper.table_saved("groups", shipper.send_table("groups", {}))
        everything = asyncio.ensure_future(shipper.tables_saved())
        await until(lambda: len(saving) == 3, "both arrive")
        saving[2].set_result(None)
        await asyncio.sleep(0.05)
        assert not first.done()
        assert not second.done()  # reports come in order
        saving[1].set_result(None)
        assert await first
        assert await second
        assert await everything

    with_links(run)


def test_a_change_waits_for_members_only_and_not_for_ever(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m", table_timeout_ms=200)
        shipper = master.shipper
        assert await shipper.table_saved("topics", shipper.send_table("topics", TOPICS))
        slave = links.slave(tmp_path / "s", master)
        await master.has_member(2)
        await slave.stop()
        await until(lambda: not shipper.links, "it is gone")
        assert not await shipper.table_saved("topics", shipper.send_table("topics", TOPICS))
        waiting = shipper.table_saved("topics", shipper.send_table("topics", TOPICS))
        master.in_sync.asked({1})
        master.in_sync.granted({1}, master.in_sync.version + 1)
        assert await waiting

    with_links(run)


def refuses(name: str, data: dict[str, Any]) -> None:
    raise ValueError("no such table")


def cannot_save(name: str, data: dict[str, Any]) -> asyncio.Future[None]:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failed.set_exception(OSError(28, "No space left on device"))
    return failed


@pytest.mark.parametrize(("apply", "problem"), [(refuses, "no such table"), (cannot_save, "No space left")])
def test_a_table_that_cannot_be_taken_over_is_not_answered_for(
    tmp_path: Path, apply: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m", {"topics": TOPICS})
        links.slave(tmp_path / "s", master, apply_table=apply)
        await until(lambda: problem in caplog.text, "it says why")
        assert not master.shipper.tables.has_all(2)
        assert master.in_sync.wish() is None

    with caplog.at_level(logging.WARNING, "orbitmq.cluster"):
        with_links(run)


def test_of_a_table_that_changes_often_only_the_newest_is_sent(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m")
        slave = links.slave(tmp_path / "s", master)
        await until(lambda: slave.receiver.link is not None, "it is there")
        for number in range(100):
            master.shipper.send_table("offsets", {"n": number})
        await until(lambda: master.shipper.tables.has_all(2), "it is saved")
        assert [data["n"] for _, data, _ in slave.tables] == [99]

    with_links(run)
