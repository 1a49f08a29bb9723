"""Route parsing, the route cache and the choice of the next queue."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.routes import (
    BrokerData,
    QueueData,
    RoundRobin,
    RouteCache,
    TopicRoute,
    parse_cluster_map,
    parse_route,
)
from orbitmq.wire.errors import BadBody
from orbitmq.wire.fastjson import MessageQueue

FASTJSON_ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:11911"},"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
    b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":2}]}'
)
STRICT_ROUTE = FASTJSON_ROUTE.replace(b'{0:"', b'{"0":"').replace(b',1:"', b',"1":"')


def route_of(*queues: QueueData, order_conf: str = "") -> TopicRoute:
    brokers = {data.broker: BrokerData(data.broker, "c", {0: f"{data.broker}:10911"}) for data in queues}
    return TopicRoute("T", queues, brokers, order_conf)


@pytest.mark.parametrize("body", [FASTJSON_ROUTE, STRICT_ROUTE])
def test_both_forms_of_a_route_are_read_alike(body: bytes) -> None:
    route = parse_route("T", body)
    assert route.queues == (QueueData("broker-a", 4, 2, 6),)
    assert route.brokers["broker-a"] == BrokerData(
        "broker-a", "DefaultCluster", {0: "127.0.0.1:10911", 1: "127.0.0.1:11911"}
    )
    assert route.masters() == {"broker-a": "127.0.0.1:10911"}
    assert route.publish_queues() == (MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1))
    assert len(route.read_queues()) == 4


def test_read_only_and_write_only_brokers_are_left_out_where_they_do_not_serve() -> None:
    route = route_of(QueueData("b", 2, 2, 4), QueueData("a", 2, 2, 2))
    assert {queue.broker_name for queue in route.publish_queues()} == {"a"}
    assert {queue.broker_name for queue in route.read_queues()} == {"b"}


def test_a_broker_without_master_takes_no_messages_but_gives_them() -> None:
    slave_only = BrokerData("a", "c", {1: "10.0.0.1:10911"})
    route = TopicRoute("T", (QueueData("a", 1, 1, 6),), {"a": slave_only})
    assert route.publish_queues() == ()
    assert route.read_queues() == (MessageQueue("T", "a", 0),)
    assert slave_only.readable_addr == "10.0.0.1:10911"
    assert route.lacks_a_master
    whole = BrokerData("a", "c", {0: "10.0.0.2:10911", 1: "10.0.0.1:10911"})
    assert not TopicRoute("T", route.queues, {"a": whole, "b": slave_only}).lacks_a_master


def test_order_configuration_decides_the_queues_to_publish_to() -> None:
    route = route_of(QueueData("a", 8, 8, 6), order_conf="a:2;b:1;broken")
    assert route.publish_queues() == (
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
        MessageQueue("T", "b", 0),
    )


def test_a_template_gives_at_most_four_queues_and_drops_the_inherit_bit() -> None:
    template = route_of(QueueData("a", 8, 8, 7)).as_template_for("Fresh")
    assert template.queues == (QueueData("a", 4, 4, 6),)
    assert {queue.topic for queue in template.publish_queues()} == {"Fresh"}


def test_cluster_information_is_read() -> None:
    body = (
        b'{"brokerAddrTable":{"broker-b":{"brokerAddrs":{0:"h:2"},"brokerName":"broker-b","cluster":"C"},'
        b'"broker-a":{"brokerAddrs":{0:"h:1",1:"h:3"},"brokerName":"broker-a","cluster":"C"}},'
        b'"clusterAddrTable":{"C":["broker-b","broker-a"]}}'
    )
    known = parse_cluster_map(body)
    assert known.clusters == {"C": ("broker-a", "broker-b")}
    assert [broker.master for broker in known.of_cluster("C")] == ["h:1", "h:2"]
    assert known.of_cluster(None) == known.of_cluster("C")
    assert known.of_cluster("other") == ()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"nonsense", b'{"queueDatas":[{"perm":6}]}', b'{"queueDatas":[3]}']
)
def test_a_body_that_is_no_route_is_refused_with_a_reason(body: bytes) -> None:
    with pytest.raises(BadBody, match="route of topic T"):
        parse_route("T", body)


def test_the_cache_forgets_by_age_and_remembers_for_hard_times() -> None:
    cache = RouteCache(max_age_ms=100)
    route = route_of(QueueData("a", 1, 1, 6))
    assert cache.put(route, now_ms=1000)
    assert not cache.put(route, now_ms=1010)
    assert cache.fresh("T", now_ms=1109) is route
    assert cache.fresh("T", now_ms=1110) is None
    assert cache.stale("T") is route
    cache.forget("T")
    assert cache.stale("T") is None


QUEUES = [MessageQueue("T", broker, queue_id) for broker in ("a", "b", "c") for queue_id in range(3)]


@given(seed=st.integers(0, 1000), rounds=st.integers(1, 4))
def test_every_queue_gets_its_turn(seed: int, rounds: int) -> None:
    turn = RoundRobin(Random(seed))
    chosen = [turn.choose(QUEUES) for _ in range(len(QUEUES) * rounds)]
    assert {queue: chosen.count(queue) for queue in QUEUES} == dict.fromkeys(QUEUES, rounds)


@given(seed=st.integers(0, 1000), avoid=st.sets(st.sampled_from("abc")))
def test_failed_brokers_are_avoided_while_others_are_left(seed: int, avoid: set[str]) -> None:
    turn = RoundRobin(Random(seed))
    chosen = {turn.choose(QUEUES, avoid).broker_name for _ in range(20)}
    assert chosen == (set("abc") - avoid if avoid != set("abc") else set("abc"))
