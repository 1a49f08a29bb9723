"""Cleaning as clients notice it: moved consumers, refused and welcome sends, and what a group still needs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from orbitmq.broker.broker import Broker
from orbitmq.config import BrokerConfig, FlushDiskType
from orbitmq.server import now_ms
from orbitmq.wire.codes import RequestCode, ResponseCode
from tests.support.raw_client import RawClient, pull_ext, send_ext
from tests.support.steered_disk import HOUR_MS, SteeredDisk

BODY = b"x" * 1000
"""Seven messages to a log file."""


@asynccontextmanager
async def running(root: Path, **settings: object) -> AsyncIterator[tuple[Broker, SteeredDisk, RawClient]]:
    config = BrokerConfig(
        broker_name="b1",
        broker_ip1="127.0.0.1",
        listen_host="127.0.0.1",
        listen_port=0,
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=8192,
        mapped_file_size_consume_queue=200,
        max_hash_slot_num=16,
        max_index_num=20,
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
        flush_interval_commit_log=10,
        clean_resource_interval=20,
    )
    for name, value in settings.items():
        setattr(config, name, value)
    config.fill_blanks()
    disk = SteeredDisk(now_ms)
    broker = Broker(config, now_ms, disk=disk)
    await broker.start()
    try:
        async with RawClient(broker.address) as client, asyncio.timeout(15):
            await client.create_topic("T", 1)
            yield broker, disk, client
    finally:
        await broker.stop()


async def send(client: RawClient, count: int) -> None:
    for _ in range(count):
        await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext("T", 0), BODY)


async def start_of_log(broker: Broker, minimum: int) -> None:
    async with asyncio.timeout(5):
        while broker.store.log.start < minimum:
            await asyncio.sleep(0.01)


def test_a_consumer_behind_the_new_minimum_is_moved_and_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (broker, disk, client):
            await send(client, 40)
            disk.age_ms = 100 * HOUR_MS
            disk.used = 0.76
            await start_of_log(broker, 5 * 8192)
            answer = await client.ask(RequestCode.PULL_MESSAGE, pull_ext("T", 0, 3))
            assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
            assert answer.ext["nextBeginOffset"] == answer.ext["minOffset"] == "35"
            assert len(await client.read_queue("T", 0, 35)) == 5
            (event,) = await client.read_queue("OFFSET_MOVED_EVENT", 0)
            assert json.loads(event.body) == {
                "consumerGroup": "TOOLS_CONSUMER",
                "messageQueue": {"brokerName": "b1", "queueId": 0, "topic": "T"},
                "offsetNew": 35,
                "offsetRequest": 3,
            }
            assert event.tags == event.keys == "TOOLS_CONSUMER"

    asyncio.run(main())


def test_sends_are_refused_above_the_mark_and_taken_again_when_there_is_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (_, disk, client):
            await send(client, 3)
            disk.used = 0.92
            async with asyncio.timeout(5):
                while (
                    answer := await client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T", 0), BODY)
                ).code == 0:
                    await asyncio.sleep(0.01)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "diskSpaceWarningLevelRatio (92% used)" in (answer.remark or "")
            taken = await client.max_offset("T", 0)
            assert len(await client.read_queue("T", 0)) == taken  # reading goes on
            disk.used = 0.5
            async with asyncio.timeout(5):
                while (await client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T", 0), BODY)).code != 0:
                    await asyncio.sleep(0.01)
            assert await client.max_offset("T", 0) == taken + 1

    asyncio.run(main())


def test_cleaning_by_hand_takes_what_expired_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, delete_when=_other_hour()) as (_, disk, client):
            await send(client, 40)
            await asyncio.sleep(0.2)
            assert (await client.ok(RequestCode.DELETE_EXPIRED_COMMITLOG)).ext["logFiles"] == "0"
            disk.age_ms = 100 * HOUR_MS
            told = (await client.ok(RequestCode.DELETE_EXPIRED_COMMITLOG)).ext
            assert (told["logFiles"], told["minOffset"]) == ("5", str(5 * 8192))
            assert int(told["queueFiles"]) == 3
            assert (await client.ok(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).ext == {"queueFiles": "0"}

    asyncio.run(main())


def test_unread_messages_stay_if_the_policy_says_so_unless_the_disk_is_dangerously_full(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        settings = {"delete_unconsumed": False, "delete_when": _other_hour()}
        async with running(tmp_path, **settings) as (broker, disk, client):
            await send(client, 40)
            disk.age_ms = 100 * HOUR_MS

            async def consumed(group: str, offset: int) -> None:
                ext = {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": str(offset)}
                await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, ext)

            async def clean() -> int:
                await asyncio.sleep(0.1)  # flushed
                return int((await client.ok(RequestCode.DELETE_EXPIRED_COMMITLOG)).ext["minOffset"]) // 8192

            await consumed("fast", 40)
            await consumed("slow", 10)
            assert await clean() == 1
            await consumed("slow", 20)
            assert await clean() == 2
            # A group that is gone for good can be deleted; then nobody waits for it.
            broker.offsets.remove_group("slow")
            await consumed("new", 30)
            assert await clean() == 4
            disk.used = 0.86
            await start_of_log(broker, 5 * 8192)

    asyncio.run(main())


def _other_hour() -> str:
    """Any hour but those around now: cleaning by the clock must not mix in."""
    return f"{(time.localtime().tm_hour + 12) % 24:02d}"
