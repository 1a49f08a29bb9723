"""Every command against a real server process."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("server"), mappedFileSizeCommitLog=16 * 1024 * 1024
    ) as running:
        yield running


@pytest.fixture
def orbitmq(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys, server.namesrv)


@pytest.fixture
def topic(request: pytest.FixtureRequest, orbitmq: Commands) -> str:
    """A topic of the test's own with four queues."""
    name = request.node.name.removeprefix("test_")[:100]
    orbitmq.ok("topic", "create", name, "--queues", "4")
    return name


def eventually(orbitmq: Commands, *args: str) -> None:
    """The key index is written a moment after the message."""
    deadline = time.monotonic() + 5
    while orbitmq(*args).code != 0 and time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_topic_from_creation_to_deletion(orbitmq: Commands) -> None:
    created = orbitmq.ok(
        "topic", "create", "Life", "--read-queues", "3", "--write-queues", "2", "--json"
    ).json
    assert created == {
        "topic": "Life",
        "brokers": ["broker-a"],
        "read_queues": 3,
        "write_queues": 2,
        "perm": 6,
    }
    assert {"name": "Life", "kind": "normal"} in orbitmq.ok("topic", "list", "--json").json
    (share,) = orbitmq.ok("topic", "route", "Life", "--json").json["brokers"]
    assert (share["read_queues"], share["write_queues"], share["perm"]) == (3, 2, 6)
    orbitmq.ok("topic", "update", "Life", "--perm", "4", "--write-queues", "3")
    (share,) = orbitmq.ok("topic", "route", "Life", "--json").json["brokers"]
    assert (share["read_queues"], share["write_queues"], share["perm"]) == (3, 3, 4)
    refused = orbitmq("send", "Life", "x")
    assert refused.code == 3
    assert "no writable queue" in refused.err
    orbitmq.ok("topic", "delete", "Life", "--yes")
    gone = orbitmq("topic", "status", "Life", "--json")
    assert gone.code == 3
    assert gone.error["code"] == 17


def test_system_topics_are_listed_only_on_demand(orbitmq: Commands) -> None:
    usual = {item["name"] for item in orbitmq.ok("topic", "list", "--json").json}
    everything = {item["name"]: item["kind"] for item in orbitmq.ok("topic", "list", "--all", "--json").json}
    assert "TBW102" not in usual
    assert everything["TBW102"] == everything["DefaultCluster"] == everything["broker-a"] == "system"


def test_a_message_is_sent_and_found_by_everything_it_carries(orbitmq: Commands, topic: str) -> None:
    sent = orbitmq.ok(
        "send",
        topic,
        "hello",
        "--tag",
        "TagA",
        "--key",
        "k1",
        "--key",
        "k2",
        "--property",
        "region=eu",
        "--json",
    ).json
    assert sent["status"] == "SEND_OK"
    by_id = orbitmq.ok("message", "show", sent["offset_msg_id"], "--json").json
    assert (by_id["body"], by_id["tag"], by_id["keys"]) == ("hello", "TagA", ["k1", "k2"])
    assert by_id["properties"]["region"] == "eu"
    assert by_id["msg_id"] == sent["msg_id"]
    place = orbitmq.ok(
        "message", "at", topic, str(sent["queue_id"]), str(sent["queue_offset"]), "--json"
    ).json
    assert place == by_id
    eventually(orbitmq, "message", "key", topic, "k2")
    (by_key,) = orbitmq.ok("message", "key", topic, "k2", "--json").json_lines
    assert by_key == by_id
    assert orbitmq.ok("message", "show", sent["msg_id"], "--topic", topic, "--json").json == by_id
    (by_time,) = orbitmq.ok("message", "list", topic, "--from", "1m", "--json").json_lines
    assert by_time == by_id
    people = orbitmq.ok("message", "show", sent["offset_msg_id"]).out
    assert "property region" in people
    assert people.endswith("hello\n")


