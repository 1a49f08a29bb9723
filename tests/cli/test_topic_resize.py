"""`orbitmq topic grow` and `shrink` against a real server with messages in the queues."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from orbitmq.client.admin import resize
from orbitmq.client.admin.resize import Shrink, ShrinkProgress
from orbitmq.client.cluster import Cluster
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode
from tests.broker.fakes import beat, consumer, subscribe
from tests.support.commands import Commands
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import SOURCE, ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("resize"), mappedFileSizeCommitLog=16 << 20) as running:
        yield running


@pytest.fixture
def orbitmq(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys, server.namesrv)


async def send(client: RawClient, topic: str, queue_id: int, count: int = 1) -> None:
    for _ in range(count):
        await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext(topic, queue_id), b"m")


async def commit(client: RawClient, group: str, topic: str, offsets: dict[int, int]) -> None:
    for queue_id, offset in offsets.items():
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
        await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def fill(server: ServerProcess, topic: str, groups: dict[str, dict[int, int]]) -> None:
    """Four queues with five messages each, and groups that have read so far."""

    async def work() -> None:
        async with RawClient(server.broker_addr) as client:
            await client.create_topic(topic, 4)
            for queue_id in range(4):
                await send(client, topic, queue_id, 5)
            for group, offsets in groups.items():
                await commit(client, group, topic, offsets)

    asyncio.run(work())


def sizes(orbitmq: Commands, topic: str) -> tuple[int, int]:
    (share,) = orbitmq.ok("topic", "route", topic, "--json").json["brokers"]
    return share["read_queues"], share["write_queues"]


def test_a_topic_grows_while_it_is_used(server: ServerProcess, orbitmq: Commands) -> None:
    fill(server, "Growing", {})
    grown = orbitmq.ok("topic", "grow", "Growing", "--queues", "6", "--json").json
    assert grown["before"] == {"broker-a": {"read": 4, "write": 4}}
    assert sizes(orbitmq, "Growing") == (6, 6)
    orbitmq.ok("send", "Growing", "x", "--queue", "5")
    assert orbitmq.ok("topic", "status", "Growing", "--json").json["messages"] == 21
    assert orbitmq("topic", "grow", "Growing", "--queues", "3").code == 2


def test_a_topic_shrinks_when_every_group_has_read_the_rest(server: ServerProcess, orbitmq: Commands) -> None:
    fill(server, "Shrinking", {"fast": dict.fromkeys(range(4), 5), "slow": {0: 1, 1: 1, 2: 5, 3: 2}})
    held_up = orbitmq("topic", "shrink", "Shrinking", "--queues", "2", "--timeout", "0.5", "--settle", "0")
    assert held_up.code == 1
    assert "3 unread messages" in held_up.err
    assert "held up by slow" in held_up.err
    assert ["slow", "broker-a", "3", "3"] in [line.split() for line in held_up.out.splitlines()]
    assert sizes(orbitmq, "Shrinking") == (4, 2)  # producers have left, consumers have not

    async def read_on() -> None:
        async with RawClient(server.broker_addr) as client:
            assert len(await client.read_queue("Shrinking", 3)) == 5  # nothing is out of reach meanwhile
            await commit(client, "slow", "Shrinking", {3: 5})

    asyncio.run(read_on())
    done = orbitmq.ok(
        "topic", "shrink", "Shrinking", "--queues", "2", "--timeout", "10", "--settle", "0", "--json"
    ).json
    assert (done["done"], done["held_up_by"]) == (True, [])
    assert sizes(orbitmq, "Shrinking") == (2, 2)
    again = orbitmq.ok("topic", "shrink", "Shrinking", "--queues", "2", "--json").json
    assert again["done"]  # nothing to do, and that at once

    async def refused() -> int:
        async with RawClient(server.broker_addr) as client:
            return (await client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("Shrinking", 3), b"late")).code

    assert asyncio.run(refused()) == 1


def test_it_waits_until_producers_know(server: ServerProcess, orbitmq: Commands) -> None:
    fill(server, "Settling", {"g": dict.fromkeys(range(4), 5)})
    started = time.monotonic()
    orbitmq.ok("topic", "shrink", "Settling", "--queues", "1", "--settle", "1.5", "--timeout", "20")
    assert 1.4 < time.monotonic() - started < 15


def test_a_message_that_slips_in_at_the_last_moment_is_not_lost(
    server: ServerProcess, orbitmq: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, "Slipping", {"g": dict.fromkeys(range(4), 5)})
    seen: list[ShrinkProgress] = []

    async def work() -> None:
        async with RawClient(server.broker_addr) as client, Cluster(server.namesrv) as cluster:
            update_topic = resize.update_topic
            lowered = 0

            async def after_a_late_message(*args: Any, **kwargs: Any) -> Any:
                nonlocal lowered
                if kwargs.get("read_queues") == 2:
                    lowered += 1
                    if lowered == 1:
                        await send(client, "Slipping", 3)
                return await update_topic(*args, **kwargs)

            monkeypatch.setattr(resize, "update_topic", after_a_late_message)
            run = Shrink(
                cluster, "Slipping", 2, settle_s=0, timeout_s=10, poll_s=0.05, on_progress=seen.append
            )
            task = asyncio.create_task(run.run())
            while not any(progress.left for progress in seen):
                await asyncio.sleep(0.02)
            assert lowered == 1
            await commit(client, "g", "Slipping", {3: 6})
            assert (await task).done
            assert lowered == 2

    asyncio.run(work())
    assert next(progress.left for progress in seen if progress.held_up_by) == 1
    assert sizes(orbitmq, "Slipping") == (2, 2)


def test_groups_that_cannot_be_waited_for(server: ServerProcess, orbitmq: Commands) -> None:
    """One is dead and left out by hand, one broadcasts, one has given the topic up."""
    fill(server, "Left", {"dead": {0: 0}, "gone": {3: 1}, "fast": dict.fromkeys(range(4), 5)})

    async def work() -> None:
        async with RawClient(server.broker_addr) as one, RawClient(server.broker_addr) as other:
            radio = consumer("radio", subscribe("Left"), model="BROADCASTING")
            await one.ok(RequestCode.HEART_BEAT, body=bodies.encode(beat("r-1", radio)))
            gone = consumer("gone", subscribe("Growing"))
            await other.ok(RequestCode.HEART_BEAT, body=bodies.encode(beat("g-1", gone)))
            async with Cluster(server.namesrv) as cluster:
                with pytest.raises(resize.StillInUse, match="held up by dead") as caught:
                    await Shrink(cluster, "Left", 2, settle_s=0, timeout_s=0).run()
                assert {item.behind for item in caught.value.progress.held_up_by} == {None}
                done = await Shrink(cluster, "Left", 2, ignore=["dead"], settle_s=0, timeout_s=5).run()
                assert (done.done, done.not_asked) == (True, ["radio"])

    asyncio.run(work())


def test_ctrl_c_leaves_a_state_that_the_same_command_goes_on_from(
    server: ServerProcess, orbitmq: Commands
) -> None:
    fill(server, "Stopped", {"slow": {3: 0}})
    args = ["topic", "shrink", "Stopped", "--queues", "2", "--settle", "0", "-n", server.namesrv]
    process = subprocess.Popen(
        [sys.executable, "-m", "orbitmq", *args],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "waiting for slow" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command to go on" in err
    assert sizes(orbitmq, "Stopped") == (4, 2)

    async def read_on() -> None:
        async with RawClient(server.broker_addr) as client:
            await commit(client, "slow", "Stopped", {2: 5, 3: 5})

    asyncio.run(read_on())
    orbitmq.ok("topic", "shrink", "Stopped", "--queues", "2", "--settle", "0", "--timeout", "10")
    assert sizes(orbitmq, "Stopped") == (2, 2)


def test_an_ordered_topic_shrinks_at_the_name_servers_too(server: ServerProcess, orbitmq: Commands) -> None:
    orbitmq.ok("topic", "create", "Ordered", "--queues", "4", "--order")
    assert order_at_namesrv(server, "Ordered") == "broker-a:4"
    orbitmq.ok("topic", "shrink", "Ordered", "--queues", "2", "--settle", "0", "--timeout", "10")
    assert order_at_namesrv(server, "Ordered") == "broker-a:2"
    orbitmq.ok("topic", "grow", "Ordered", "--queues", "3")
    assert order_at_namesrv(server, "Ordered") == "broker-a:3"


def order_at_namesrv(server: ServerProcess, topic: str) -> str:
    async def ask() -> str:
        async with RawClient(server.namesrv) as client:
            key = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic}
            return (await client.ok(RequestCode.GET_KV_CONFIG, key)).ext["value"]

    return asyncio.run(ask())
