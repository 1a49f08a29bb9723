"""`orbitmq group reset` against a real server: with members running, and without."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

from orbitmq.cli.main import main
from orbitmq.wire import bodies, fastjson
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import Command
from orbitmq.wire.fastjson import MessageQueue
from tests.broker.fakes import beat, consumer, subscribe
from tests.support.commands import Commands
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("reset"), mappedFileSizeCommitLog=16 << 20) as running:
        yield running


@pytest.fixture
def orbitmq(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys, server.namesrv)


async def fill(server: ServerProcess, topic: str, group: str) -> int:
    """Two queues: 3 old messages each, then 2 and 5 new ones, read up to offset 4; the time in between."""
    async with RawClient(server.broker_addr) as client:
        await client.create_topic(topic, 2)

        async def send(queue_id: int, count: int) -> None:
            for _ in range(count):
                await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext(topic, queue_id), b"m")

        for queue_id in (0, 1):
            await send(queue_id, 3)
        await asyncio.sleep(0.05)
        mark = time.time_ns() // 1_000_000
        await send(0, 2)
        await send(1, 5)
        for queue_id in (0, 1):
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": "4"}
            await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        return mark


async def received(client: RawClient) -> list[int]:
    """Codes of what the broker has sent so far."""
    codes = []
    try:
        while True:
            async with asyncio.timeout(0.05):
                codes.append((await client.read()).code)
    except TimeoutError:
        return codes


def steps(document: dict[str, object]) -> list[tuple[int, int, int, int]]:
    queues = document["queues"]
    assert isinstance(queues, list)
    return [(q["from_offset"], q["to_offset"], q["skipped"], q["repeated"]) for q in queues]


def test_members_that_run_are_told_where_to_go(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> Command:
        mark = await fill(server, "Running", "runners")
        async with RawClient(server.broker_addr) as member, asyncio.timeout(20):
            body = bodies.encode(beat("runner-1", consumer("runners", subscribe("Running"))))
            await member.ok(RequestCode.HEART_BEAT, body=body)
            args = ["group", "reset", "runners", "Running", "--to", str(mark), "--json", "-n", server.namesrv]
            capsys.readouterr()
            assert await asyncio.to_thread(main, [*args, "--dry-run"]) == 0
            plan = json.loads(capsys.readouterr().out)
            assert (plan["applied"], plan["online_members"]) == (False, 1)
            assert steps(plan) == [(4, 3, 0, 1), (4, 3, 0, 1)]
            await asyncio.sleep(0.3)
            # A preview moves nobody: what came is only the news that a member joined.
            assert RequestCode.RESET_CONSUMER_CLIENT_OFFSET not in await received(member)
            assert await asyncio.to_thread(main, [*args, "--yes"]) == 0
            done = json.loads(capsys.readouterr().out)
            assert done["applied"]
            assert steps(done) == steps(plan)
            while (order := await member.read()).code != RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                pass
            return order

    order = asyncio.run(work())
    assert (order.ext["topic"], order.ext["group"]) == ("Running", "runners")
    table = fastjson.loads(order.body)["offsetTable"]
    assert table == {MessageQueue("Running", "broker-a", 0): 3, MessageQueue("Running", "broker-a", 1): 3}


def test_without_members_the_stored_offsets_move(server: ServerProcess, orbitmq: Commands) -> None:
    orbitmq.ok("group", "create", "resters")
    mark = asyncio.run(fill(server, "Resting", "resters"))

    def reset(*args: str) -> list[tuple[int, int, int, int]]:
        done = orbitmq.ok("group", "reset", "resters", "Resting", "--yes", "--json", *args).json
        assert done["applied"]
        return steps(done)

    assert reset("--to", str(mark)) == [(4, 3, 0, 1), (4, 3, 0, 1)]
    assert reset("--to", "last") == [(3, 5, 2, 0), (3, 8, 5, 0)]
    assert reset("--to", "first") == [(5, 0, 0, 5), (8, 0, 0, 8)]
    assert reset("--to", "6") == [(0, 5, 5, 0), (0, 6, 6, 0)]  # the shorter queue goes to its end
    assert reset("--to", "2", "--queue", "1") == [(6, 2, 0, 4)]
    assert reset("--to", "4", "--no-skip") == [(5, 4, 0, 1), (2, 2, 0, 0)]
    progress = orbitmq.ok("group", "progress", "resters", "--json").json
    assert [row["consumer_offset"] for row in progress["queues"]] == [4, 2]
    assert progress["lag"] == 7


def test_the_preview_is_a_table_for_people(server: ServerProcess, orbitmq: Commands) -> None:
    orbitmq.ok("group", "create", "showers")
    asyncio.run(fill(server, "Shown", "showers"))
    shown = orbitmq.ok("group", "reset", "showers", "Shown", "--to", "first", "--dry-run").out
    assert "nothing is changed yet: 0 messages skipped, 8 repeated; 0 member(s) connected" in shown
    assert orbitmq.ok("group", "progress", "showers", "--json").json["lag"] == 5


@pytest.mark.parametrize(
    ("args", "code", "part"),
    [
        (("nobody", "Bad", "--to", "first"), 3, "no broker knows a group"),
        (("baddies", "NoTopic", "--to", "first"), 3, "NoTopic"),
        (("baddies", "Bad", "--to", "yesterday"), 2, "not a place in a queue"),
        (("baddies", "Bad", "--to", "first", "--queue", "9"), 3, "no queue 9"),
        (("baddies", "Bad", "--to", "first"), 2, "without a yes"),
    ],
)
def test_what_cannot_be_done_is_said(
    server: ServerProcess, orbitmq: Commands, args: tuple[str, ...], code: int, part: str
) -> None:
    orbitmq.ok("topic", "create", "Bad", "--queues", "2")
    orbitmq.ok("group", "create", "baddies")
    ended = orbitmq("group", "reset", *args, *(() if part == "without a yes" else ("--yes",)), "--json")
    assert ended.code == code
    assert part in ended.error["error"]


def test_a_group_that_broadcasts_cannot_be_moved_from_here(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> int:
        await fill(server, "News", "listeners")
        async with RawClient(server.broker_addr) as member:
            data = consumer("listeners", subscribe("News"), model="BROADCASTING")
            await member.ok(RequestCode.HEART_BEAT, body=bodies.encode(beat("listener-1", data)))
            args = ["group", "reset", "listeners", "News", "--to", "first", "--yes", "-n", server.namesrv]
            return await asyncio.to_thread(main, args)

    assert asyncio.run(work()) == 1
    assert "broadcasting mode" in capsys.readouterr().err
