"""Who is let in on the port for slaves, and what is never counted as an ack."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from orbitmq.cluster.epochs import EpochHistory
from orbitmq.cluster.greeting import Greeting, GreetingReader, Hello, Refusal, Welcome, encode
from orbitmq.store.durability import Durable
from tests.support.group_links import BROKER, CLUSTER, Links, Master, put, same_log, until, with_links


async def connect(master: Master) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = master.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def read_greeting(reader: asyncio.StreamReader) -> Greeting:
    greetings = GreetingReader()
    while True:
        data = await reader.read(4096)
        assert data, "closed without a greeting"
        if (whole := greetings.feed(data)) is not None:
            return whole[0]


async def all_there_is(reader: asyncio.StreamReader) -> bytes:
    """Until the other side closes the connection, in whatever way."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def assert_nobody_counts(master: Master) -> None:
    answers: list[Durable] = []
    master.store.when_durable(put(master.store, b"alone"), answers.append)
    assert answers == [Durable.NO_COPY]
    assert master.in_sync.ack_set == {1}
    assert master.in_sync.wish() is None
    assert master.shipper.links == {}


def hello(master: Master, **other: object) -> Hello:
    fields: dict[str, object] = {
        "cluster": CLUSTER,
        "broker": BROKER,
        "replica": 2,
        "token": "token-2",
        "epoch": master.mastership.epoch,
        "end": 0,
        "history": EpochHistory(),
    }
    return Hello(**{**fields, **other})  # type: ignore[arg-type]


def test_a_slave_that_greets_properly_gets_the_log_and_joins(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m")
        put(master.store, b"one", b"two", b"three")
        slave = links.slave(tmp_path / "s", master)
        await until(lambda: same_log(master.store, slave.store), "the log arrives")
        await master.has_member(2)
        answers: list[Durable] = []
        master.store.when_durable(put(master.store, b"four"), answers.append)
        assert answers == []
        await until(lambda: answers, "an answer")
        assert answers == [Durable.YES]
        assert slave.history == master.mastership.history
        assert slave.cuts == []

    with_links(run)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"cluster": "another"}, "brokerClusterName"),
        ({"broker": "broker-b"}, "brokerName"),
        ({"epoch": 2}, "epoch 2, it is 3 by now"),
        ({"epoch": 4}, "epoch 4, this one served epoch 3"),
        ({"replica": 1}, "the master itself"),
    ],
)
def test_a_slave_that_does_not_belong_here_hears_why_and_never_counts(
    tmp_path: Path, other: dict[str, str | int], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m", epoch=3)
        put(master.store, b"one", b"two", b"three")
        slave = links.slave(tmp_path / "s", master, **other)
        with caplog.at_level(logging.WARNING, "orbitmq.cluster"):
            await until(lambda: "not following the master" in caplog.text, "the slave says so")
        problem = next(line for line in caplog.messages if line.startswith("not following the master"))
        assert "it refuses" in problem
        assert reason in problem
        assert slave.store.log.position == 0
        assert slave.receiver.link is None
        assert_nobody_counts(master)

    with_links(run)


def test_a_refused_slave_says_so_once_and_keeps_trying(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m")
        put(master.store, b"one", b"two", b"three")
        slave = links.slave(tmp_path / "s", master, broker="broker-b")
        refusals = "slave 127.0.0.1"
        await until(lambda: caplog.text.count(refusals) >= 3, "it tries on")
        assert caplog.text.count("not following the master") == 1
        assert slave.target is not None
        slave.target = replace(slave.target, broker=BROKER)
        await until(lambda: same_log(master.store, slave.store), "it follows now")

    with caplog.at_level(logging.WARNING, "orbitmq.cluster"):
        with_links(run)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param((0).to_bytes(8, "big"), id="the report of an empty plain slave"),
        pytest.param((300).to_bytes(8, "big") * 3, id="reports of a plain slave"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="a browser"),
        pytest.param(b"ORBITHA1\xff\xff\xff\xff", id="a greeting without end"),
        pytest.param(b"ORBITHA1\0\0\0\x02{}", id="a greeting that says nothing"),
        pytest.param(encode(Welcome(1, EpochHistory(), 0, 0)), id="a master"),
    ],
)
def test_whoever_does_not_greet_is_shut_out_and_never_counts(tmp_path: Path, data: bytes) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m")
        put(master.store, b"one", b"two", b"three")
        reader, writer = await connect(master)
        writer.write(data)
        assert await all_there_is(reader) == b""
        writer.close()
        await until(lambda: not master.shipper.slaves, "the connection is closed")
        assert_nobody_counts(master)

    with_links(run)


