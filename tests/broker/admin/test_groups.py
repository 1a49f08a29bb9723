from __future__ import annotations

import json

import pytest

from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode as R
from orbitmq.wire.codes import ResponseCode
from tests.broker.admin.world import T0, World
from tests.broker.fakes import FakeChannel, beat

JAVA_GROUP = (
    b'{"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,"consumeFromMinEnable":true,'
    b'"groupName":"billing","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":5,"retryQueueNums":2,'
    b'"whichBrokerWhenConsumeSlowly":1}'
)


def test_a_group_is_stored_as_the_tool_sent_it(world: World) -> None:
    world.ok(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, JAVA_GROUP)
    group = world.groups.get("billing")
    assert group is not None
    assert (group.retry_max_times, group.retry_queue_nums, group.consume_broadcast_enable) == (5, 2, False)
    assert b'"billing":' + JAVA_GROUP in world.ok(R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body
    assert world.ok(R.GET_SUBSCRIPTIONGROUP_CONFIG, group="billing").body == JAVA_GROUP


def test_what_a_newer_tool_says_about_a_group_is_kept(world: World) -> None:
    body = b'{"groupName":"billing","consumeMessageOrderly":true,"retryMaxTimes":"7"}'
    world.ok(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
    told = world.json(R.GET_SUBSCRIPTIONGROUP_CONFIG, group="billing")
    assert told["consumeMessageOrderly"] is True
    assert told["retryMaxTimes"] == 7


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b'{"groupName":"bad group"}', "illegal characters"),
        (b'{"retryMaxTimes":3}', "groupName"),
        (b'{"groupName":"g","retryMaxTimes":"many"}', "retryMaxTimes"),
        (b'{"groupName":"g","retryQueueNums":100000}', "retryQueueNums"),
        (b"[1]", "object"),
    ],
)
def test_a_wrong_group_is_refused(world: World, body: bytes, part: str) -> None:
    before = world.groups.to_json()
    code, remark = world.refusal(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
    assert code == ResponseCode.SYSTEM_ERROR
    assert part in remark
    assert world.groups.to_json() == before


def test_a_list_of_groups_is_taken_whole_or_not_at_all(world: World) -> None:
    body = json.dumps({"groupConfigList": [{"groupName": "a"}, {"groupName": "b"}]}).encode()
    world.ok(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)
    assert world.groups.get("b") is not None
    body = json.dumps({"groupConfigList": [{"groupName": "c"}, {"groupName": "no way"}]}).encode()
    world.refusal(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)
    assert world.groups.get("c") is None
    assert "groupConfigList" in world.refusal(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, b"{}")[1]


@pytest.mark.parametrize(("field", "left"), [("removeOffset", -1), ("cleanOffset", -1), ("other", 9)])
def test_a_deleted_group_loses_its_offsets_only_if_asked(world: World, field: str, left: int) -> None:
    world.ok(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, JAVA_GROUP)
    world.offsets.commit("billing", "orders", 0, 9)
    world.ok(R.DELETE_SUBSCRIPTIONGROUP, groupName="billing", **{field: True})
    assert world.groups.get("billing") is None
    assert world.offsets.query("billing", "orders", 0) == left
    code, remark = world.refusal(R.GET_SUBSCRIPTIONGROUP_CONFIG, group="billing")
    assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "billing" in remark


def test_consumers_online_are_listed_with_what_they_subscribe_to(world: World) -> None:
    peer = world.online("billing", "c1", "orders", tags="TagA")
    told = world.json(R.GET_CONSUMER_CONNECTION_LIST, consumerGroup="billing")
    assert told["connectionSet"] == [
        {"clientAddr": peer.peer, "clientId": "c1", "language": "JAVA", "version": 407}
    ]
    assert (told["messageModel"], told["consumeType"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
    assert told["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert told["subscriptionTable"]["orders"]["subString"] == "TagA"
    assert "mismatches" not in told


def test_members_that_subscribe_differently_are_named(world: World) -> None:
    world.online("billing", "c1", "orders", tags="TagA")
    world.online("billing", "c22", "orders", tags="TagB")
    told = world.json(R.GET_CONSUMER_CONNECTION_LIST, consumerGroup="billing")
    (mismatch,) = told["mismatches"]
    assert (mismatch["clientId"], mismatch["topic"]) == ("c22", "orders")
    assert (mismatch["theirs"], mismatch["groups"]) == ("TagB", "TagA")
    assert "c22" in mismatch["text"]


def test_a_group_that_is_offline_is_called_not_online(world: World) -> None:
    code, remark = world.refusal(R.GET_CONSUMER_CONNECTION_LIST, consumerGroup="billing")
    assert code == ResponseCode.CONSUMER_NOT_ONLINE
    assert "not online" in remark


def test_producers_are_listed_by_group_and_all_together(world: World) -> None:
    conn = FakeChannel("10.0.0.5:4000")
    world.clients.heartbeat(conn, beat("p1", producers=("shop",)), "KLINGON", 317, T0)
    told = world.json(R.GET_PRODUCER_CONNECTION_LIST, producerGroup="shop")
    row = {"clientAddr": "10.0.0.5:4000", "clientId": "p1", "language": "OTHER", "version": 317}
    assert told == {"connectionSet": [row]}
    assert world.ok(R.GET_ALL_PRODUCER_INFO).body == fastjson.dumps(
        {
            "data": {
                "shop": [
                    {
                        "clientId": "p1",
                        "language": "OTHER",
                        "lastUpdateTimestamp": T0,
                        "remoteIP": "/10.0.0.5:4000",
                        "version": 317,
                    }
                ]
            }
        }
    )
    code, remark = world.refusal(R.GET_PRODUCER_CONNECTION_LIST, producerGroup="none")
    assert code == ResponseCode.SYSTEM_ERROR
    assert "not exist" in remark


def test_topics_and_subscription_of_a_group(world: World) -> None:
    world.offsets.commit("billing", "refunds", 0, 1)
    world.offsets.commit("billing", "orders", 0, 1)
    world.online("billing", "c1", "orders", tags="A")
    assert world.json(R.QUERY_TOPICS_BY_CONSUMER, group="billing") == {"topicList": ["orders", "refunds"]}
    told = world.json(R.QUERY_SUBSCRIPTION_BY_CONSUMER, group="billing", topic="orders")
    assert (told["topic"], told["subscriptionData"]["subString"]) == ("orders", "A")
    assert world.json(R.QUERY_SUBSCRIPTION_BY_CONSUMER, group="billing") == {"group": "billing"}
