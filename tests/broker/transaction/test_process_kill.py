"""A real broker is killed while producers commit and roll back and consumers send back.

Afterwards every message is where the last word about it says: committed ones once, rolled-back ones nowhere.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from orbitmq.net.errors import RemotingError
from orbitmq.wire import fastjson
from orbitmq.wire.codes import OrbitCode, RequestCode, ResponseCode
from tests.broker.transaction.producer import COMMIT, ROLLBACK, Producer
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import ServerProcess

ROUNDS = int(os.environ.get("ORBITMQ_CRASH_ROUNDS", "4"))
SEED = int(os.environ.get("ORBITMQ_CRASH_SEED", "0")) or time.time_ns() % 1_000_000
PRODUCERS = 4
SETTLE_S = 15.0
GROUP = "cg"

pytestmark = pytest.mark.crash


class Life:
    def __init__(self, directory: Path, random: Random) -> None:
        self.random = random
        self.server = ServerProcess(
            directory,
            flushDiskType="SYNC_FLUSH",
            transactionTimeOut=200,
            transactionCheckInterval=300,
            transactionCheckMax=1000,
            mappedFileSizeCommitLog=1 << 16,
            flushConsumerOffsetInterval=500,
        )
        self.words: dict[str, int] = {}
        """What each transaction's producer decided. Those that it never got an answer for are rolled back."""
        self.batches: dict[str, list[str]] = {}
        """The messages of a transaction that has several, by the id of the first, which stands for all."""
        self.acked: set[str] = set()
        self.sent_back: set[str] = set()
        self.maybe_sent_back: set[str] = set()
        self.rounds = 0

    def word(self, msg_id: str) -> int:
        return self.words.setdefault(msg_id, ROLLBACK)

    async def produce(self, number: int) -> None:
        try:
            async with Producer(self.server.broker_addr, decide=self.word) as producer:
                for i in range(100_000):
                    msg_id = f"{self.rounds}-{number}-{i}"
                    queue_id = self.random.randrange(4)
                    if number % 2:
                        rows = [msg_id, *(f"{msg_id}.{n}" for n in range(self.random.randrange(150)))]
                        self.batches[msg_id] = rows
                        place = await producer.prepare_batch("Orders", rows, queue_id)
                    else:
                        place = await producer.prepare("Orders", msg_id, msg_id.encode(), queue_id)
                    # The broker may have asked before its receipt was read here: what was said then stays.
                    decision = self.words.setdefault(msg_id, self.random.choice((COMMIT, ROLLBACK)))
                    self.acked.add(msg_id)
                    way = self.random.random()
                    if way < 0.6:
                        producer.end_oneway(place, decision, msg_id)
                    elif way < 0.85:
                        await producer.end(place, decision, msg_id)
        except (RemotingError, OSError):
            return

    async def consume_badly(self) -> None:
        """Every message is sent and at once sent back, to be dead at once."""
        try:
            async with RawClient(self.server.broker_addr) as client:
                for i in range(100_000):
                    body = f"{self.rounds}-{i}"
                    sent = await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext("Bad", 0), body.encode())
                    self.maybe_sent_back.add(body)
                    ext = {"offset": str(int(sent.ext["msgId"][16:], 16)), "group": GROUP, "delayLevel": "-1"}
                    await client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
                    self.sent_back.add(body)
        except (OSError, TimeoutError):
            return

    async def crash_round(self) -> None:
        self.rounds += 1
        tasks = [asyncio.create_task(self.produce(number)) for number in range(PRODUCERS)]
        tasks.append(asyncio.create_task(self.consume_badly()))
        await asyncio.sleep(self.random.uniform(0.05, 0.8))
        self.server.kill()
        await asyncio.gather(*tasks)

    async def settle_and_check(self) -> None:
        """A producer that knows every word comes online; when nothing is open any more, all must be right."""
        async with (
            Producer(self.server.broker_addr, decide=self.word),
            RawClient(self.server.broker_addr) as client,
        ):
            async with asyncio.timeout(SETTLE_S):
                while fastjson.loads((await client.ok(OrbitCode.LIST_HALF_MESSAGES)).body)["open"]:
                    await asyncio.sleep(0.05)
            # Under SYNC_FLUSH the last of them can be read when they are flushed: as soon as this one is.
            await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext("Bad", 0), b"flush")
            delivered = Counter[str]()
            for queue_id in range(4):
                delivered.update(
                    message.body.decode() for message in await client.read_queue("Orders", queue_id)
                )
            dead = Counter(message.body.decode() for message in await client.read_queue(f"%DLQ%{GROUP}", 0))
        committed = {msg_id for msg_id, word in self.words.items() if word == COMMIT} & self.acked
        expected = {row for msg_id in committed for row in self.batches.get(msg_id, [msg_id])}
        assert expected == set(delivered), "lost, or delivered although rolled back"
        assert set(delivered.values()) <= {1}, f"twice: {[m for m, n in delivered.items() if n > 1]}"
        assert self.sent_back <= set(dead) <= self.maybe_sent_back
        assert set(dead.values()) <= {1}


def test_sigkill_during_commit_rollback_and_send_back(tmp_path: Path) -> None:
    life = Life(tmp_path, Random(SEED))

    async def prepare() -> None:
        async with RawClient(life.server.broker_addr) as client:
            await client.create_topic("Orders", 4)
            await client.create_topic("Bad", 1)
            ext = {"offset": "0", "group": GROUP, "delayLevel": "-1"}
            assert (
                await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
            ).code == ResponseCode.SYSTEM_ERROR
            sent = await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext("Bad", 0), b"0-0")
            ext["offset"] = str(int(sent.ext["msgId"][16:], 16))
            await client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
            life.sent_back.add("0-0")
            life.maybe_sent_back.add("0-0")

    with life.server:
        asyncio.run(prepare())
        for number in range(ROUNDS):
            try:
                asyncio.run(life.crash_round())
                life.server.start()
                asyncio.run(life.settle_and_check())
            except BaseException as error:
                error.add_note(f"seed {SEED}, round {number + 1}, log: {life.server.printed[-2000:]}")
                raise
    assert life.words and life.sent_back
