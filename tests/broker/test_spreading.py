"""A topic made by a first send is on every master of the cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orbitmq.broker.spreading import MAX_TOLD_AT_ONCE, masters_beside
from orbitmq.client.client import connect
from orbitmq.wire import fastjson
from orbitmq.wire.codes import OrbitCode, RequestCode, ResponseCode
from orbitmq.wire.errors import WireError
from tests.support.raw_client import RawClient, send_ext
from tests.support.small_cluster import SmallCluster


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"not within 10 s: {what}"
        time.sleep(0.01)


def send_one(addr: str, topic: str) -> None:
    async def work() -> None:
        async with RawClient(addr) as client:
            await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext(topic, 0), b"first")

    asyncio.run(work())


def has(cluster: SmallCluster, broker: str, topic: str) -> bool:
    return cluster.call(lambda: cluster.brokers[broker].topics.get(topic) is not None)


def test_one_message_makes_the_topic_on_every_master_and_on_no_other(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, ["broker-a", "broker-b", "broker-b.1"], namesrvs=2) as cluster:
        cluster.add("broker-c", autoCreateTopicEnable="false")
        cluster.add("broker-d", brokerClusterName="Elsewhere")
        send_one(cluster.address("broker-a"), "New")
        eventually(lambda: has(cluster, "broker-b", "New"), "the other master has the topic")

        async def brokers_of() -> set[str]:
            async with connect(cluster.namesrv) as mq:
                return set((await mq.admin.route("New")).masters())

        eventually(lambda: asyncio.run(brokers_of()) == {"broker-a", "broker-b"}, "clients see both")
        made, here = (
            cluster.call(lambda name=name: cluster.brokers[name].topics.get("New"))  # type: ignore[misc]
            for name in ("broker-b", "broker-a")
        )
        assert made == here
        assert not has(cluster, "broker-c", "New")
        assert not has(cluster, "broker-d", "New")


def test_settings_that_are_there_stay_and_nonsense_is_refused(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, ["broker-a"]) as cluster:

        async def ask(body: bytes) -> tuple[int, str]:
            async with RawClient(cluster.address("broker-a")) as client:
                await client.create_topic("Mine", 3)
                answer = await client.ask(OrbitCode.SPREAD_TOPICS, {}, body)
                return answer.code, answer.ext.get("made", "")

        def topic(name: str) -> dict[str, object]:
            return {"topicName": name, "readQueueNums": 16, "writeQueueNums": 16, "perm": 6}

        def told(*topics: object) -> bytes:
            return fastjson.dumps({"topicConfigList": list(topics)})

        wanted = told(topic("Mine"), topic("Theirs"), topic("bad name"), topic("TBW102"))
        assert asyncio.run(ask(wanted)) == (ResponseCode.SUCCESS, "1")
        mine = cluster.call(lambda: cluster.brokers["broker-a"].topics.get("Mine"))
        assert mine is not None
        assert mine.write_queue_nums == 3
        assert has(cluster, "broker-a", "Theirs")
        for nonsense in (b"[]", b"{}", told("x"), told({"perm": 6}), told(*[{}] * (MAX_TOLD_AT_ONCE + 1))):
            assert asyncio.run(ask(nonsense))[0] == ResponseCode.SYSTEM_ERROR


def test_a_master_that_cannot_be_reached_holds_nobody_up(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, ["broker-a", "broker-b", "broker-c"]) as cluster:
        # It went away without a word, and the name server still has it.
        cluster.call(lambda: cluster.brokers["broker-b"]._listener.stop_accepting())
        send_one(cluster.address("broker-a"), "Soon")
        eventually(lambda: has(cluster, "broker-c", "Soon"), "the master that lives has the topic")


def test_who_else_is_master() -> None:
    info = fastjson.dumps(
        {
            "brokerAddrTable": {
                "a": {"brokerName": "a", "brokerAddrs": {0: "1:1", 1: "1:2"}},
                "b": {"brokerName": "b", "brokerAddrs": {0: "2:1"}},
                "c": {"brokerName": "c", "brokerAddrs": {1: "3:1"}},
                "d": {"brokerName": "d", "brokerAddrs": {0: "4:1"}},
            },
            "clusterAddrTable": {"one": ["a", "b", "c"], "two": ["d"]},
        }
    )
    assert masters_beside("one", "a", info) == {"b": "2:1"}
    assert masters_beside("one", "z", info) == {"a": "1:1", "b": "2:1"}
    assert masters_beside("three", "a", info) == masters_beside("one", "a", b"") == {}
    for nonsense in (b"[1]", b'{"clusterAddrTable":{"one":["x"]}}', b"{]"):
        with pytest.raises(WireError):
            masters_beside("one", "a", nonsense)
