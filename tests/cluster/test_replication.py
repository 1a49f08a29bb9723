"""Master and slave as real processes: the slave's log is the master's, byte for byte, whatever happens in between."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orbitmq.wire.codes import RequestCode, ResponseCode
from scripts.serving import ServerFailed
from tests.support.raw_client import RawClient, pull_ext, send_ext
from tests.support.server_process import BrokerProcess, ServerProcess

LOG_FILE = 1 << 20
COMMON = {"mappedFileSizeCommitLog": LOG_FILE, "brokerName": "broker-a", "registerNameServerPeriod": 10_000}
SLAVE = {**COMMON, "brokerRole": "SLAVE", "brokerId": 1}


class Pair:
    """A master with its name server, and a slave that follows it."""

    def __init__(self, directory: Path, **settings: str | int | bool) -> None:
        self.directory = directory
        self.settings = settings
        self.master = ServerProcess(directory, **{**COMMON, **settings})
        self.slave = self.new_slave()

    def new_slave(self, name: str = "slave", number: int = 1) -> BrokerProcess:
        shared = {key: value for key, value in self.settings.items() if key != "brokerRole"}
        chosen = {**SLAVE, **shared, "brokerId": number}
        return BrokerProcess(self.directory, self.master.namesrv, name, **chosen)

    def stop(self) -> None:
        for process in (self.slave, self.master):
            if process.running:
                process.kill()


@pytest.fixture
def make_pair(tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(**settings: str | int | bool) -> Pair:
        made.append(Pair(tmp_path, **settings))
        return made[-1]

    yield make
    for pair in made:
        pair.stop()


async def send(addr: str, topic: str, bodies: list[bytes]) -> list[int]:
    """Sends one after the other; the answers' codes."""
    codes: list[int] = []
    async with RawClient(addr) as client:
        for body in bodies:
            text = f"UNIQ_KEY\x01{uuid.uuid4().hex.upper()}\x02WAIT\x01true"
            codes.append((await client.ask(RequestCode.SEND_MESSAGE_V2, send_ext(topic, 0, text), body)).code)
    return codes


def log_bytes(data: Path) -> bytes:
    files = sorted((data / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)


def eventually(condition: Callable[[], bool], what: str, limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.05)


def same_log(pair: Pair, slave: BrokerProcess | None = None) -> bool:
    theirs = log_bytes((slave or pair.slave).data).rstrip(b"\0")
    return theirs == log_bytes(pair.master.data).rstrip(b"\0")


def pull_code(broker: BrokerProcess, topic: str) -> int:
    async def ask() -> int:
        async with RawClient(broker.broker_addr) as client:
            return (await client.ask(RequestCode.PULL_MESSAGE, pull_ext(topic, 0, 0))).code

    return asyncio.run(ask())


async def read_all(addr: str, topic: str) -> list[bytes]:
    async with RawClient(addr) as client:
        return [message.body for message in await client.read_queue(topic, 0)]


def test_the_slave_has_the_masters_log_and_serves_it_when_the_master_is_gone(
    make_pair: Callable[..., Pair],
) -> None:
    pair = make_pair(flushDiskType="ASYNC_FLUSH")
    bodies = [b"%05d" % number + bytes(2000) for number in range(1200)]  # across log files
    assert set(asyncio.run(send(pair.master.broker_addr, "Copied", bodies))) == {ResponseCode.SUCCESS}
    eventually(lambda: same_log(pair), "the slave has everything")
    eventually(lambda: (pair.slave.data / "config" / "topics.json").exists(), "topics followed")

    def knows_topic() -> bool:
        return pull_code(pair.slave, "Copied") != ResponseCode.TOPIC_NOT_EXIST

    eventually(knows_topic, "the slave knows the topic")
    assert pull_code(pair.slave, "Copied") == ResponseCode.PULL_RETRY_IMMEDIATELY
    pair.master.kill()

    eventually(lambda: pull_code(pair.slave, "Copied") == ResponseCode.SUCCESS, "the slave serves reads")
    assert asyncio.run(read_all(pair.slave.broker_addr, "Copied")) == bodies


def test_a_slave_takes_no_message(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(flushDiskType="ASYNC_FLUSH")
    asyncio.run(send(pair.master.broker_addr, "Known", [b"yes"]))
    assert asyncio.run(send(pair.slave.broker_addr, "Known", [b"no"])) == [ResponseCode.SERVICE_NOT_AVAILABLE]


def test_a_slave_killed_again_and_again_catches_up(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    for turn in range(4):
        bodies = [b"%d-%04d" % (turn, number) + bytes(3000) for number in range(150)]
        if turn % 2:
            pair.slave.kill()
        asyncio.run(send(pair.master.broker_addr, "Torn", bodies[:75]))
        if turn % 2:
            pair.slave.start()
        asyncio.run(send(pair.master.broker_addr, "Torn", bodies[75:]))
    eventually(lambda: same_log(pair), "the slave has everything")


def test_a_late_slave_gets_everything_there_is(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(flushDiskType="ASYNC_FLUSH")
    asyncio.run(send(pair.master.broker_addr, "Early", [bytes([65 + n % 26]) * 3000 for n in range(800)]))
    late = pair.new_slave("late", number=2)
    try:
        eventually(lambda: same_log(pair, late), "the late slave has everything")
    finally:
        late.kill()


def test_double_write_names_the_copy_it_reached(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(brokerRole="SYNC_MASTER", slaveTimeout=700, flushDiskType="ASYNC_FLUSH")
    address = pair.master.broker_addr

    def one(body: bytes) -> int:
        return asyncio.run(send(address, "Twice", [body]))[0]

    eventually(lambda: one(b"warm") == ResponseCode.SUCCESS, "a slave confirms")
    assert one(b"both have it") == ResponseCode.SUCCESS
    os.kill(pair.slave.pid, signal.SIGSTOP)
    try:
        assert one(b"the slave sleeps") == ResponseCode.FLUSH_SLAVE_TIMEOUT
    finally:
        os.kill(pair.slave.pid, signal.SIGCONT)
    eventually(lambda: one(b"it is awake") == ResponseCode.SUCCESS, "the slave is back")
    pair.slave.kill()
    eventually(lambda: one(b"alone") == ResponseCode.SLAVE_NOT_AVAILABLE, "no slave")
    bodies = asyncio.run(read_all(address, "Twice"))
    assert b"the slave sleeps" in bodies
    assert b"alone" in bodies


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_that_double_write_confirmed_is_lost_with_the_master(
    make_pair: Callable[..., Pair], flush: str
) -> None:
    pair = make_pair(brokerRole="SYNC_MASTER", flushDiskType=flush)
    eventually(
        lambda: asyncio.run(send(pair.master.broker_addr, "Safe", [b"warm"])) == [ResponseCode.SUCCESS],
        "a slave",
    )
    bodies = [b"%05d" % number for number in range(300)]
    codes = asyncio.run(send(pair.master.broker_addr, "Safe", bodies))
    pair.master.kill()
    confirmed = {body for body, code in zip(bodies, codes, strict=True) if code == ResponseCode.SUCCESS}
    assert len(confirmed) > 250
    eventually(lambda: pull_code(pair.slave, "Safe") == ResponseCode.SUCCESS, "the slave serves reads")
    eventually(
        lambda: confirmed <= set(asyncio.run(read_all(pair.slave.broker_addr, "Safe"))), "all are there"
    )


def test_roles_that_contradict_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="contradict"):
        ServerProcess(tmp_path, brokerRole="SLAVE")
