"""Sending back on a real store; the wait itself belongs to the room of delays."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orbitmq.broker.groups import GroupConfig
from orbitmq.wire.codes import RequestCode, ResponseCode, SysFlag
from orbitmq.wire.command import Command, request
from orbitmq.wire.topics import HALF_TOPIC
from tests.broker.transaction.world import UNANSWERED, World

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "store"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def send_back(
    world: World,
    offset: int,
    *,
    group: str = "g",
    level: int = 0,
    limit: int | None = None,
    version: int = 407,
    remark: str | None = None,
    oneway: bool = False,
    **more: str,
) -> Command:
    ext = {
        "offset": str(offset),
        "group": group,
        "delayLevel": str(level),
        "originMsgId": "X",
        "unitMode": "false",
        **more,
    }
    if limit is not None:
        ext["maxReconsumeTimes"] = str(limit)
    command = request(RequestCode.CONSUMER_SEND_MSG_BACK, ext, oneway=oneway)
    command.version = version
    command.remark = remark
    return world.ask(command)


def sent(world: World, topic: str = "TopicA", **properties: str) -> int:
    reply = world.send(topic, b"body", **{"UNIQ_KEY": "U1", "TAGS": "a", "KEYS": "k", **properties})
    assert reply.code == 0, reply.remark
    return int(reply.ext["msgId"][16:], 16)


class TestSendingBack:
    def test_the_copy_waits_in_the_retry_topic(self, world: World) -> None:
        offset = sent(world, mine="v")
        assert send_back(world, offset).code == 0
        (original,) = world.records("TopicA")
        (copy,) = world.records("%RETRY%g")
        assert copy.properties == {
            **original.properties,
            "RETRY_TOPIC": "TopicA",
            "ORIGIN_MESSAGE_ID": original.offset_msg_id,
            "WAIT": "false",
            "DELAY": "3",
        }
        assert (copy.body, copy.born_ms, copy.born_host, copy.flag) == (
            original.body,
            original.born_ms,
            original.born_host,
            original.flag,
        )
        assert copy.reconsume_times == 1
        assert world.delays.delayed == ["3"]
        assert world.registered.count("%RETRY%g") == 1

    def test_every_try_waits_longer_and_the_last_is_dead(self, world: World) -> None:
        offset = sent(world)
        first_id = world.records("TopicA")[0].offset_msg_id
        for _ in range(16):
            assert send_back(world, offset).code == 0
            offset = world.records("%RETRY%g")[-1].physical_offset
        assert world.delays.delayed == [str(level) for level in range(3, 19)]
        assert send_back(world, offset).code == 0
        assert len(world.records("%RETRY%g")) == 16
        (dead,) = world.records("%DLQ%g")
        assert dead.reconsume_times == 17
        assert dead.properties["RETRY_TOPIC"] == "TopicA" and dead.properties["DELAY"] == "0"
        assert dead.properties["ORIGIN_MESSAGE_ID"] == first_id
        topic = world.topics.get("%DLQ%g")
        assert topic is not None and (topic.perm, topic.read_queue_nums) == (6, 1)
        assert "%DLQ%g" in world.registered

    def test_level_minus_one_is_dead_at_once(self, world: World) -> None:
        assert send_back(world, sent(world), level=-1).code == 0
        assert len(world.records("%DLQ%g")) == 1 and not world.delays.delayed

    def test_the_limit_comes_from_the_client_or_the_group(self, world: World) -> None:
        world.groups.put(GroupConfig("g", retry_max_times=0), 0)
        assert send_back(world, sent(world)).code == 0
        assert len(world.records("%DLQ%g")) == 1
        assert send_back(world, sent(world), limit=5).code == 0
        assert len(world.records("%RETRY%g")) == 1
        assert send_back(world, sent(world), limit=5, version=100).code == 0
        assert len(world.records("%DLQ%g")) == 2, "older clients' limits do not count"

    def test_a_group_with_several_retry_queues(self, world: World) -> None:
        world.groups.put(GroupConfig("g", retry_queue_nums=3), 0)
        for _ in range(30):
            send_back(world, sent(world))
        assert all(world.records("%RETRY%g", queue_id) for queue_id in range(3))
        topic = world.topics.get("%RETRY%g")
        assert topic is not None and topic.write_queue_nums == 3

    def test_a_group_that_wants_no_retries_gets_a_yes_and_nothing_happens(self, world: World) -> None:
        world.groups.put(GroupConfig("g", retry_queue_nums=0), 0)
        assert send_back(world, sent(world)).code == 0
        assert not world.records("%RETRY%g") and world.topics.get("%RETRY%g") is None

    def test_oneway_is_not_answered(self, world: World) -> None:
        assert send_back(world, sent(world), oneway=True) is UNANSWERED
        assert len(world.records("%RETRY%g")) == 1

    def test_a_committed_message_can_be_tried_again(self, world: World) -> None:
        world.end(world.prepare("T1"), SysFlag.TX_COMMIT)
        (real,) = world.records("TopicA")
        assert send_back(world, real.physical_offset).code == 0
        (copy,) = world.records("%RETRY%g")
        assert copy.properties["RETRY_TOPIC"] == "TopicA" and len(world.records(HALF_TOPIC)) == 1


class TestReasons:
    def test_the_reason_stays_with_the_message_until_it_is_dead(self, world: World) -> None:
        assert send_back(world, sent(world), failureReason="no stock\n at Shop.java:7").code == 0
        (copy,) = world.records("%RETRY%g")
        assert copy.properties["DLQ_REASON"] == "no stock at Shop.java:7"
        assert "DLQ_ORIGIN_TOPIC" not in copy.properties
        assert send_back(world, copy.physical_offset, level=-1).code == 0
        (dead,) = world.records("%DLQ%g")
        assert dead.properties["DLQ_REASON"] == "no stock at Shop.java:7"
        assert dead.properties["DLQ_ORIGIN_TOPIC"] == "TopicA"
        assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == "U1"

    def test_the_remark_of_the_request_will_do_and_the_last_word_counts(self, world: World) -> None:
        send_back(world, sent(world), remark="first")
        (copy,) = world.records("%RETRY%g")
        send_back(world, copy.physical_offset, remark="second", level=-1)
        assert world.records("%DLQ%g")[0].properties["DLQ_REASON"] == "second"

    def test_without_a_reason_nothing_is_added(self, world: World) -> None:
        send_back(world, sent(world), level=-1)
        assert not [name for name in world.records("%DLQ%g")[0].properties if name.startswith("DLQ_")]

    def test_a_reason_that_does_not_fit_is_left_out_rather_than_the_message(self, world: World) -> None:
        offset = sent(world, big="x" * 32_400)
        assert send_back(world, offset, failureReason="y" * 900, level=-1).code == 0
        assert "DLQ_REASON" not in world.records("%DLQ%g")[0].properties


class TestRefusals:
    def test_an_unknown_group(self, tmp_path: Path) -> None:
        world = World(tmp_path, auto_create_subscription_group=False)
        reply = send_back(world, sent(world), group="nobody")
        assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and "nobody" in (reply.remark or "")
        world.close()

    @pytest.mark.parametrize("group", ["", "bad name", "x" * 300])
    def test_a_group_name_that_cannot_be(self, world: World, group: str) -> None:
        assert send_back(world, sent(world), group=group).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    def test_a_group_whose_retry_topic_would_be_too_long(self, world: World) -> None:
        reply = send_back(world, sent(world), group="g" * 125)
        assert reply.code == 1 and "retry topic" in (reply.remark or "")

    @pytest.mark.parametrize("offset", [-1, 1, 10**6, 2**62])
    def test_a_message_that_is_not_there(self, world: World, offset: int) -> None:
        sent(world)
        reply = send_back(world, offset)
        assert reply.code == 1 and "look message by offset failed" in (reply.remark or "")

    def test_a_half_message_cannot_be_sent_into_the_open(self, world: World) -> None:
        _, offset = world.prepare()
        assert send_back(world, offset).code == 1
        assert not world.records("%RETRY%g")

    def test_a_store_that_takes_no_writes(self, world: World) -> None:
        offset = sent(world)
        world.store.refuse_writes("disk full")
        assert send_back(world, offset).code == ResponseCode.SERVICE_NOT_AVAILABLE

    def test_a_copy_that_is_longer_than_a_log_file(self, world: World) -> None:
        fits = world.store.settings.commit_log_file_bytes - 350
        offset = int(world.send(body=bytes(fits)).ext["msgId"][16:], 16)
        reply = send_back(world, offset, failureReason="x" * 500)
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL and "log file" in (reply.remark or "")

    def test_numbers_as_large_as_they_come(self, world: World) -> None:
        world.send("%RETRY%g", header={"reconsumeTimes": str(2**31 - 1), "maxReconsumeTimes": str(2**31 - 1)})
        (dead,) = world.records("%DLQ%g")
        assert dead.reconsume_times == 2**31 - 1
        assert send_back(world, dead.physical_offset, limit=2**31 - 1).code == 0
        assert world.records("%DLQ%g")[-1].reconsume_times == 2**31 - 1
        assert send_back(world, sent(world), limit=-(2**31)).code == 0
        assert send_back(world, sent(world), level=2**31 - 1).code == 0
        assert world.delays.delayed == ["18"]
        for bad in ("x", str(2**31), ""):
            reply = world.ask(
                request(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": "0", "group": "g", "delayLevel": bad})
            )
            assert reply.code == 1 and "delayLevel" in (reply.remark or "")


class TestPlainSends:
    def test_once_too_often_is_dead(self, world: World) -> None:
        world.send(
            "%RETRY%g", UNIQ_KEY="U", RETRY_TOPIC="TopicA", DELAY="18", header={"reconsumeTimes": "16"}
        )
        assert not world.records("%RETRY%g") and not world.delays.delayed
        (dead,) = world.records("%DLQ%g")
        assert dead.reconsume_times == 16 and dead.properties["DELAY"] == "0"

    def test_the_clients_limit(self, world: World) -> None:
        for times, limit, topic in (("2", "3", "%RETRY%g"), ("3", "3", "%DLQ%g")):
            before = len(world.records(topic))
            world.send("%RETRY%g", header={"reconsumeTimes": times, "maxReconsumeTimes": limit})
            assert len(world.records(topic)) == before + 1

    def test_an_unknown_group(self, tmp_path: Path) -> None:
        world = World(tmp_path, auto_create_subscription_group=False)
        assert world.send("%RETRY%nobody").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        world.close()

    def test_a_negative_count_is_no_count(self, world: World) -> None:
        world.send("%RETRY%g", header={"reconsumeTimes": "-7"})
        assert world.records("%RETRY%g")[0].reconsume_times == 0


def test_dead_letters_look_like_those_of_the_java_broker(world: World, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "golden")
    golden = World(tmp_path / "golden", now=1_794_773_300_000)
    theirs = golden.records("%DLQ%golden_consumer")[0]
    original = next(
        message
        for queue_id in range(4)
        for message in golden.records("GoldenRetry", queue_id)
        if message.msg_id == theirs.msg_id
    )
    properties = {name: value for name, value in original.properties.items() if name != "CLUSTER"}
    offset = int(world.send("GoldenRetry", original.body, **properties).ext["msgId"][16:], 16)
    origin = world.records("GoldenRetry")[0].offset_msg_id
    for _ in range(2):
        send_back(world, offset, group="golden_consumer", level=1, limit=2)
        offset = world.records("%RETRY%golden_consumer")[-1].physical_offset
    send_back(world, offset, group="golden_consumer", level=1, limit=2)
    (ours,) = world.records("%DLQ%golden_consumer")
    not_compared = {"CLUSTER": "", "ORIGIN_MESSAGE_ID": "", "REAL_TOPIC": "", "REAL_QID": ""}
    assert {**ours.properties, **not_compared} == {**theirs.properties, **not_compared}
    assert ours.properties["ORIGIN_MESSAGE_ID"] == origin
    assert (ours.reconsume_times, ours.queue_id, ours.body, ours.sys_flag) == (
        theirs.reconsume_times,
        theirs.queue_id,
        theirs.body,
        theirs.sys_flag,
    )
    golden.close()
