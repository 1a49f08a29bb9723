"""A real broker is killed (SIGKILL) while it deletes old files as fast as it can. The store opens again, and
whatever was acknowledged and lies behind the minimum is there.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from orbitmq.wire.codes import RequestCode
from tests.support.load import Ledger, finish, load_until
from tests.support.raw_client import RawClient
from tests.support.server_process import ServerProcess

ROUNDS = max(3, int(os.environ.get("ORBITMQ_CRASH_ROUNDS", "4")) // 2)
SEED = int(os.environ.get("ORBITMQ_CRASH_SEED", "0")) or time.time_ns() % 1_000_000
TOPICS = {"Few": 1, "Many": 4}
FILES_WORTH = 2000
"""Messages that fill some log files of 2 MiB, so that there is something to clean however slow the machine is."""

pytestmark = pytest.mark.crash


def test_a_store_killed_while_cleaning_opens_again_with_all_that_is_left(tmp_path: Path) -> None:
    print(f"seed {SEED} (ORBITMQ_CRASH_SEED)")
    random = Random(SEED)
    ledger = Ledger()
    starts = [0]
    with ServerProcess(
        tmp_path,
        mappedFileSizeCommitLog=2 << 20,
        mappedFileSizeConsumeQueue=100 * 20,
        maxHashSlotNum=100,
        maxIndexNum=400,
        fileReservedTime=0,
        deleteWhen=";".join(f"{hour:02d}" for hour in range(24)),
        cleanResourceInterval=5,
        flushDiskType="ASYNC_FLUSH",
        flushIntervalCommitLog=5,
    ) as server:
        asyncio.run(prepare(server))
        for _ in range(ROUNDS):
            asyncio.run(load_and_kill(server, ledger, random))
            server.start()
            starts.append(asyncio.run(check(server, ledger)))
        assert server.stop() == 0
        server.start()
        asyncio.run(check(server, ledger))
    assert starts[-1] > starts[1] > 0, "nothing was cleaned"
    assert "Traceback" not in server.printed, server.printed


async def prepare(server: ServerProcess) -> None:
    async with RawClient(server.broker_addr) as client:
        for topic, queues in TOPICS.items():
            await client.create_topic(topic, queues)


async def load_and_kill(server: ServerProcess, ledger: Ledger, random: Random) -> None:
    enough = len(ledger.acks) + FILES_WORTH
    tasks = await load_until(server.broker_addr, ledger, TOPICS, random, random.uniform(0.3, 0.8))
    async with asyncio.timeout(60):
        while len(ledger.acks) < enough:
            await asyncio.sleep(0.02)
    server.kill()
    await finish(tasks)


async def log_start(client: RawClient) -> int:
    text = (await client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)).body.decode()
    return int(text.split('"commitLogMinOffset":"')[1].split('"')[0])


async def settled_start(client: RawClient) -> int:
    seen = [-3, -2, -1]
    while len(set(seen[-3:])) > 1:
        await asyncio.sleep(0.1)
        seen.append(await log_start(client))
    return seen[-1]


async def check(server: ServerProcess, ledger: Ledger) -> int:
    """Every queue reads without a gap from its minimum to its end; where the log begins."""
    async with RawClient(server.broker_addr) as client, asyncio.timeout(120):
        start = -1
        while start != await log_start(client):  # it is still being cleaned: what was read may be gone by now
            start = await settled_start(client)
            queues = [
                await read_queue(client, topic, n) for topic, count in TOPICS.items() for n in range(count)
            ]
        contents = {(queue.topic, queue.queue_id): queue for queue in queues}
        for queue in queues:
            found, wanted = list(queue.keys), list(range(queue.low, queue.high))
            assert found == wanted, (
                f"{queue.topic} {queue.queue_id} should have {queue.low} to {queue.high}, "
                f"has {found[:1]} to {found[-1:]}; the broker said: {server.printed[-2000:]}"
            )
        for key, ack in ledger.acks.items():
            queue = contents[ledger.sent[key].topic, ack.queue_id]
            if ack.queue_offset >= queue.low:
                assert queue.keys.get(ack.queue_offset) == key, f"acknowledged message {ack} is gone"
        return start


class Contents(NamedTuple):
    topic: str
    queue_id: int
    low: int
    high: int
    keys: dict[int, str]


async def read_queue(client: RawClient, topic: str, queue_id: int) -> Contents:
    place = {"topic": topic, "queueId": str(queue_id)}
    low = int((await client.ok(RequestCode.GET_MIN_OFFSET, place)).ext["offset"])
    high = await client.max_offset(topic, queue_id)
    found = await client.read_queue(topic, queue_id, low) if low < high else []
    return Contents(topic, queue_id, low, high, {message.queue_offset: message.msg_id for message in found})
