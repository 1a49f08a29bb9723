"""`orbitmq cluster drain`: producers and consumers at work, groups that hold it up, interruption, and the way back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orbitmq.wire.codes import RequestCode, ResponseCode
from tests.support.commands import Commands
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import SOURCE
from tests.support.small_cluster import SmallCluster
from tests.support.steady_load import SteadyLoad


def send_code(addr: str, topic: str) -> int:
    async def work() -> int:
        async with RawClient(addr) as client:
            return (await client.ask(RequestCode.SEND_MESSAGE_V2, send_ext(topic, 0), b"m")).code

    return asyncio.run(work())


def commit(addr: str, group: str, topic: str, offset: int) -> None:
    async def work() -> None:
        async with RawClient(addr) as client:
            ext = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
            await client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    asyncio.run(work())


def permissions(orbitmq: Commands, topic: str) -> dict[str, int]:
    shares = orbitmq.ok("topic", "route", topic, "--json").json["brokers"]
    return {share["broker"]: share["perm"] for share in shares}


def test_a_broker_is_drained_under_load_and_comes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SmallCluster(tmp_path, ["broker-a", "broker-b"], namesrvs=2) as cluster:
        orbitmq = Commands(capsys, cluster.namesrv)
        orbitmq.ok("topic", "create", "Work", "--queues", "2")
        orbitmq.ok("topic", "create", "Closed", "--queues", "2", "--perm", "4")
        with SteadyLoad(cluster.namesrv, "Work") as load:
            load.until(lambda: load.taken_by("broker-b") > 0)
            ended = orbitmq.ok("cluster", "drain", "broker-b", "--settle", "20", "--timeout", "60")
            assert "waiting until producers have left" in ended.err
            assert (
                ended.out == "broker-b takes no messages, and everything in it is read: it may be stopped\n"
            )
            assert send_code(cluster.address("broker-b"), "Work") == ResponseCode.NO_PERMISSION
            assert permissions(orbitmq, "Work") == {"broker-a": 6, "broker-b": 4}
            before = load.taken_by("broker-b")
            again = orbitmq.ok("cluster", "drain", "broker-b", "--json", "--settle", "0").json["drained"]
            assert (again["done"], again["left"], again["behind"]) == (True, 0, [])
            assert load.taken_by("broker-b") == before
            orbitmq.ok("cluster", "drain", "broker-b", "--undo")
            assert permissions(orbitmq, "Work") == {"broker-a": 6, "broker-b": 6}
            assert permissions(orbitmq, "Closed") == {"broker-a": 4, "broker-b": 4}  # as it was made
            load.until(lambda: load.taken_by("broker-b") > before)
            load.finish()
        assert load.failed == []


def test_groups_that_must_read_hold_it_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SmallCluster(tmp_path, ["broker-a", "broker-b"]) as cluster:
        orbitmq = Commands(capsys, cluster.namesrv)
        orbitmq.ok("topic", "create", "Kept", "--queues", "1")
        orbitmq.ok("group", "create", "slow")
        orbitmq.ok("group", "create", "lost")
        here = cluster.address("broker-b")
        for _ in range(5):
            assert send_code(here, "Kept") == ResponseCode.SUCCESS
        commit(here, "slow", "Kept", 2)
        commit(here, "lost", "Kept", 1)
        options = ["cluster", "drain", "broker-b", "--settle", "0"]
        held_up = orbitmq(*options, "--timeout", "0")
        assert held_up.code == 1
        assert "still has 4 messages that lost, slow must read" in held_up.err
        assert ["slow", "Kept", "0", "3", "no"] in [line.split() for line in held_up.out.splitlines()]
        assert "no member of lost, slow is connected" in held_up.err
        assert send_code(here, "Kept") == ResponseCode.NO_PERMISSION  # the door stays closed
        commit(here, "slow", "Kept", 5)
        assert "that lost must read" in orbitmq(*options, "--timeout", "0").err
        done = orbitmq.ok(*options, "--ignore", "lost", "--json").json["drained"]
        assert (done["done"], done["behind"]) == (True, [])
        assert "groups were not waited for" in orbitmq.ok(*options, "--no-wait").out


def test_the_last_broker_of_a_topic_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SmallCluster(tmp_path, ["broker-a", "broker-b"]) as cluster:
        orbitmq = Commands(capsys, cluster.namesrv)
        orbitmq.ok("topic", "create", "Both", "--queues", "1")
        orbitmq.ok("topic", "create", "Only", "--queues", "1", "--broker", "broker-b")
        refused = orbitmq("cluster", "drain", "broker-b", "--settle", "0")
        assert refused.code == 1
        assert "'broker-b' is the only broker that takes messages for Only" in refused.err
        assert "--force" in refused.err
        assert "Both" not in refused.err
        assert send_code(cluster.address("broker-b"), "Only") == ResponseCode.SUCCESS
        orbitmq.ok("cluster", "drain", "broker-b", "--settle", "0", "--force", "--no-wait")
        # Now the other is the last one for what both have: a closed broker is no home.
        assert "takes messages for Both" in orbitmq("cluster", "drain", "broker-a", "--settle", "0").err
        assert orbitmq("cluster", "drain", "nobody").code == 3
        assert orbitmq("cluster", "drain", "broker-b", "--undo", "--stop").code == 2


def test_an_empty_broker_is_stopped_after_its_slave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SmallCluster(tmp_path, ["broker-a", "broker-b", "broker-b.1"], namesrvs=2) as cluster:
        orbitmq = Commands(capsys, cluster.namesrv)
        orbitmq.ok("topic", "create", "Work", "--queues", "1")
        ended = orbitmq.ok("cluster", "drain", "broker-b", "--settle", "0", "--stop")
        assert cluster.stops == [("broker-b.1", False), ("broker-b", False)]
        assert ended.out.startswith("broker-b is stopped: ")
        assert "--undo" in ended.err
        (left,) = orbitmq.ok("cluster", "list", "--json").json
        assert left["broker"] == "broker-a"
        # Started again it may be let in, whether or not it remembers that it was closed.
        cluster.add("broker-b", brokerPermission="4")
        assert send_code(cluster.address("broker-b"), "Work") == ResponseCode.NO_PERMISSION
        orbitmq.ok("cluster", "drain", "broker-b", "--undo")
        assert send_code(cluster.address("broker-b"), "Work") == ResponseCode.SUCCESS


@pytest.mark.parametrize(("settle", "state"), [("60", "still takes messages"), ("0", "refuses messages")])
def test_ctrl_c_says_how_things_are_and_the_same_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settle: str, state: str
) -> None:
    with SmallCluster(tmp_path, ["broker-a", "broker-b"]) as cluster:
        orbitmq = Commands(capsys, cluster.namesrv)
        orbitmq.ok("topic", "create", "Kept", "--queues", "1")
        orbitmq.ok("group", "create", "slow")
        here = cluster.address("broker-b")
        assert send_code(here, "Kept") == ResponseCode.SUCCESS
        commit(here, "slow", "Kept", 0)
        command = ["cluster", "drain", "broker-b", "--settle", settle]
        process = subprocess.Popen(
            [sys.executable, "-m", "orbitmq", *command, "-n", cluster.namesrv],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        awaited = "producers have left" if settle == "60" else "waiting for slow"
        while awaited not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130
        assert state in err
        assert "run the same command to go on" in err
        commit(here, "slow", "Kept", 1)
        done = orbitmq.ok("cluster", "drain", "broker-b", "--settle", "0", "--json").json["drained"]
        assert done["done"]
        assert permissions(orbitmq, "Kept") == {"broker-a": 6, "broker-b": 4}
