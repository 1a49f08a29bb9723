"""The log over a group's link: from where it goes on, what must be cut, what is shown, and what a bad slave does."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from orbitmq.cluster.epochs import EpochHistory
from orbitmq.cluster.slave_link import WRITE_HIGH_BYTES
from orbitmq.store.cutting import cut_store
from orbitmq.store.disk import Disk
from orbitmq.store.durability import Durable
from tests.support.cut_proxy import cut_proxy
from tests.support.group_links import Links, bodies_of, put, same_log, until, with_links
from tests.support.stores import open_small, small_settings


def many(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % number + bytes(700) for number in range(start, start + count)]


@pytest.mark.parametrize("sync_flush", [False, True])
def test_the_slave_has_the_same_bytes_over_several_files(tmp_path: Path, sync_flush: bool) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m", sync_flush=sync_flush, block_bytes=1000)
        put(master.store, *many(60))
        slave = links.slave(tmp_path / "s", master, sync_flush=sync_flush)
        await master.has_member(2)
        answers: list[Durable] = []
        for body in many(60, 60):
            master.store.when_durable(put(master.store, body), answers.append)
        await until(lambda: len(answers) == 60, "all are answered")
        assert set(answers) == {Durable.YES}
        assert same_log(master.store, slave.store)
        await until(lambda: bodies_of(slave.store) == many(120), "all are shown")

    with_links(run)


def test_an_old_master_must_cut_what_nobody_else_has(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        first = await links.master(tmp_path / "a")
        put(first.store, b"one", b"two")
        copy = links.slave(tmp_path / "b", first)
        await until(lambda: same_log(first.store, copy.store), "both have it")
        await copy.stop()
        shared = first.store.log.position
        put(first.store, b"only here", b"and this")
        await first.stop()

        second = await links.master(tmp_path / "b", epoch=2, history=copy.history)
        put(second.store, b"three")
        old = links.slave(tmp_path / "a", second, replica=3, history=first.mastership.history)
        await until(lambda: old.cuts, "it is told to cut")
        await until(lambda: not second.shipper.links, "the connection is given up")
        await asyncio.sleep(0.3)
        assert old.cuts == [shared]  # nothing more is tried before that is done
        assert not second.shipper.slaves
        assert old.history == first.mastership.history
        assert second.in_sync.ack_set == {1}
        await old.stop()

        cut_store(Disk(), small_settings(tmp_path / "a"), shared)
        old = links.slave(tmp_path / "a", second, replica=3, history=old.history.cut(shared))
        await until(lambda: same_log(second.store, old.store), "it follows")
        await second.has_member(3)
        await until(lambda: bodies_of(old.store) == [b"one", b"two", b"three"], "all are shown")
        assert old.history == second.mastership.history == EpochHistory(((1, 0), (2, shared)))

    with_links(run)


def test_the_history_is_saved_before_the_first_byte(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m", epoch=7)
        put(master.store, b"one")
        slave = links.slave(tmp_path / "s", master)
        take, saved = slave.follower.take, []

        def watched(offset: int, data: bytes) -> None:
            saved.append(slave.history)
            take(offset, data)

        slave.follower.take = watched  # type: ignore[method-assign]
        await until(lambda: same_log(master.store, slave.store), "the log arrives")
        assert saved[0] == master.mastership.history

    with_links(run)


def test_a_slave_that_is_too_far_behind_begins_anew(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m")
        put(master.store, *many(150))
        for base in master.store.log.series.bases[:2]:
            master.store.log.series.remove(base)
        assert master.store.log.start > 0
        store = open_small(tmp_path / "behind")
        put(store, b"long ago")
        store.close()
        behind = links.slave(tmp_path / "behind", master, history=EpochHistory(((1, 0),)))
        await until(lambda: behind.cuts, "it is told to cut")
        assert behind.cuts == [0]
        await behind.stop()

        cut_store(Disk(), small_settings(tmp_path / "behind"), 0)
        behind = links.slave(tmp_path / "behind", master, history=EpochHistory())
        await until(lambda: same_log(master.store, behind.store), "it gets what there is")
        assert behind.store.log.start == master.store.log.start
        await master.has_member(2)
        behind.follower.open_to(master.store.log.position)
        shown = bodies_of(behind.store)
        assert shown == many(150)[-len(shown) :]
        assert len(shown) > 50

    with_links(run)


def test_a_store_from_elsewhere_is_neither_cut_nor_followed_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m")
        store = open_small(tmp_path / "s")
        put(store, b"somebody's data")
        store.close()
        slave = links.slave(tmp_path / "s", master)
        await until(lambda: "no master of a group wrote" in caplog.text, "it says so")
        assert slave.cuts == []
        assert master.in_sync.ack_set == {1}

    with caplog.at_level(logging.WARNING, "orbitmq.cluster"):
        with_links(run)


def test_a_slave_shows_only_what_all_of_the_ack_set_have(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m")
        shown = put(master.store, b"seen by all")
        async with cut_proxy(master.address) as wire:
            quick = links.slave(tmp_path / "s2", master)
            links.slave(tmp_path / "s3", master, replica=3, address=wire.addr)
            await until(lambda: master.in_sync.wish() == {1, 2, 3}, "both join")
            master.grant()
            await until(lambda: quick.receiver.confirm_offset == shown, "the first is confirmed")
            wire.swallow()
            end = put(master.store, b"not yet")
            await until(lambda: master.shipper.links[2].reported == end, "the quick one has it")
            assert quick.store.log.position == end
            assert bodies_of(quick.store) == [b"seen by all"]
            assert master.in_sync.confirm_offset == shown
            wire.flow()
            await until(lambda: bodies_of(quick.store) == [b"seen by all", b"not yet"], "it is shown")
            assert quick.receiver.confirm_offset == end

    with_links(run)


def test_a_slave_that_does_not_read_is_slow_and_not_a_burden(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m", file_bytes=4 << 20)
        async with cut_proxy(master.address) as wire:
            slave = links.slave(tmp_path / "s", master, address=wire.addr, file_bytes=4 << 20)
            await until(lambda: slave.receiver.link is not None, "it is there")
            wire.swallow()
            buffered: list[int] = []
            # Until the system's own buffers are full, and as much again.
            while not buffered or buffered[len(buffered) // 2] < WRITE_HIGH_BYTES:
                put(master.store, bytes(60_000))
                await asyncio.sleep(0)
                buffered.append(master.shipper.links[2].buffered_bytes)
                assert len(buffered) < 2000
            assert max(buffered) < WRITE_HIGH_BYTES + (1 << 19)
            wire.flow()
            await until(lambda: same_log(master.store, slave.store), "it catches up")
            await master.has_member(2)

    with_links(run)


def test_a_slave_that_vanishes_in_the_middle_of_a_block_goes_on_where_it_was(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m", block_bytes=3000)
        put(master.store, *many(5))
        async with cut_proxy(master.address) as wire:
            wire.cut_after("to_client", 1000)
            slave = links.slave(tmp_path / "s", master, address=wire.addr)
            for cuts, count in enumerate((5, 300, 1, 4321, 777), start=1):
                await until(lambda cuts=cuts: wire.cuts == cuts, "the connection is cut")
                wire.cut_after("to_client", count)
                put(master.store, *many(20))
            await until(lambda: wire.cuts == 6, "the connection is cut for the last time")
            await until(lambda: same_log(master.store, slave.store), "it has everything")
            assert slave.cuts == []
            await master.has_member(2)

    with_links(run)


def test_a_side_that_is_silent_for_too_long_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m", silence_ms=400)
        async with cut_proxy(master.address) as wire:
            slave = links.slave(tmp_path / "s", master, silence_ms=400, address=wire.addr)
            await until(lambda: slave.receiver.link is not None, "it is there")
            wire.swallow()
            await until(lambda: "no report for 0.4 s" in caplog.text, "the master gives up the slave")
            await until(lambda: "silent for 0.4 s" in caplog.text, "the slave gives up the master")
            await until(lambda: 2 not in master.shipper.links, "it does not count any more")
            wire.flow()
            put(master.store, b"again")
            await until(lambda: same_log(master.store, slave.store), "it is back")

    with caplog.at_level(logging.WARNING, "orbitmq.cluster"):
        with_links(run)


def test_another_master_is_followed_as_soon_as_it_is_named(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        old = await links.master(tmp_path / "a")
        new = await links.master(tmp_path / "b", epoch=2)
        put(new.store, b"of the new one")
        slave = links.slave(tmp_path / "s", old)
        await until(lambda: 2 in old.shipper.links, "it follows the old one")
        assert slave.target is not None
        slave.target = replace(slave.target, address=new.address, epoch=2)
        await until(lambda: same_log(new.store, slave.store), "it follows the new one")
        assert old.shipper.links == {}
        slave.target = None
        await until(lambda: not new.shipper.links, "it follows nobody")

    with_links(run)
