"""A real broker is killed (SIGKILL) at random moments under load. Nothing it acknowledged may be lost.

The page cache survives the death of a process, so this holds for ASYNC_FLUSH as well; what only SYNC_FLUSH
promises, to survive a power cut, is shown with a failing disk in tests/store.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from random import Random

import pytest

from orbitmq.wire.codes import RequestCode, ResponseCode
from tests.support.checker import Checker
from tests.support.load import Ledger, finish, load_until
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import ServerProcess

ROUNDS = int(os.environ.get("ORBITMQ_CRASH_ROUNDS", "4"))
SEED = int(os.environ.get("ORBITMQ_CRASH_SEED", "0")) or time.time_ns() % 1_000_000
ROUNDS_PER_STORE = 20
# Small files, so that a round rolls over all of them several times.
SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 100 * 20,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "flushConsumerOffsetInterval": 1000,
}

pytestmark = pytest.mark.crash


class Life:
    """One store directory, its server over many deaths, and what the world knows about it."""

    def __init__(self, directory: Path, random: Random, flush: str) -> None:
        self.server = ServerProcess(directory, flushDiskType=flush, **SETTINGS)
        self.random = random
        self.ledger = Ledger()
        self.checker = Checker(self.ledger)
        self.topics = {"Few": 1, "Many": 4}
        self.rounds = 0

    async def prepare(self) -> None:
        async with RawClient(self.server.broker_addr) as client:
            for topic, queues in self.topics.items():
                await client.create_topic(topic, queues)

    async def crash_round(self) -> None:
        self.rounds += 1
        # A topic that the first send makes, so that it is new when the broker dies.
        topics = {**self.topics, f"Made{self.rounds}": 4}
        tasks = await load_until(
            self.server.broker_addr, self.ledger, topics, self.random, self.random.uniform(0.02, 0.6)
        )
        self.server.kill()
        await finish(tasks)

    def restart(self, *, interrupted: bool) -> None:
        """`interrupted`: the recovery is killed as well, once or twice, before it is left in peace."""
        for _ in range(self.random.randint(1, 2) if interrupted else 0):
            self.server.start(wait=False)
            time.sleep(self.random.uniform(0.0, 0.5))
            self.server.kill()
        self.server.start()

    async def check(self, *, whole: bool = False) -> None:
        async with RawClient(self.server.broker_addr) as client:
            await self.checker.check(client, self.random, whole=whole)


def run_life(directory: Path, rounds: int, seed: int, flush: str) -> None:
    random = Random(seed)
    life = Life(directory, random, flush)
    with life.server:
        asyncio.run(life.prepare())
        for number in range(rounds):
            asyncio.run(life.crash_round())
            life.restart(interrupted=number % 3 == 1)
            asyncio.run(life.check())
        asyncio.run(life.check(whole=True))
        assert life.server.stop() == 0
        life.server.start()
        asyncio.run(life.check(whole=True))
    assert len(life.ledger.acks) > 10 * rounds, "the load was too light to prove anything"
    assert "Traceback" not in life.server.printed, life.server.printed


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, flush: str) -> None:
    rounds = max(1, ROUNDS * 3 // 4 if flush == "SYNC_FLUSH" else ROUNDS - ROUNDS * 3 // 4)
    for life in range(0, rounds, ROUNDS_PER_STORE):
        seed = SEED + life
        print(f"seed {seed} (ORBITMQ_CRASH_SEED)")
        run_life(tmp_path / str(life), min(ROUNDS_PER_STORE, rounds - life), seed, flush)


def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    """Its records are still in the log; neither they nor the topic come back, not even into a new one of its name."""

    async def use() -> None:
        async with RawClient(server.broker_addr) as client:
            for topic in ("Gone", "Anew", "Stays"):
                await client.create_topic(topic, 1)
                for number in range(110):  # more than one queue file
                    body = f"{topic} {number}".encode()
                    await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext(topic, 0), body)
            for topic in ("Gone", "Anew"):
                await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
            await client.create_topic("Anew", 1)
            for number in range(3):
                await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext("Anew", 0), b"anew %d" % number)
            await asyncio.sleep(0.3)  # settings are saved a moment after they change

    async def look() -> None:
        async with RawClient(server.broker_addr) as client:
            assert (await client.pull("Gone", 0, 0)).code == ResponseCode.TOPIC_NOT_EXIST
            assert [m.body for m in await client.read_queue("Anew", 0)] == [b"anew %d" % n for n in range(3)]
            assert len(await client.read_queue("Stays", 0)) == 110

    with ServerProcess(tmp_path, **SETTINGS) as server:
        asyncio.run(use())
        for _ in range(2):
            server.kill()
            server.start()
            asyncio.run(look())
        server.restart()
        asyncio.run(look())