def test_a_probe_that_says_nothing_is_let_go_after_a_while(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m", silence_ms=200)
        put(master.store, b"one", b"two", b"three")
        reader, writer = await connect(master)
        await until(lambda: master.shipper.slaves, "it is connected")
        assert_nobody_counts(master)
        # A greeting that never ends, byte by byte, does not keep it open.
        reading = asyncio.create_task(all_there_is(reader))
        for byte in encode(hello(master, token="long" * 1000)):
            writer.write(bytes([byte]))
            await asyncio.wait([reading], timeout=0.02)
            if reading.done():
                break
        assert reading.done()
        assert reading.result() == b""
        writer.close()
        assert_nobody_counts(master)

    with_links(run)


def test_reports_before_the_greeting_is_whole_do_not_count(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m")
        put(master.store, b"one", b"two", b"three")
        reader, writer = await connect(master)
        report = master.store.log.position.to_bytes(8, "big")
        writer.write(encode(hello(master, broker="broker-b")) + report * 4)
        answer = await read_greeting(reader)
        assert isinstance(answer, Refusal)
        writer.close()
        await until(lambda: not master.shipper.slaves, "the connection is closed")
        assert_nobody_counts(master)

    with_links(run)


def test_where_a_slave_begins_is_not_yet_an_ack(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m")
        put(master.store, b"one", b"two", b"three")
        end = master.store.log.position
        reader, writer = await connect(master)
        writer.write(encode(hello(master, end=end, history=master.mastership.history)))
        answer = await read_greeting(reader)
        assert isinstance(answer, Welcome)
        assert (answer.end, answer.history) == (end, master.mastership.history)
        writer.write(end.to_bytes(8, "big"))
        await reader.readexactly(20)  # a heartbeat: the master has taken it in
        assert master.in_sync.ack_set == {1}
        writer.write(end.to_bytes(8, "big"))
        await until(lambda: master.in_sync.wish() == {1, 2}, "it joins")
        writer.close()

    with_links(run)


@pytest.mark.parametrize(("end", "report"), [(10_000_000, 10_000_000), (0, 50), (100, 0)])
def test_a_slave_that_goes_on_somewhere_else_than_it_greeted_with_is_shut_out(
    tmp_path: Path, end: int, report: int
) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m")
        put(master.store, b"one", b"two", b"three")
        reader, writer = await connect(master)
        writer.write(encode(hello(master, end=end, history=EpochHistory(((1, 0),)))))
        assert isinstance(await read_greeting(reader), Welcome)
        writer.write(report.to_bytes(8, "big") * 2)
        await until(lambda: not master.shipper.slaves, "the connection is closed")
        writer.close()
        assert_nobody_counts(master)

    with_links(run)


def test_a_slave_that_connects_anew_takes_the_place_of_its_old_connection(tmp_path: Path) -> None:
    async def run(links: Links) -> None:
        master = await links.master(tmp_path / "m")
        put(master.store, b"one", b"two", b"three")
        _, old = await connect(master)
        old.write(encode(hello(master)))
        await until(lambda: 2 in master.shipper.links, "it is there")
        first = master.shipper.links[2]
        reader, new = await connect(master)
        new.write(encode(hello(master)))
        assert isinstance(await read_greeting(reader), Welcome)
        await until(lambda: len(master.shipper.slaves) == 1, "the old connection is closed")
        assert master.shipper.links[2] is not first
        reader, other = await connect(master)
        other.write(encode(hello(master, token="another")))
        answer = await read_greeting(reader)
        assert isinstance(answer, Refusal)
        assert "another store" in answer.reason
        for writer in (old, new, other):
            writer.close()

    with_links(run)
