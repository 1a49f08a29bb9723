"""What a sender hears under each way of flushing and copying, when the disk or the slave does not keep up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orbitmq.broker.broker import Broker
from orbitmq.cluster.frames import BLOCK_HEAD, REPORT
from orbitmq.config import BrokerConfig
from orbitmq.server import now_ms
from orbitmq.store.disk import Disk
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from tests.support.raw_client import RawClient, send_ext

TOPIC = "Statuses"
OK = ResponseCode.SUCCESS
LATE_DISK = ResponseCode.FLUSH_DISK_TIMEOUT
LATE_SLAVE = ResponseCode.FLUSH_SLAVE_TIMEOUT
NO_SLAVE = ResponseCode.SLAVE_NOT_AVAILABLE

# By flush and role: what a sender hears for (no slave, one that is silent, one that follows), with a disk that works
# and with one that hangs. What is not waited for does not matter.
EXPECTED = {
    ("ASYNC_FLUSH", "ASYNC_MASTER"): ((OK, OK, OK), (OK, OK, OK)),
    ("ASYNC_FLUSH", "SYNC_MASTER"): ((NO_SLAVE, LATE_SLAVE, OK), (NO_SLAVE, LATE_SLAVE, OK)),
    ("SYNC_FLUSH", "ASYNC_MASTER"): ((OK, OK, OK), (LATE_DISK, LATE_DISK, LATE_DISK)),
    ("SYNC_FLUSH", "SYNC_MASTER"): ((NO_SLAVE, LATE_SLAVE, OK), (LATE_DISK, LATE_DISK, LATE_DISK)),
}


class HangingDisk(Disk):
    """Flushes wait while `works` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.works = threading.Event()
        self.works.set()

    def fdatasync(self, fd: int) -> None:
        assert self.works.wait(10)
        super().fdatasync(fd)


def configuration(root: Path, flush: str, role: str) -> BrokerConfig:
    config, unknown = BrokerConfig.from_properties(
        {
            "storePathRootDir": str(root),
            "brokerIP1": "127.0.0.1",
            "listenHost": "127.0.0.1",
            "listenPort": "0",
            "brokerName": "b",
            "flushDiskType": flush,
            "brokerRole": role,
            "syncFlushTimeout": "150",
            "slaveTimeout": "150",
            "mappedFileSizeCommitLog": str(256 * 1024),
        }
    )
    assert not unknown
    config.fill_blanks(host_name="b", ip="127.0.0.1")
    return config


@asynccontextmanager
async def slave_of(broker: Broker, kind: str) -> AsyncIterator[None]:
    """A slave that has the log as it is now; one that `follows` confirms what comes after, too."""
    if kind == "none":
        yield
        return
    host, _, port = broker.ha_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    end = broker.store.log.position
    writer.write(REPORT.pack(end))

    async def follow() -> None:
        while True:
            offset, size = BLOCK_HEAD.unpack(await reader.readexactly(BLOCK_HEAD.size))
            await reader.readexactly(size)
            if kind == "follows":
                writer.write(REPORT.pack(offset + size))

    following = asyncio.create_task(follow())
    assert broker.replication.shipper is not None
    try:
        async with asyncio.timeout(10):
            while not any(link.reported >= end for link in broker.replication.shipper.slaves):
                await asyncio.sleep(0.005)
        yield
    finally:
        following.cancel()
        writer.transport.abort()
        await asyncio.gather(following, return_exceptions=True)
        async with asyncio.timeout(10):
            while broker.replication.shipper.slaves:
                await asyncio.sleep(0.005)


async def answers(client: RawClient, body: bytes) -> set[int]:
    """By the fast way in and by the plain one, which must not differ."""
    old: dict[str, Any] = {
        "producerGroup": "pg",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "0",
        "flag": "0",
        "properties": "",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    sends = [
        request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0), body),
        request(RequestCode.SEND_MESSAGE, old, body),
    ]
    both = [await client.answer(number) for number in client.write(sends)]
    for answer in both:
        assert answer.code == OK or answer.remark, "a status without a word"
        assert "queueOffset" in answer.ext, "it is stored all the same"
    return {answer.code for answer in both}


@pytest.mark.parametrize(("flush", "role"), EXPECTED)
def test_the_answer_names_what_was_not_reached(tmp_path: Path, flush: str, role: str) -> None:
    async def act() -> None:
        disk = HangingDisk()
        broker = Broker(configuration(tmp_path, flush, role), now_ms, disk=disk)
        await broker.start()
        heard: list[list[set[int]]] = []
        try:
            async with RawClient(broker.address) as client:
                await client.create_topic(TOPIC, 1)
                for works in (True, False):
                    heard.append([])
                    for kind in ("none", "silent", "follows"):
                        async with slave_of(broker, kind):
                            if not works:
                                disk.works.clear()
                            heard[-1].append(await answers(client, kind.encode()))
                            disk.works.set()
                async with asyncio.timeout(10):
                    while await client.max_offset(TOPIC, 0) < 12:  # shown when flushed
                        await asyncio.sleep(0.01)
                assert len(await client.read_queue(TOPIC, 0)) == 12
        finally:
            disk.works.set()
            await broker.stop()
        assert heard == [[{code} for code in row] for row in EXPECTED[flush, role]]

    asyncio.run(act())