def test_what_is_not_there_is_exit_code_3(orbitmq: Commands, topic: str) -> None:
    absent_id = "7F000001" + "00002A9F" + "0" * 16
    for args in (
        ["message", "key", topic, "no-such-key"],
        ["message", "at", topic, "0", "99"],
        ["message", "show", "AB" * 16, "--topic", topic],
        ["topic", "route", "NoSuchTopic"],
        ["group", "show", "no-such-group"],
        ["cluster", "config", "broker-a", "noSuchSetting"],
        ["cluster", "status", "no-such-broker"],
        ["cluster", "list", "--cluster", "NoSuchCluster"],
        ["tail", "NoSuchTopic"],
        ["send", topic, "x", "--queue", "9"],
    ):
        ended = orbitmq(*args)
        assert ended.code == 3, (args, ended)
        assert ended.err.startswith("orbitmq: ")
        assert ended.err.count("\n") == 1
    # This id names another port, where nobody listens.
    assert orbitmq("message", "show", absent_id).code in (3, 4)


def test_queues_take_turns_and_each_receipt_is_a_line(orbitmq: Commands, topic: str) -> None:
    receipts = orbitmq.ok("send", topic, "x", "--count", "40", "--json").json_lines
    assert [sum(r["queue_id"] == q for r in receipts) for q in range(4)] == [10, 10, 10, 10]
    status = orbitmq.ok("topic", "status", topic, "--json").json
    assert status["messages"] == 40
    assert [queue["max_offset"] for queue in status["queues"]] == [10, 10, 10, 10]


def test_a_chosen_queue_keeps_the_order(orbitmq: Commands, topic: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {number}\n" for number in range(200)))
    orbitmq.ok("send", topic, "--from-file", str(lines), "--lines", "--queue", "2")
    read = orbitmq.ok("tail", topic, "--from", "first", "--no-follow", "--queue", "2", "--json").json_lines
    assert [message["body"] for message in read] == [f"line {number}" for number in range(200)]
    assert {message["queue_id"] for message in read} == {2}


def test_standard_input_is_a_body(orbitmq: Commands, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"from\xff a pipe"))
    monkeypatch.setattr(sys, "stdin", stdin)
    sent = orbitmq.ok("send", topic, "-", "--json").json
    found = orbitmq.ok("message", "show", sent["offset_msg_id"], "--json").json
    assert "body" not in found
    assert found["body_base64"]


def test_a_new_topic_is_made_by_its_first_message(orbitmq: Commands) -> None:
    orbitmq.ok("send", "MadeBySending", "first")
    (message,) = orbitmq.ok("tail", "MadeBySending", "--from", "first", "--no-follow", "--json").json_lines
    assert message["body"] == "first"


def test_a_big_body_comes_back_whole(orbitmq: Commands, topic: str, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"0123456789" * 50_000)
    sent = orbitmq.ok("send", topic, "--from-file", str(big), "--json").json
    found = orbitmq.ok("message", "show", sent["offset_msg_id"], "--json").json
    assert found["body"] == big.read_text()
    assert found["size"] < 10_000


def test_oneway_is_stored_too(orbitmq: Commands, topic: str) -> None:
    orbitmq.ok("send", topic, "silent", "--oneway", "--count", "5")
    read = orbitmq.ok("tail", topic, "--from", "first", "--max", "5", "--timeout", "10", "--json").json_lines
    assert [message["body"] for message in read] == ["silent"] * 5


def test_tail_filters_by_tag(orbitmq: Commands, topic: str) -> None:
    for tag in "ABCAB":
        orbitmq.ok("send", topic, tag, "--tag", tag)
    read = orbitmq.ok("tail", topic, "--from", "first", "--no-follow", "--tag", "A || C", "--json").json_lines
    assert [message["body"] for message in read] == ["A", "C", "A"]


def test_tail_begins_at_offset_and_time(orbitmq: Commands, topic: str) -> None:
    for number in range(6):
        orbitmq.ok("send", topic, str(number), "--queue", "0")
    from_offset = orbitmq.ok("tail", topic, "--from", "4", "--no-follow", "--json").json_lines
    assert [message["body"] for message in from_offset] == ["4", "5"]
    later_ms = from_offset[0]["store_ms"]
    from_time = orbitmq.ok("tail", topic, "--from", str(later_ms), "--no-follow", "--json").json_lines
    assert [message["body"] for message in from_time][-2:] == ["4", "5"]
    assert all(message["store_ms"] >= later_ms for message in from_time)
    assert orbitmq.ok("tail", topic, "--from", "now", "--no-follow").out == ""


