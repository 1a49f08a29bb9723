"""Reading from a slave: when the master's memory is overrun, when it is dead, and back when that is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import orbitmq
from orbitmq.client.admin.brokers import broker_runtime
from orbitmq.wire.codes import RequestCode, ResponseCode
from tests.cluster.test_replication import COMMON, SLAVE, eventually, log_bytes, send
from tests.support.consuming import run
from tests.support.raw_client import RawClient, pull_ext
from tests.support.server_process import BrokerProcess, OrbitProcess, free_port

LIMIT_S = 40.0


class Trio:
    """Name server, master and slave, each in its own process: the master can die alone."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        port = free_port()
        self.namesrv = f"127.0.0.1:{port}"
        args = ["namesrv", "--port", str(port), "--data", str(directory / "names")]
        self.names = OrbitProcess(args, ready="OrbitMQ name server ready")
        both = {"flushDiskType": "ASYNC_FLUSH", **settings}
        self.master = BrokerProcess(directory, self.namesrv, "master", **{**COMMON, **both})
        self.slave = BrokerProcess(directory, self.namesrv, "slave", **{**SLAVE, **both})

    def stored(self, topic: str, bodies: list[bytes]) -> None:
        """In the master's log and in the slave's, which knows the topic."""
        codes = asyncio.run(send(self.master.broker_addr, topic, bodies))
        assert set(codes) == {ResponseCode.SUCCESS}
        eventually(lambda: log_bytes(self.slave.data) == log_bytes(self.master.data), "the slave has it")

    def stop(self) -> None:
        for process in (self.slave, self.master, self.names):
            if process.running:
                process.kill()


@pytest.fixture
def make_trio(tmp_path: Path) -> Iterator[Callable[..., Trio]]:
    made: list[Trio] = []

    def make(**settings: Any) -> Trio:
        made.append(Trio(tmp_path, **settings))
        return made[-1]

    yield make
    for trio in made:
        trio.stop()


async def pull(broker: BrokerProcess, topic: str, offset: int) -> tuple[int, int, int]:
    """Code, suggested broker, next offset."""
    async with RawClient(broker.broker_addr) as client:
        answer = await client.ask(RequestCode.PULL_MESSAGE, pull_ext(topic, 0, offset))
    return answer.code, int(answer.ext["suggestWhichBrokerId"]), int(answer.ext["nextBeginOffset"])


async def handed_out(mq: orbitmq.Client, broker: BrokerProcess) -> int:
    return int((await broker_runtime(mq.cluster, broker.broker_addr))["msgGetTotalTodayNow"])


async def receive(inbox: orbitmq.Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    async for message in inbox:
        async with message:
            found.append(message.body)
        if len(found) == count:
            break
    return found


def test_readers_of_old_messages_are_sent_to_the_slave_and_back(make_trio: Callable[..., Trio]) -> None:
    trio = make_trio(slaveReadEnable=True, accessMessageInMemoryMaxRatio=0)
    bodies = [b"%04d" % number + bytes(1000) for number in range(400)]
    trio.stored("Old", bodies)

    async def scenario() -> None:
        for broker in (trio.master, trio.slave):
            assert (await pull(broker, "Old", 0))[:2] == (ResponseCode.SUCCESS, 1)
            # Who has caught up reads what is in memory: that is the master's work.
            assert await pull(broker, "Old", 400) == (ResponseCode.PULL_NOT_FOUND, 0, 400)
        # An offset that the slave does not have is no reason to move a reader: the master may have it.
        assert await pull(trio.slave, "Old", 500) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 0, 500)
        assert (await pull(trio.master, "Old", 500))[::2] == (ResponseCode.PULL_OFFSET_MOVED, 400)
        async with orbitmq.connect(trio.namesrv) as mq:
            before = [await handed_out(mq, broker) for broker in (trio.master, trio.slave)]
            async with mq.consumer("old", "Old", start="first", page_bytes=64 * 1024) as inbox:
                assert sorted(await receive(inbox, 400)) == bodies
            after = [await handed_out(mq, broker) for broker in (trio.master, trio.slave)]
            by_master, by_slave = (new - old for new, old in zip(after, before, strict=True))
            assert by_master + by_slave == 400
            assert 0 < by_master < by_slave, "the first page comes from the master, the others from its slave"

    run(scenario, limit_s=LIMIT_S)


def test_a_group_reads_on_at_the_slave_of_a_dead_master_and_brings_its_progress_back(
    make_trio: Callable[..., Trio],
) -> None:
    trio = make_trio()
    bodies = [b"%04d" % number for number in range(200)]
    trio.stored("Dying", bodies[:100])

    async def scenario() -> None:
        async with orbitmq.connect(trio.namesrv) as mq:
            options: dict[str, Any] = {"start": "first", "commit_every": 0.1}
            async with mq.consumer("survivors", "Dying", **options) as inbox:
                assert await receive(inbox, 100) == bodies[:100]
                await asyncio.to_thread(trio.stored, "Dying", bodies[100:])
                trio.master.kill()
                assert await receive(inbox, 50) == bodies[100:150]
                await inbox.commit()
            async with mq.consumer("survivors", "Dying", **options) as inbox:
                # The one before told the slave how far it was.
                assert await receive(inbox, 50) == bodies[150:]
                await asyncio.to_thread(trio.master.start)
                async with asyncio.timeout(LIMIT_S):
                    while await committed(trio.master) != 200:
                        await asyncio.sleep(0.05)
                await mq.producer("p").send("Dying", b"new", queue=("broker-a", 0), timeout=10)
                assert await receive(inbox, 1) == [b"new"]

    run(scenario, limit_s=LIMIT_S)


async def committed(broker: BrokerProcess) -> int:
    async with RawClient(broker.broker_addr) as client:
        ext = {"consumerGroup": "survivors", "topic": "Dying", "queueId": "0"}
        return int((await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)).ext.get("offset") or -1)
