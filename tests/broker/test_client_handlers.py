from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from orbitmq.broker.client_handlers import HANDLERS, connection_lost, expire
from orbitmq.broker.clients import ClientManager
from orbitmq.broker.groups import GroupConfig, GroupTable
from orbitmq.broker.locks import QueueLocks
from orbitmq.broker.offsets import OffsetTable
from orbitmq.broker.topics import TopicConfig, TopicTable
from orbitmq.config import BrokerConfig, Mismatch
from orbitmq.net.errors import RequestError
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.errors import BadBody, BadHeader
from orbitmq.wire.fastjson import MessageQueue
from tests.broker.fakes import FakeChannel, beat, consumer, subscribe

NOW = 1_700_000_000_000


class FakeQueue:
    def __init__(self, min_offset: int, first_position: int | None) -> None:
        self.min_offset = min_offset
        self._first_position = first_position

    def unit(self, offset: int, /) -> tuple[int, int, int] | None:
        return None if self._first_position is None else (self._first_position, 100, 0)


class FakeStore:
    """A store whose log ends at 1000 and keeps the last 500 bytes in memory."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], FakeQueue] = {}

    def find_queue(self, topic: str, queue_id: int, /) -> FakeQueue | None:
        return self.queues.get((topic, queue_id))

    def in_memory(self, position: int, /) -> bool:
        return 1000 - position <= 500


class FakeBroker:
    def __init__(self) -> None:
        self.config = BrokerConfig()
        self.config.broker_name = "broker-a"
        self.store = FakeStore()
        self.topics = TopicTable(self.config)
        self.groups = GroupTable(self.config)
        self.offsets = OffsetTable()
        self.clients = ClientManager()
        self.locks = QueueLocks()
        self.now_ms = NOW
        self.clock: Callable[[], int] = lambda: self.now_ms
        self.liveness = self.clock
        self.registered: list[str | None] = []

    def register_soon(self, topic: str | None = None, /) -> None:
        self.registered.append(topic)

    def check_filter(self, subscription: bodies.SubscriptionData, /) -> None:
        if "bad" in subscription.sub_string:
            raise ValueError("unexpected word 'bad' at character 0")

    def ask(
        self, conn: FakeChannel, code: RequestCode, body: bodies.Body | bytes = b"", /, **ext: str
    ) -> Command:
        data = body if isinstance(body, bytes) else bodies.encode(body)
        return HANDLERS[code](self, conn, request(code, ext, data))

    def beat(self, conn: FakeChannel, client_id: str, *consumers: bodies.ConsumerData) -> Command:
        return self.ask(conn, RequestCode.HEART_BEAT, beat(client_id, *consumers))


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def notified(conn: FakeChannel) -> list[str]:
    assert all(c.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and c.is_oneway for c in conn.sent)
    return [command.ext["consumerGroup"] for command in conn.sent]


def test_the_first_heartbeat_makes_group_and_retry_topic_and_registers_it(broker: FakeBroker) -> None:
    assert broker.beat(FakeChannel(), "c1", consumer("billing", subscribe("orders"))).code == 0
    assert broker.groups.get("billing") is not None
    assert broker.topics.get("%RETRY%billing") is not None
    broker.beat(FakeChannel(), "c2", consumer("billing", subscribe("orders")))
    assert broker.registered == ["%RETRY%billing"]


def test_a_heartbeat_of_an_unknown_group_is_taken_without_auto_creation(broker: FakeBroker) -> None:
    broker.config.auto_create_subscription_group = False
    broker.beat(FakeChannel(), "c1", consumer("billing", subscribe("orders")))
    assert broker.groups.get("billing") is None
    assert broker.topics.get("%RETRY%billing") is None
    assert broker.clients.consumer_ids("billing") == ["c1"]


def test_members_hear_of_joins_and_leaves(broker: FakeBroker) -> None:
    one, two = FakeChannel(), FakeChannel()
    broker.beat(one, "c1", consumer("billing", subscribe("orders")))
    one.sent.clear()
    broker.beat(two, "c2", consumer("billing", subscribe("orders")))
    assert notified(one) == ["billing"]
    broker.beat(two, "c2", consumer("billing", subscribe("orders")))
    assert notified(one) == ["billing"]
    two.closed = True
    connection_lost(broker, two)
    assert notified(one) == ["billing", "billing"]


def test_notifications_can_be_switched_off_per_group_and_broker(broker: FakeBroker) -> None:
    conn = FakeChannel()
    broker.groups.put(GroupConfig("quiet", notify_consumer_ids_changed_enable=False), NOW)
    broker.beat(conn, "c1", consumer("quiet", subscribe("orders")))
    broker.config.notify_consumer_ids_changed_enable = False
    broker.beat(conn, "c1", consumer("billing", subscribe("orders")))
    assert conn.sent == []


def test_a_heartbeat_as_go_clients_write_it(broker: FakeBroker) -> None:
    body = (
        b'{"clientID":"10.0.0.1@1","producerDataSet":[{"groupName":"web"}],"consumerDataSet":[{"groupName":"g",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_'
        b'OFFSET","subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"TagA","tagsSet":'
        b'["TagA"],"codeSet":["2598919"],"subVersion":1700000000000000000,"expressionType":"TAG"}],'
        b'"unitMode":false}]}'
    )
    broker.ask(FakeChannel(), RequestCode.HEART_BEAT, body)
    found = broker.clients.subscription("g", "T")
    assert found is not None
    assert found.code_set == {2598919}


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"clientID":3,"consumerDataSet":{}}'])
def test_a_broken_heartbeat_is_refused(broker: FakeBroker, body: bytes) -> None:
    with pytest.raises(BadBody):
        broker.ask(FakeChannel(), RequestCode.HEART_BEAT, body)


def test_a_heartbeat_without_an_identity_is_refused(broker: FakeBroker) -> None:
    with pytest.raises(RequestError, match="clientID"):
        broker.ask(FakeChannel(), RequestCode.HEART_BEAT, b"{}")


def test_different_subscriptions_are_warned_about_once(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = FakeChannel(), FakeChannel()
    with caplog.at_level(logging.WARNING, "orbitmq.broker"):
        broker.beat(one, "c1", consumer("billing", subscribe("orders", "A")))
        for _ in range(3):
            broker.beat(two, "c2", consumer("billing", subscribe("orders", "B")))
    (record,) = caplog.records
    assert "billing" in record.message
    assert "client c2 subscribes with 'B' to topic orders where the group uses 'A'" in record.message


def test_different_subscriptions_are_refused_by_config(broker: FakeBroker) -> None:
    broker.config.subscription_mismatch = Mismatch.REFUSE
    broker.beat(FakeChannel(), "c1", consumer("billing", subscribe("orders", "A")))
    with pytest.raises(RequestError, match="SUBSCRIPTION_MISMATCH.*client c2") as refused:
        broker.beat(FakeChannel(), "c2", consumer("billing", subscribe("orders", "B")))
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert broker.clients.consumer_ids("billing") == ["c1"]


def test_many_mismatches_are_told_in_few_words(broker: FakeBroker) -> None:
    broker.config.subscription_mismatch = Mismatch.REFUSE
    broker.beat(FakeChannel(), "c1", consumer("billing", subscribe("orders")))
    many = [subscribe(f"t{n}") for n in range(20)]
    with pytest.raises(RequestError, match="and 16 more"):
        broker.beat(FakeChannel(), "c2", consumer("billing", *many))


def test_unregistering_frees_the_locks_and_tells_the_others(broker: FakeBroker) -> None:
    one, two = FakeChannel(), FakeChannel()
    queue = MessageQueue("orders", "broker-a", 0)
    broker.beat(one, "c1", consumer("billing", subscribe("orders")))
    broker.beat(two, "c2", consumer("billing", subscribe("orders")))
    broker.locks.lock("billing", "c1", [queue], NOW)
    two.sent.clear()
    broker.ask(one, RequestCode.UNREGISTER_CLIENT, clientID="c1", consumerGroup="billing")
    assert broker.locks.owner("billing", queue, NOW) is None
    assert notified(two) == ["billing"]


def test_silent_clients_are_closed_and_the_others_told(broker: FakeBroker) -> None:
    silent, alive = FakeChannel(), FakeChannel()
    for conn, client_id in ((silent, "c1"), (alive, "c2")):
        broker.beat(conn, client_id, consumer("billing", subscribe("orders")))
    broker.now_ms = NOW + 100_000
    broker.beat(alive, "c2", consumer("billing", subscribe("orders")))
    alive.sent.clear()
    expire(broker, NOW + 120_001)
    assert silent.closed
    assert not alive.closed
    assert notified(alive) == ["billing"]


def test_members_find_each_other(broker: FakeBroker) -> None:
    for client_id in ("c1", "c2"):
        broker.beat(FakeChannel(), client_id, consumer("billing", subscribe("orders")))
    reply = broker.ask(FakeChannel(), RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="billing")
    assert reply.body == b'{"consumerIdList":["c1","c2"]}'
    with pytest.raises(RequestError, match="no consumer for this group, nobody"):
        broker.ask(FakeChannel(), RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="nobody")


@pytest.mark.parametrize(
    ("queue", "offset"),
    [
        (None, "0"),
        (FakeQueue(0, None), "0"),
        (FakeQueue(0, 900), "0"),
        (FakeQueue(0, 100), None),
        (FakeQueue(7, 900), None),
    ],
)
def test_where_a_new_group_starts(broker: FakeBroker, queue: FakeQueue | None, offset: str | None) -> None:
    if queue is not None:
        broker.store.queues["orders", 0] = queue
    ext = {"consumerGroup": "billing", "topic": "orders", "queueId": "0"}
    if offset is None:
        with pytest.raises(RequestError, match="Not found") as missing:
            broker.ask(FakeChannel(), RequestCode.QUERY_CONSUMER_OFFSET, **ext)
        assert missing.value.code == ResponseCode.QUERY_NOT_FOUND
    else:
        assert broker.ask(FakeChannel(), RequestCode.QUERY_CONSUMER_OFFSET, **ext).ext == {"offset": offset}


def test_a_client_may_ask_for_committed_offsets_only(broker: FakeBroker) -> None:
    ext = {"consumerGroup": "g", "topic": "t", "queueId": "0", "setZeroIfNotFound": "false"}
    with pytest.raises(RequestError, match="Not found"):
        broker.ask(FakeChannel(), RequestCode.QUERY_CONSUMER_OFFSET, **ext)
    broker.offsets.commit("g", "t", 0, 4)
    assert broker.ask(FakeChannel(), RequestCode.QUERY_CONSUMER_OFFSET, **ext).ext == {"offset": "4"}


def test_commits_are_kept(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.topics.put(TopicConfig("orders"), NOW)
    ext = {"consumerGroup": "billing", "topic": "orders", "queueId": "1"}
    broker.ask(FakeChannel(), RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="9", **ext)
    assert broker.offsets.query("billing", "orders", 1) == 9
    broker.ask(FakeChannel(), RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="3", **ext)
    assert broker.offsets.query("billing", "orders", 1) == 3
    assert "backwards" in caplog.text


@pytest.mark.parametrize(
    ("topic", "queue_id", "offset", "code"),
    [("unknown", "0", "1", 17), ("orders", "0", "-1", 1), ("orders", "-1", "1", 1)],
)
def test_impossible_commits_are_refused(
    broker: FakeBroker, topic: str, queue_id: str, offset: str, code: int
) -> None:
    broker.topics.put(TopicConfig("orders"), NOW)
    ext = {"consumerGroup": "billing", "topic": topic, "queueId": queue_id, "commitOffset": offset}
    with pytest.raises(RequestError) as refused:
        broker.ask(FakeChannel(), RequestCode.UPDATE_CONSUMER_OFFSET, **ext)
    assert refused.value.code == code
    assert broker.offsets.table == {}


def test_a_missing_field_is_named(broker: FakeBroker) -> None:
    with pytest.raises(BadHeader, match="commitOffset of UPDATE_CONSUMER_OFFSET is missing"):
        broker.ask(
            FakeChannel(), RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId="0"
        )


def test_queues_are_locked_and_unlocked(broker: FakeBroker) -> None:
    body = (
        b'{"clientId":"%b","consumerGroup":"billing",'
        b'"mqSet":[{"brokerName":"broker-a","queueId":0,"topic":"orders"}]}'
    )
    conn = FakeChannel()
    taken = broker.ask(conn, RequestCode.LOCK_BATCH_MQ, body % b"c1")
    assert taken.body == b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":0,"topic":"orders"}]}'
    assert broker.ask(conn, RequestCode.LOCK_BATCH_MQ, body % b"c2").body == b'{"lockOKMQSet":[]}'
    broker.ask(conn, RequestCode.UNLOCK_BATCH_MQ, body % b"c2")
    assert broker.ask(conn, RequestCode.LOCK_BATCH_MQ, body % b"c2").body == b'{"lockOKMQSet":[]}'
    broker.ask(conn, RequestCode.UNLOCK_BATCH_MQ, body % b"c1")
    assert broker.ask(conn, RequestCode.LOCK_BATCH_MQ, body % b"c2").body != b'{"lockOKMQSet":[]}'


def check_config(broker: FakeBroker, expression: str, kind: str) -> Command:
    body = bodies.CheckClientBody(
        client_id="c1", group="g", subscription_data=subscribe("t", expression, 1, kind)
    )
    return broker.ask(FakeChannel(), RequestCode.CHECK_CLIENT_CONFIG, body)


def test_what_a_broker_can_filter_by(broker: FakeBroker) -> None:
    assert check_config(broker, "A", "TAG").code == 0
    with pytest.raises(RequestError, match="enablePropertyFilter") as off:
        check_config(broker, "a > 1", "SQL92")
    assert off.value.code == ResponseCode.SYSTEM_ERROR
    broker.config.enable_property_filter = True
    assert check_config(broker, "a > 1", "SQL92").code == 0
    with pytest.raises(RequestError, match="unexpected word") as bad:
        check_config(broker, "bad", "SQL92")
    assert bad.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
