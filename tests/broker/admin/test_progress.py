from __future__ import annotations

import time

import pytest

from orbitmq.broker.admin.common import time_text
from orbitmq.broker.admin.progress import NO_CORRECTION
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode as R
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.command import Command
from tests.broker.admin.world import World, mq


def test_lag_is_told_by_queue_with_the_time_of_the_last_message_read(world: World) -> None:
    world.topic("orders", 2)
    stored = [world.put("orders", 0) for _ in range(5)]
    world.offsets.commit("billing", "orders", 0, 3)
    answer = world.ok(R.GET_CONSUME_STATS, consumerGroup="billing")
    table = fastjson.loads(answer.body)["offsetTable"]
    assert table[mq("orders", 0)] == {
        "brokerOffset": 5,
        "consumerOffset": 3,
        "lastTimestamp": stored[2].store_ms,
    }
    assert answer.body.startswith(
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"b1","queueId":0,"topic":"orders"}:'
        b'{"brokerOffset":5,"consumerOffset":3,"lastTimestamp":'
    )


def test_a_queue_without_an_offset_reads_as_zero_and_says_so(world: World) -> None:
    world.topic("orders", 2)
    world.put("orders", 1)
    world.offsets.commit("billing", "orders", 0, 0)
    table = world.json(R.GET_CONSUME_STATS, consumerGroup="billing", topic="orders")["offsetTable"]
    assert table[mq("orders", 0)] == {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0}
    assert table[mq("orders", 1)] == {
        "brokerOffset": 1,
        "consumerOffset": 0,
        "lastTimestamp": 0,
        "noOffset": True,
    }


def test_lag_counts_existing_topics_that_the_group_still_reads(world: World) -> None:
    for topic in ("orders", "refunds"):
        world.topic(topic, 1)
        world.offsets.commit("billing", topic, 0, 0)
    world.offsets.commit("billing", "deleted", 0, 4)
    assert len(world.json(R.GET_CONSUME_STATS, consumerGroup="billing")["offsetTable"]) == 2
    world.online("billing", "c1", "orders")
    assert list(world.json(R.GET_CONSUME_STATS, consumerGroup="billing")["offsetTable"]) == [mq("orders", 0)]
    listed = world.json(R.GET_CONSUME_STATS, consumerGroup="nobody", topicList="orders;refunds")
    assert len(listed["offsetTable"]) == 2
    assert world.json(R.GET_CONSUME_STATS, consumerGroup="nobody")["offsetTable"] == {}


def test_consume_tps_adds_up_over_topics(world: World) -> None:
    world.stats.tick(world.now)
    for topic in ("orders", "refunds"):
        world.topic(topic, 1)
        world.offsets.commit("billing", topic, 0, 0)
        world.stats.get(topic, "billing", 100, 1000)
    world.now += 10_000
    world.stats.tick(world.now)
    assert world.json(R.GET_CONSUME_STATS, consumerGroup="billing")["consumeTps"] == pytest.approx(20.0)


def test_all_groups_of_the_broker_with_their_total(world: World) -> None:
    world.topic("orders", 1).order = True
    world.topic("refunds", 1)
    for topic, count in (("orders", 3), ("refunds", 2)):
        for _ in range(count):
            world.put(topic)
        world.offsets.commit("billing", topic, 0, 1)
    world.ok(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"billing"}')
    told = world.json(R.GET_BROKER_CONSUME_STATS, isOrder=False)
    assert told["brokerAddr"] == "127.0.0.1:10911"
    assert told["totalDiff"] == 3
    rows = {group: stats for row in told["consumeStatsList"] for group, stats in row.items()}
    assert len(rows["billing"]) == 2
    assert rows["TOOLS_CONSUMER"] == []
    ordered = world.json(R.GET_BROKER_CONSUME_STATS, isOrder=True)
    assert ordered["totalDiff"] == 2


def test_delay_in_time_is_that_of_the_next_message_to_read(world: World) -> None:
    world.topic("orders", 2)
    stored = [world.put("orders", 0) for _ in range(3)]
    world.offsets.commit("billing", "orders", 0, 1)
    world.now += 1000
    answer = world.ok(R.QUERY_CONSUME_TIME_SPAN, topic="orders", group="billing")
    first, second = fastjson.loads(answer.body)["consumeTimeSpanSet"]
    assert first["minTimeStamp"] == first["consumeTimeStamp"] == stored[0].store_ms
    assert first["maxTimeStamp"] == stored[2].store_ms
    assert first["delayTime"] == world.now - stored[1].store_ms
    assert first["messageQueue"] == {"brokerName": "b1", "queueId": 0, "topic": "orders"}
    assert (second["minTimeStamp"], second["maxTimeStamp"], second["delayTime"]) == (-1, -1, 0)
    world.offsets.commit("billing", "orders", 0, 3)
    spans = world.json(R.QUERY_CONSUME_TIME_SPAN, topic="orders", group="billing")["consumeTimeSpanSet"]
    assert spans[0]["delayTime"] == 0
    code, _ = world.refusal(R.QUERY_CONSUME_TIME_SPAN, topic="nope", group="billing")
    assert code == ResponseCode.TOPIC_NOT_EXIST


def test_times_are_written_as_tools_read_them() -> None:
    moment = time.mktime(time.strptime("2024-01-31 23:59:58", "%Y-%m-%d %H:%M:%S"))
    assert time_text(int(moment) * 1000 + 7) == "2024-01-31#23:59:58:007"


def test_correction_offsets_are_the_slowest_groups(world: World) -> None:
    world.topic("orders", 2)
    for group, offset in (("fast", 9), ("slow", 4), ("left-out", 1)):
        world.offsets.commit(group, "orders", 0, offset)
    world.offsets.commit("slow", "orders", 1, 7)

    def ask(compared: str) -> Command:
        return world.ok(
            R.QUERY_CORRECTION_OFFSET, topic="orders", compareGroup=compared, filterGroups="left-out,other"
        )

    assert ask("nobody").body == b'{"correctionOffsets":{0:4,1:7}}'
    world.offsets.commit("behind", "orders", 1, 2)
    told = fastjson.loads(ask("left-out").body)["correctionOffsets"]
    assert told == {0: NO_CORRECTION, 1: 2}


def test_cloning_copies_the_offsets_of_one_topic_or_of_all(world: World) -> None:
    for topic in ("orders", "refunds"):
        world.topic(topic, 1)
        world.offsets.commit("src", topic, 0, 5)
    world.ok(R.CLONE_GROUP_OFFSET, srcGroup="src", destGroup="one", topic="orders", offline=True)
    assert world.offsets.topics_of("one") == ["orders"]
    world.ok(R.CLONE_GROUP_OFFSET, srcGroup="src", destGroup="all", offline=True)
    assert world.offsets.query("all", "refunds", 0) == 5
    world.online("src", "c1", "orders")
    world.ok(R.CLONE_GROUP_OFFSET, srcGroup="src", destGroup="read", offline=False)
    assert world.offsets.topics_of("read") == ["orders"]
    answer = world.ok(R.CLONE_GROUP_OFFSET, srcGroup="nobody", destGroup="x", topic="orders", offline=True)
    assert "nothing was copied" in str(answer.remark)
