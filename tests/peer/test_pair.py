"""A Java slave follows this broker, and this broker follows a Java master: the copies are equal to the byte.

Needs Java and Maven (the jars come from Maven Central): run by `make peer`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orbitmq.broker.master_check import clock_of
from orbitmq.server import now_ms
from orbitmq.wire.codes import RequestCode, ResponseCode
from tests.cluster.test_pair_reading import Trio
from tests.peer.java_peer import JavaPeer, drain, peer
from tests.support.raw_client import RawClient, pull_ext, send_ext
from tests.support.server_process import BrokerProcess, ServerProcess, free_broker_port, free_port

pytestmark = pytest.mark.peer

SIZES: dict[str, str | int] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 100 * 20,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}
NAMES = {"brokerClusterName": "PeerCluster", "brokerName": "broker-a"}
SLAVE: dict[str, str | int] = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}
TOPIC = "Pair"
BODIES = [b"%04d" % number + bytes(2500) for number in range(700)]  # across two log files


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="orbitmq-pair-") as root:
        yield Path(root)


async def send(addr: str, start: int, end: int) -> None:
    async with RawClient(addr) as client:
        await client.create_topic(TOPIC, 2)
        for number, body in enumerate(BODIES[start:end], start):
            text = f"UNIQ_KEY\x01{uuid.uuid4().hex.upper()}\x02WAIT\x01true\x02KEYS\x01k{number % 7}"
            await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, number % 2, text), body)


def log_bytes(data: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((data / "commitlog").glob("0*"))).rstrip(b"\0")


def eventually(condition: Callable[[], bool], what: str, limit_s: float = 40) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.2)


def send_and_compare(addr: str, master: Path, slave: Path) -> None:
    """A new slave of a Java master gets its last file only, so the slave must be there before there are two."""
    asyncio.run(send(addr, 0, 1))
    eventually(lambda: log_bytes(slave) == log_bytes(master) != b"", "the slave follows")
    asyncio.run(send(addr, 1, len(BODIES)))
    eventually(lambda: log_bytes(slave) == log_bytes(master), "the slave has the whole log")


async def is_served(addr: str) -> bool:
    async with RawClient(addr) as client:
        return (
            await client.ask(RequestCode.PULL_MESSAGE, pull_ext(TOPIC, 1, 0))
        ).code == ResponseCode.SUCCESS


async def read_both(addr: str) -> list[bytes]:
    async with RawClient(addr) as client:
        queues = [await client.read_queue(TOPIC, queue_id) for queue_id in (0, 1)]
    return sorted(message.body for queue in queues for message in queue)


def test_a_java_slave_follows_this_master(directory: Path) -> None:
    with ServerProcess(directory / "master", **{**SIZES, **NAMES}) as master:
        port, data = free_broker_port(), directory / "slave"
        settings = [f"{key}={value}" for key, value in {**SIZES, **SLAVE}.items()]
        started = json.loads(peer("broker", str(port), str(data), master.namesrv, *settings))
        try:
            send_and_compare(master.broker_addr, master.data, data)
            slave = f"127.0.0.1:{port}"
            eventually(lambda: asyncio.run(is_served(slave)), "it knows the topic and serves it")
            assert asyncio.run(read_both(slave)) == BODIES
        finally:
            peer("stop", started["name"])


def test_this_slave_follows_a_java_master(directory: Path) -> None:
    with JavaPeer(directory / "master", SIZES) as java:
        java.start()
        slave = BrokerProcess(directory, java.namesrv, "slave", **{**SIZES, **NAMES, **SLAVE})
        try:
            send_and_compare(java.broker_addr, directory / "master", slave.data)
            eventually(lambda: asyncio.run(is_served(slave.broker_addr)), "it knows the topic and serves it")
            assert asyncio.run(read_both(slave.broker_addr)) == BODIES
            slave.kill()
            slave.start()
            java.kill()
            eventually(
                lambda: asyncio.run(is_served(slave.broker_addr)), "it serves alone after its own crash"
            )
            assert asyncio.run(read_both(slave.broker_addr)) == BODIES
        finally:
            slave.kill()


def test_this_slave_refuses_a_java_master_that_is_not_its_own(directory: Path) -> None:
    """Java's answers tell name, log and clock as ours do."""
    with ServerProcess(directory / "elsewhere", **{**SIZES, **NAMES}) as elsewhere:
        asyncio.run(send(elsewhere.broker_addr, 0, 5))
    with JavaPeer(directory / "master", SIZES) as java:
        java.start()
        asyncio.run(send(java.broker_addr, 0, 10))
        ha_address = f"127.0.0.1:{int(java.broker_addr.rpartition(':')[2]) + 1}"
        stray = {**SIZES, **NAMES, **SLAVE, "brokerName": "broker-z", "haMasterAddress": ha_address}
        told = "has brokerName=broker-a, this slave has brokerName=broker-z"
        refused(BrokerProcess(directory, f"127.0.0.1:{free_port()}", "stray", **stray), told)
        foreign = {**SIZES, **NAMES, **SLAVE}
        (directory / "elsewhere" / "data").rename(directory / "foreign")
        told = "this store does not belong to broker-a's master"
        refused(BrokerProcess(directory, java.namesrv, "foreign", **foreign), told)
        assert clock_of(asyncio.run(runtime_info(java.broker_addr))) == pytest.approx(now_ms(), abs=10_000)


def test_the_official_client_reads_old_messages_from_this_slave(directory: Path) -> None:
    trio = Trio(directory, slaveReadEnable=True, accessMessageInMemoryMaxRatio=0)
    try:
        bodies = [b"%04d" % number for number in range(200)]
        trio.stored("Old", bodies)
        assert [message.body for message in drain(trio.namesrv, ["Old"])] == bodies
        by_master, by_slave = (handed_out(each) for each in (trio.master, trio.slave))
        assert 0 < by_master < by_slave
        assert by_master + by_slave == 200
    finally:
        trio.stop()


def handed_out(broker: BrokerProcess) -> int:
    return int(json.loads(asyncio.run(runtime_info(broker.broker_addr)))["table"]["msgGetTotalTodayNow"])


def refused(slave: BrokerProcess, told: str) -> None:
    try:
        eventually(lambda: told in slave.printed, told)
        assert "following the log of" not in slave.printed
    finally:
        slave.kill()


async def runtime_info(addr: str) -> bytes:
    async with RawClient(addr) as client:
        return (await client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)).body
