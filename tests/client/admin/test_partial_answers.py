"""What is said when some brokers do not answer, or have nothing to tell: unknown, never zero."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from orbitmq.client import admin
from orbitmq.client.admin import topics
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound, Refused, Unreachable
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.fastjson import MessageQueue
from tests.support.fake_servers import FakeCluster, fake_cluster, reply

TOPICS = ("TopicA", "%RETRY%billing")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "ROUTE_WAIT_S", 0.1)


def run(work: Callable[[Cluster, FakeCluster], Awaitable[None]], *brokers: dict[int, Any]) -> None:
    async def scenario() -> None:
        async with (
            fake_cluster(*brokers, topics=TOPICS) as fake,
            Cluster(fake.namesrv.addr, timeout_s=1) as cluster,
        ):
            await work(cluster, fake)

    asyncio.run(scenario())


def stats(broker: str, table: dict[int, tuple[int, int]]) -> Any:
    offsets = {
        MessageQueue("TopicA", broker, queue_id): {
            "brokerOffset": high,
            "consumerOffset": at,
            "lastTimestamp": 0,
        }
        for queue_id, (high, at) in table.items()
    }
    return reply(body=fastjson.dumps({"consumeTps": 1.5, "offsetTable": offsets}))


def test_lag_is_the_sum_over_all_brokers() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        progress = await admin.group_progress(cluster, "billing")
        assert (progress.lag, progress.lag_unknown, progress.consume_tps) == (7, None, 3.0)
        assert [(item.broker, item.queue_id, item.lag) for item in progress.queues] == [
            ("broker-a", 0, 4),
            ("broker-a", 1, 0),
            ("broker-b", 0, 3),
        ]

    run(
        work,
        {RequestCode.GET_CONSUME_STATS: stats("broker-a", {0: (10, 6), 1: (5, 5)})},
        {RequestCode.GET_CONSUME_STATS: stats("broker-b", {0: (3, 0)})},
    )


def test_lag_is_unknown_while_a_broker_is_silent() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        await fake.brokers["broker-b"].stop()
        progress = await admin.group_progress(cluster, "billing")
        assert progress.lag is None
        assert progress.lag_unknown == "no answer from broker-b"
        assert [item.broker for item in progress.missing] == ["broker-b"]
        assert len(progress.queues) == 1

    run(work, {RequestCode.GET_CONSUME_STATS: stats("broker-a", {0: (10, 6)})}, {})


def test_lag_is_unknown_without_an_offset() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        progress = await admin.group_progress(cluster, "billing")
        assert (progress.lag, progress.queues[0].lag, progress.queues[0].consumer_offset) == (
            None,
            None,
            None,
        )

    run(work, {RequestCode.GET_CONSUME_STATS: stats("broker-a", {0: (10, -1)})})


def test_lag_of_a_broadcasting_group_is_unknown_and_says_why() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        progress = await admin.group_progress(cluster, "billing")
        assert progress.lag is None
        assert "broadcasting" in (progress.lag_unknown or "")

    connection = {"connectionSet": [], "messageModel": "BROADCASTING", "subscriptionTable": {}}
    run(
        work,
        {
            RequestCode.GET_CONSUME_STATS: stats("broker-a", {}),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: reply(body=fastjson.dumps(connection)),
        },
    )


def test_no_answer_at_all_is_an_error_not_an_empty_result() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        await fake.brokers["broker-a"].stop()
        with pytest.raises(Unreachable):
            await admin.group_progress(cluster, "billing")
        with pytest.raises(Unreachable):
            await admin.topic_status(cluster, "TopicA")

    run(work, {})


def test_members_of_all_brokers_are_one_list() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        found = await admin.group_connections(cluster, "billing")
        assert [item.client_id for item in found.connections] == ["c1", "c2"]
        assert found.subscriptions == {"TopicA": "TagA"}
        assert found.message_model == "CLUSTERING"

    def online(*clients: str) -> Any:
        members = [{"clientId": c, "clientAddr": "h:1", "language": "JAVA", "version": 407} for c in clients]
        table = {"TopicA": {"topic": "TopicA", "subString": "TagA"}}
        body = {"connectionSet": members, "messageModel": "CLUSTERING", "subscriptionTable": table}
        return reply(body=fastjson.dumps(body))

    run(
        work,
        {RequestCode.GET_CONSUMER_CONNECTION_LIST: online("c1", "c2")},
        {RequestCode.GET_CONSUMER_CONNECTION_LIST: online("c2")},
    )


def test_a_change_that_some_refuse_names_those_that_took_it() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        with pytest.raises(Refused) as caught:
            await admin.create_topic(cluster, "Fresh")
        assert "broker-b: " in str(caught.value)
        assert "the change was made on broker-a" in str(caught.value)
        assert caught.value.code == ResponseCode.SYSTEM_ERROR

    run(
        work,
        {RequestCode.UPDATE_AND_CREATE_TOPIC: reply()},
        {RequestCode.UPDATE_AND_CREATE_TOPIC: reply(ResponseCode.SYSTEM_ERROR, remark="disk full")},
    )


def test_a_change_of_permission_keeps_the_other_settings() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        await admin.update_topic(cluster, "TopicA", perm=4)
        (sent,) = fake.brokers["broker-a"].requests(RequestCode.UPDATE_AND_CREATE_TOPIC)
        assert sent.ext == {
            "topic": "TopicA",
            "defaultTopic": "TBW102",
            "readQueueNums": "5",
            "writeQueueNums": "3",
            "perm": "4",
            "topicFilterType": "MULTI_TAG",
            "topicSysFlag": "1",
            "order": "true",
        }

    config = {
        "order": True,
        "perm": 6,
        "readQueueNums": 5,
        "writeQueueNums": 3,
        "topicFilterType": "MULTI_TAG",
        "topicName": "TopicA",
        "topicSysFlag": 1,
    }
    table = fastjson.dumps({"dataVersion": {}, "topicConfigTable": {"TopicA": config}})
    run(
        work,
        {RequestCode.GET_ALL_TOPIC_CONFIG: reply(body=table), RequestCode.UPDATE_AND_CREATE_TOPIC: reply()},
    )


def test_a_change_that_the_route_never_shows_is_waited_for_a_short_time_only() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        assert await admin.create_topic(cluster, "NeverSeen") == fake.addrs
        asked = [sent.ext["topic"] for sent in fake.namesrv.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)]
        assert asked.count("NeverSeen") > 1

    run(work, {RequestCode.UPDATE_AND_CREATE_TOPIC: reply()})


def test_figures_a_broker_did_not_tell_are_none_with_the_reason() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        await fake.brokers["broker-b"].stop()
        good, silent = await admin.broker_statuses(cluster)
        assert (good.in_tps, good.out_tps, good.stored_today, good.problem) == (12.5, None, 5, None)
        assert good.earliest_message_ms is None
        assert silent.in_tps is None
        assert "could not connect" in (silent.problem or "")

    figures = {
        "putTps": "12.5 3.0 ",
        "msgPutTotalTodayNow": "7",
        "msgPutTotalTodayMorning": "2",
        "earliestMessageTimeStamp": "-1",
    }
    run(work, {RequestCode.GET_BROKER_RUNTIME_INFO: reply(body=fastjson.dumps({"table": figures}))}, {})


def test_an_unknown_group_is_told_before_anything_is_moved() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        with pytest.raises(NotFound, match="no broker knows a group 'other'"):
            await admin.plan_reset(cluster, "other", "TopicA", 0)
        with pytest.raises(NotFound):
            await admin.delete_group(cluster, "other")

    table = fastjson.dumps({"subscriptionGroupTable": {"billing": {}}})
    run(work, {RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: reply(body=table)})


def test_a_reset_of_a_running_group_reports_what_the_broker_did() -> None:
    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        plan = await admin.plan_reset(cluster, "billing", "TopicA", 1_700_000_000_000)
        assert plan.online_members == 1
        assert plan.queues[0] == admin.QueueReset(
            broker="broker-a", queue_id=0, from_offset=6, to_offset=2, skipped=0, repeated=4
        )
        done = await admin.apply_reset(cluster, plan)
        assert done.applied
        assert [step.to_offset for step in done.queues][:2] == [3, 8]
        (asked,) = fake.brokers["broker-a"].requests(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
        assert (asked.ext["timestamp"], asked.ext["isForce"]) == ("1700000000000", "true")
        assert not fake.brokers["broker-a"].requests(RequestCode.UPDATE_CONSUMER_OFFSET)

    online = {"connectionSet": [{"clientId": "c1", "clientAddr": "h:1", "language": "JAVA", "version": 1}]}
    moved = {MessageQueue("TopicA", "broker-a", 0): 3, MessageQueue("TopicA", "broker-a", 1): 8}
    run(
        work,
        {
            RequestCode.GET_CONSUME_STATS: stats("broker-a", {0: (10, 6), 1: (10, 8)}),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: reply(body=fastjson.dumps(online)),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: reply(ext={"offset": "2"}),
            RequestCode.PULL_MESSAGE: reply(
                ResponseCode.PULL_NOT_FOUND, ext={"nextBeginOffset": "2", "minOffset": "0", "maxOffset": "2"}
            ),
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reply(body=fastjson.dumps({"offsetTable": moved})),
        },
    )


def test_a_key_query_is_checked_against_hash_clashes() -> None:
    from orbitmq.wire.message import encode_record
    from orbitmq.wire.properties import encode_properties

    def record(topic: str, keys: str, body: bytes) -> bytes:
        return encode_record(topic=topic, body=body, properties=encode_properties({"KEYS": keys}), store_ms=1)

    body = (
        record("TopicA", "k1 k2", b"mine")
        + record("Other", "k2", b"foreign")
        + record("TopicA", "k9", b"clash")
    )

    async def work(cluster: Cluster, fake: FakeCluster) -> None:
        found = await admin.messages_by_key(cluster, "TopicA", "k2")
        assert [message.body for message in found] == [b"mine"]

    run(work, {RequestCode.QUERY_MESSAGE: reply(body=body)})
