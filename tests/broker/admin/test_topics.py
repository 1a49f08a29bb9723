from __future__ import annotations

import json
from typing import Any

import pytest

from orbitmq.config import BrokerRole
from orbitmq.wire.codes import RequestCode as R
from orbitmq.wire.codes import ResponseCode
from tests.broker.admin.world import World, mq

CREATE: dict[str, Any] = {
    "topic": "orders",
    "defaultTopic": "TBW102",
    "readQueueNums": 4,
    "writeQueueNums": 3,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
}


def test_a_topic_is_created_changed_and_registered_alone(world: World) -> None:
    world.ok(R.UPDATE_AND_CREATE_TOPIC, **CREATE)
    made = world.topics.get("orders")
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm, made.order) == (4, 3, 6, False)
    assert world.registered == ["orders"]
    world.ok(R.UPDATE_AND_CREATE_TOPIC, **(CREATE | {"perm": 4, "order": True, "attributes": "+a.b=c,+d=e"}))
    made = world.topics.get("orders")
    assert made is not None
    assert (made.perm, made.order, made.attributes) == (4, True, {"a.b": "c", "d": "e"})
    world.ok(R.UPDATE_AND_CREATE_TOPIC, **(CREATE | {"attributes": "-d"}))
    assert world.json(R.GET_TOPIC_CONFIG, topic="orders")["attributes"] == {"a.b": "c"}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"topic": "bad topic"}, "illegal characters"),
        ({"topic": "x" * 128}, "longer"),
        ({"topic": "TBW102"}, "conflict with system topic"),
        ({"topic": "DefaultCluster"}, "conflict with system topic"),
        ({"perm": 16}, "perm is 16"),
        ({"readQueueNums": 2**31 - 1}, "queue numbers"),
        ({"writeQueueNums": -1}, "queue numbers"),
        ({"topicFilterType": "NO_TAG"}, "SINGLE_TAG or MULTI_TAG"),
        ({"attributes": "message.type=FIFO"}, "+name=value"),
    ],
)
def test_a_wrong_topic_is_refused_and_nothing_changes(
    world: World, change: dict[str, Any], part: str
) -> None:
    before = world.topics.to_json()
    code, remark = world.refusal(R.UPDATE_AND_CREATE_TOPIC, **(CREATE | change))
    assert code == ResponseCode.SYSTEM_ERROR
    assert part in remark
    assert world.topics.to_json() == before
    assert world.registered == []


