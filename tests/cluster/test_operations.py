"""Operations on brokers that are at work: nothing acknowledged is lost, and producers and consumers go on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orbitmq.broker import following
from orbitmq.client.admin.rolling import in_order
from orbitmq.client.errors import NotFound
from orbitmq.client.routes import BrokerData, ClusterMap
from tests.cli.test_cluster_drain import commit, permissions, send_code
from tests.support.commands import Commands
from tests.support.server_process import SOURCE
from tests.support.small_cluster import SmallCluster
from tests.support.steady_load import SteadyLoad


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, f"not within 15 s: {what}"
        time.sleep(0.02)


def test_brokers_are_restarted_one_by_one_under_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["broker-a", "broker-a.1", "broker-b"]
    with SmallCluster(tmp_path, names, namesrvs=2) as cluster:
        orbitmq = Commands(capsys, cluster.namesrv)
        orbitmq.ok("topic", "create", "Work", "--queues", "2")
        refused = orbitmq("cluster", "restart")
        assert refused.code == 2  # nobody said yes
        with SteadyLoad(cluster.namesrv, "Work") as load:
            load.until(lambda: len(load.brokers) == 2)
            ended = orbitmq.ok("cluster", "restart", "--yes", "--settle", "2", "--json")
            assert cluster.stops == [("broker-a.1", True), ("broker-a", True), ("broker-b", True)]
            assert [(row["broker"], row["was_master"]) for row in ended.json] == [
                ("broker-a", False),
                ("broker-a", True),
                ("broker-b", True),
            ]
            assert permissions(orbitmq, "Work") == {"broker-a": 6, "broker-b": 6}
            before = dict(load.brokers)
            load.until(lambda: all(load.taken_by(name) > before[name] for name in before))
            load.finish()
        assert load.failed == []


def test_a_slave_finds_a_master_that_came_back_on_another_port(tmp_path: Path) -> None:
    """Name servers tell it when it registers; the next time for that may be half a minute away."""
    with SmallCluster(tmp_path, ["broker-a", "broker-a.1"]) as cluster:
        receiver = cluster.brokers["broker-a.1"].replication.receiver
        assert receiver is not None
        eventually(lambda: receiver.link is not None, "the slave follows")
        cluster.stop("broker-a")
        eventually(lambda: receiver.link is None, "the slave has lost its master")
        with socket.socket() as elsewhere:
            elsewhere.bind(("127.0.0.1", 0))
            port = elsewhere.getsockname()[1]
        cluster.add("broker-a", haListenPort=str(port))
        eventually(lambda: receiver.link is not None, "the slave follows the port that the master has now")


def test_a_broker_without_another_home_is_restarted_without_closing_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SmallCluster(tmp_path, ["broker-a"]) as cluster:
        orbitmq = Commands(capsys, cluster.namesrv)
        orbitmq.ok("topic", "create", "Only", "--queues", "1")
        ended = orbitmq.ok("cluster", "restart", "broker-a", "--yes")
        assert "producers have left" not in ended.err
        assert "is back" in ended.err
        assert send_code(cluster.address("broker-a"), "Only") == 0
        # One that was closed before stays closed, though its next run has forgotten it.
        orbitmq.ok("cluster", "config", "broker-a", "--set", "brokerPermission=4")
        orbitmq.ok("cluster", "restart", "broker-a", "--yes")
        assert permissions(orbitmq, "Only") == {"broker-a": 4}
        assert orbitmq("cluster", "restart", "nobody", "--yes").code == 3


def test_a_broker_that_does_not_come_back_is_named_with_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.client.admin.stopping.until_back.__kwdefaults__", {"limit_s": 0.5})
    with SmallCluster(tmp_path, ["broker-a", "broker-b"]) as cluster:
        orbitmq = Commands(capsys, cluster.namesrv)
        here = cluster.address("broker-a")
        for broker in cluster.brokers.values():
            broker.on_stop_request = lambda restart: None  # it answers and stays as it is
        ended = orbitmq("cluster", "restart", "--yes", "--settle", "0")
        assert ended.code == 1
        assert f"the broker at {here} has not come back" in ended.err
        assert f"to go on: orbitmq cluster restart {here} {cluster.address('broker-b')}" in ended.err


def test_ctrl_c_opens_what_was_closed_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SmallCluster(tmp_path, ["broker-a", "broker-b"]) as cluster:
        orbitmq = Commands(capsys, cluster.namesrv)
        orbitmq.ok("topic", "create", "Work", "--queues", "1")
        command = ["cluster", "restart", "--yes", "--settle", "60", "-n", cluster.namesrv]
        process = subprocess.Popen(
            [sys.executable, "-m", "orbitmq", *command],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        while "waits until producers have left" not in process.stderr.readline():
            assert process.poll() is None
        assert permissions(orbitmq, "Work") == {"broker-a": 4, "broker-b": 6}
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130
        rest = f"{cluster.address('broker-a')} {cluster.address('broker-b')}"
        assert f"restarted: none; to go on: orbitmq cluster restart {rest}" in err
        assert permissions(orbitmq, "Work") == {"broker-a": 6, "broker-b": 6}
        assert cluster.stops == []


def test_slaves_come_first() -> None:
    known = ClusterMap(
        {"c": ("a", "b")},
        {
            "a": BrokerData("a", "c", {0: "a:0", 2: "a:2"}),
            "b": BrokerData("b", "c", {0: "b:0", 1: "b:1"}),
        },
    )
    assert in_order(known, []) == ["a:2", "b:1", "a:0", "b:0"]
    assert in_order(known, ["a"]) == ["a:2", "a:0"]
    assert in_order(known, ["b", "a:0"]) == ["b:1", "a:0", "b:0"]
    with pytest.raises(NotFound, match="'c:0'"):
        in_order(known, ["a", "c:0"])


def test_a_broker_added_under_load_takes_its_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SmallCluster(tmp_path, ["broker-a"]) as cluster:
        orbitmq = Commands(capsys, cluster.namesrv)
        alone = orbitmq("cluster", "expand", "broker-a")
        assert alone.code == 2
        assert "only broker" in alone.err
        orbitmq.ok("topic", "create", "Work", "--queues", "3")
        orbitmq.ok("topic", "create", "Lines", "--queues", "2", "--order")
        orbitmq.ok("group", "create", "audit", "--retries", "5")
        with SteadyLoad(cluster.namesrv, "Work") as load:
            load.until(lambda: load.taken_by("broker-a") > 0)
            cluster.add("broker-b")
            plan = orbitmq.ok("cluster", "expand", "broker-b", "--dry-run", "--json").json
            assert (plan["topics"], plan["left_out"], plan["applied"]) == (["Work"], ["Lines"], False)
            assert "audit" in plan["groups"]
            assert "has everything" not in orbitmq.ok("cluster", "expand", "broker-b", "--dry-run").out
            assert list(permissions(orbitmq, "Work")) == ["broker-a"]
            ended = orbitmq.ok("cluster", "expand", "broker-b")
            assert "has got 1 topics" in ended.out
            assert "Lines" in ended.err
            load.until(lambda: load.taken_by("broker-b") > 20)
            load.finish()
        assert load.failed == []
        shares = orbitmq.ok("topic", "route", "Work", "--json").json["brokers"]
        assert {(share["broker"], share["write_queues"]) for share in shares} == {
            ("broker-a", 3),
            ("broker-b", 3),
        }
        (audit,) = [row for row in orbitmq.ok("group", "list", "--json").json if row["name"] == "audit"]
        assert (audit["brokers"], audit["retry_max_times"]) == (["broker-a", "broker-b"], 5)
        assert orbitmq.ok("cluster", "expand", "broker-b").out == "broker-b has everything already\n"
        with_order = orbitmq.ok("cluster", "expand", "broker-b", "--ordered", "--json").json
        assert with_order["topics"] == ["Lines"]
        assert list(permissions(orbitmq, "Lines")) == ["broker-a", "broker-b"]


def test_a_topic_shrinks_on_all_its_brokers_and_their_slaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FIRST_S", 0.1)
    monkeypatch.setattr(following, "EVERY_S", 0.1)
    with SmallCluster(tmp_path, ["broker-a", "broker-a.1", "broker-b"]) as cluster:
        orbitmq = Commands(capsys, cluster.namesrv)
        orbitmq.ok("topic", "create", "Wide", "--queues", "4")
        for broker, queue in (("broker-a", 1), ("broker-a", 3), ("broker-b", 2)):
            orbitmq.ok("send", "Wide", "x", "--broker", broker, "--queue", str(queue))

        def sizes() -> dict[str, tuple[int, int]]:
            shares = orbitmq.ok("topic", "route", "Wide", "--json").json["brokers"]
            return {share["broker"]: (share["read_queues"], share["write_queues"]) for share in shares}

        def on_slave() -> int:
            topic = cluster.call(lambda: cluster.brokers["broker-a.1"].topics.get("Wide"))
            return topic.read_queue_nums if topic else 0

        eventually(lambda: on_slave() == 4, "the slave knows the topic")
        orbitmq.ok("group", "create", "g")
        commit(cluster.address("broker-a"), "g", "Wide", 0)
        commit(cluster.address("broker-b"), "g", "Wide", 0)
        options = ["topic", "shrink", "Wide", "--queues", "2", "--settle", "0"]
        held_up = orbitmq(*options, "--timeout", "0")
        assert held_up.code == 1
        rows = {tuple(line.split()) for line in held_up.out.splitlines()}
        assert {("g", "broker-a", "3", "?"), ("g", "broker-b", "2", "?")} <= rows
        assert sizes() == {"broker-a": (4, 2), "broker-b": (4, 2)}
        orbitmq.ok("group", "reset", "g", "Wide", "--to", "last", "--yes")
        # A broker whose master is away is not left out in silence.
        cluster.stop("broker-a")
        away = orbitmq(*options, "--timeout", "5")
        assert away.code == 1
        assert "broker broker-a of topic 'Wide' has no master now" in away.err
        cluster.add("broker-a")
        done = orbitmq.ok(*options, "--timeout", "10", "--json").json
        assert done["done"]
        assert sizes() == {"broker-a": (2, 2), "broker-b": (2, 2)}
        eventually(lambda: on_slave() == 2, "the slave has followed")