def test_tail_waits_for_what_arrives(orbitmq: Commands, topic: str, server: ServerProcess) -> None:
    from orbitmq.cli.main import main

    def send_soon() -> None:
        time.sleep(0.5)
        main(["send", topic, "arrived", "--oneway", "--json", "-n", server.namesrv])

    sender = threading.Thread(target=send_soon)
    sender.start()
    started = time.monotonic()
    ended = orbitmq("tail", topic, "--max", "1", "--timeout", "20", "--json")
    waited = time.monotonic() - started
    sender.join()
    assert ended.code == 0, ended.err
    assert '"body":"arrived"' in ended.out
    assert waited < 5  # a held pull is woken by the message, not by its end


def test_tail_says_when_fewer_came_than_asked_for(orbitmq: Commands, topic: str) -> None:
    ended = orbitmq("tail", topic, "--max", "2", "--timeout", "0.5")
    assert ended.code == 1
    assert "0 of 2 messages" in ended.err
    assert orbitmq("tail", topic, "--timeout", "0.3").code == 0


def test_a_group_from_creation_to_deletion(orbitmq: Commands, topic: str) -> None:
    group = f"g-{topic}"
    orbitmq.ok("group", "create", group, "--retries", "5")
    (listed,) = [item for item in orbitmq.ok("group", "list", "--json").json if item["name"] == group]
    assert (listed["retry_max_times"], listed["brokers"]) == (5, ["broker-a"])
    fresh = orbitmq.ok("group", "progress", group, "--json").json
    assert fresh["lag"] is None
    assert "not committed" in fresh["lag_unknown"]
    assert orbitmq.ok("group", "connections", group, "--json").json["connections"] == []
    assert "no member is connected" in orbitmq.ok("group", "show", group).out
    orbitmq.ok("group", "delete", group, "--yes")
    assert orbitmq("group", "progress", group).code == 3


def test_a_group_without_members_is_moved_after_a_preview(orbitmq: Commands, topic: str) -> None:
    group = f"g-{topic}"
    orbitmq.ok("send", topic, "x", "--count", "12")
    orbitmq.ok("group", "create", group)
    plan = orbitmq.ok("group", "reset", group, topic, "--to", "last", "--preview", "--json").json
    assert not plan["applied"]
    assert [step["to_offset"] for step in plan["queues"]] == [3, 3, 3, 3]
    assert orbitmq.ok("group", "progress", group, "--json").json["queues"] == []
    done = orbitmq.ok("group", "reset", group, topic, "--to", "last", "--yes", "--json").json
    assert done["applied"]
    assert orbitmq.ok("group", "progress", group, "--json").json["lag"] == 0
    back = orbitmq.ok("group", "reset", group, topic, "--to", "first", "--yes", "--json").json
    assert sum(step["repeated"] for step in back["queues"]) == 12
    progress = orbitmq.ok("group", "progress", group, "--topic", topic, "--json").json
    assert progress["lag"] == 12
    assert orbitmq.ok("topic", "show", topic, "--json").json["groups"] == [group]


def test_the_cluster_and_its_broker(orbitmq: Commands, server: ServerProcess) -> None:
    (broker,) = orbitmq.ok("cluster", "list", "--json").json
    assert (broker["broker"], broker["broker_id"], broker["addr"]) == ("broker-a", 0, server.broker_addr)
    assert broker["problem"] is None
    assert "broker-a" in orbitmq.ok("cluster", "list").out
    figures = orbitmq.ok("cluster", "status", "broker-a", "--json").json
    assert "putTps" in figures
    assert orbitmq.ok("cluster", "config", "broker-a", "brokerName", "--json").json == {
        "brokerName": "broker-a"
    }


def test_a_setting_is_changed_while_the_broker_runs(orbitmq: Commands) -> None:
    changed = orbitmq.ok("cluster", "config", "broker-a", "--set", "fileReservedTime=48", "--json").json
    assert changed == {"fileReservedTime": "48"}
    assert orbitmq.ok("cluster", "config", "broker-a", "fileReservedTime", "--json").json == changed


def test_a_broker_taken_out_of_the_write_routes_comes_back(orbitmq: Commands, topic: str) -> None:
    orbitmq.ok("cluster", "writable", "broker-a", "off")
    try:
        assert orbitmq("send", topic, "x").code == 3
    finally:
        orbitmq.ok("cluster", "writable", "broker-a", "on")
    orbitmq.ok("send", topic, "x")