def test_a_slave_refuses_every_change(world: World) -> None:
    world.config.broker_role = BrokerRole.SLAVE
    for code, body, ext in (
        (R.UPDATE_AND_CREATE_TOPIC, b"", CREATE),
        (R.UPDATE_AND_CREATE_TOPIC_LIST, b'{"topicConfigList":[]}', {}),
        (R.DELETE_TOPIC_IN_BROKER, b"", {"topic": "orders"}),
        (R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g"}', {}),
        (R.DELETE_SUBSCRIPTIONGROUP, b"", {"groupName": "g"}),
    ):
        answer, remark = world.refusal(code, body, **ext)
        assert answer == ResponseCode.SYSTEM_ERROR
        assert "master" in remark


def test_a_list_of_topics_is_taken_whole_or_not_at_all(world: World) -> None:
    good = {"topicName": "a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    body = json.dumps({"topicConfigList": [good, good | {"topicName": "b"}]}).encode()
    world.ok(R.UPDATE_AND_CREATE_TOPIC_LIST, body)
    assert {"a", "b"} <= set(world.topics.names())
    assert world.registered == [None]
    for bad in (good | {"topicName": "TBW102"}, good | {"perm": "six"}, {"perm": 6}):
        body = json.dumps({"topicConfigList": [good | {"topicName": "c"}, bad]}).encode()
        world.refusal(R.UPDATE_AND_CREATE_TOPIC_LIST, body)
        assert world.topics.get("c") is None
    assert "topicConfigList" in world.refusal(R.UPDATE_AND_CREATE_TOPIC_LIST, b"[]")[1]


def test_all_topics_come_in_the_form_of_the_config_file(world: World) -> None:
    world.topic("orders", 4)
    answer = world.ok(R.GET_ALL_TOPIC_CONFIG)
    expected = (
        b'"orders":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"orders","topicSysFlag":0,"writeQueueNums":4}'
    )
    assert expected in answer.body
    assert answer.body.startswith(b'{"dataVersion":{"counter":')
    assert answer.ext["totalTopicNum"] == str(len(world.topics.table))


def test_the_status_of_a_topic_shows_every_queue_that_can_hold_messages(world: World) -> None:
    topic = world.topic("orders", 3)
    topic.write_queue_nums = 1
    world.put("orders", 0)
    world.put("orders", 2)
    last = world.put("orders", 2)
    table = world.json(R.GET_TOPIC_STATS_INFO, topic="orders")["offsetTable"]
    assert table[mq("orders", 2)] == {"lastUpdateTimestamp": last.store_ms, "maxOffset": 2, "minOffset": 0}
    assert table[mq("orders", 1)] == {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0}
    assert len(table) == 3
    assert b'{{"brokerName":"b1","queueId":0,"topic":"orders"}:{"lastUpdateTimestamp":' in (
        world.ok(R.GET_TOPIC_STATS_INFO, topic="orders").body
    )


def test_an_unknown_topic_has_no_status(world: World) -> None:
    for code in (R.GET_TOPIC_STATS_INFO, R.GET_TOPIC_CONFIG):
        answer, remark = world.refusal(code, topic="nope")
        assert answer == ResponseCode.TOPIC_NOT_EXIST
        assert "topic[nope] not exist" in remark


def test_deleting_a_topic_leaves_nothing_that_a_new_one_of_the_name_could_trip_over(world: World) -> None:
    world.topic("orders")
    world.put("orders")
    world.offsets.commit("billing", "orders", 0, 1)
    world.stats.put("orders", 1, 10)
    world.ok(R.DELETE_TOPIC_IN_BROKER, topic="orders")
    assert world.topics.get("orders") is None
    assert world.store.find_queue("orders", 0) is None
    assert world.offsets.query("billing", "orders", 0) == -1
    assert world.stats.view("TOPIC_PUT_NUMS", "orders") is None
    world.topic("orders")
    assert world.put("orders").queue_offset == 0


def test_deleting_a_topic_twice_is_no_error_and_a_system_topic_stays(world: World) -> None:
    world.ok(R.DELETE_TOPIC_IN_BROKER, topic="orders")
    assert "system topic" in world.refusal(R.DELETE_TOPIC_IN_BROKER, topic="SCHEDULE_TOPIC_XXXX")[1]
    assert world.topics.get("SCHEDULE_TOPIC_XXXX") is not None


def test_groups_of_a_topic_are_those_online_and_those_with_offsets(world: World) -> None:
    world.online("live", "c1", "orders")
    world.offsets.commit("gone", "orders", 0, 1)
    world.offsets.commit("live", "orders", 0, 1)
    world.offsets.commit("other", "refunds", 0, 1)
    assert world.json(R.QUERY_TOPIC_CONSUME_BY_WHO, topic="orders") == {"groupList": ["gone", "live"]}
    assert world.ok(R.QUERY_TOPIC_CONSUME_BY_WHO, topic="none").body == b'{"groupList":[]}'


def test_system_topics_include_those_named_after_cluster_and_broker(world: World) -> None:
    listed = world.json(R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["topicList"]
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "b1"} <= set(listed)


def test_cleaning_unused_topics_spares_the_brokers_own(world: World) -> None:
    world.topic("orders")
    for name in ("orders", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "%LMQ%device", "left-over"):
        world.put(name)
    world.ok(R.CLEAN_UNUSED_TOPIC)
    assert set(world.store.topics()) == {"orders", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "%LMQ%device"}
