from __future__ import annotations

import pytest

from orbitmq.net.errors import ConnectionClosed, RequestTimeout
from orbitmq.wire.codes import RequestCode as R
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.message import decode_record
from tests.broker.admin.world import World, mq

RUNNING = {"consumerGroup": "billing", "clientId": "c1", "jstackEnable": "true"}


def test_running_info_is_passed_on_word_for_word(world: World) -> None:
    peer = world.online("billing", "c1", "orders")
    peer.answer = Command(0, 1, 99, {"x": "y"}, b'{"mqTable":{}}', "fine")
    answer = world.ok(R.GET_CONSUMER_RUNNING_INFO, **RUNNING)
    assert (answer.body, answer.ext, answer.remark) == (b'{"mqTable":{}}', {"x": "y"}, "fine")
    (question,) = peer.sent
    assert (question.code, question.ext) == (R.GET_CONSUMER_RUNNING_INFO, RUNNING)


def test_a_clients_refusal_reaches_the_tool(world: World) -> None:
    world.online("billing", "c1", "orders").answer = Command(1, 1, remark="the consumer is stopping")
    assert world.refusal(R.GET_CONSUMER_RUNNING_INFO, **RUNNING) == (1, "the consumer is stopping")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestTimeout("no answer within 10 s"), ResponseCode.CONSUME_MSG_TIMEOUT),
        (ConnectionClosed("hung up"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_silent_client_is_named(world: World, error: Exception, code: int) -> None:
    world.online("billing", "c1", "orders").answer = error
    answer, remark = world.refusal(R.GET_CONSUMER_RUNNING_INFO, **RUNNING)
    assert answer == code
    assert "<billing> <c1>" in remark


def test_a_client_that_is_not_there_or_too_old_is_not_asked(world: World) -> None:
    assert "not online" in world.refusal(R.GET_CONSUMER_RUNNING_INFO, **RUNNING)[1]
    peer = world.online("billing", "c1", "orders", version=61)
    assert "too low" in world.refusal(R.GET_CONSUMER_RUNNING_INFO, **RUNNING)[1]
    assert peer.sent == []


def offset_id(world: World, position: int) -> str:
    return f"7F00000100002A9F{position:016X}"


def test_a_stored_message_is_handed_to_the_chosen_consumer(world: World) -> None:
    world.topic("orders")
    world.put("orders", body=b"first")
    stored = world.put("orders", body=b"second")
    peer = world.online("billing", "c1", "orders")
    peer.answer = Command(0, 1, body=b'{"consumeResult":"CR_SUCCESS"}')
    msg_id = offset_id(world, stored.position)
    answer = world.ok(R.CONSUME_MESSAGE_DIRECTLY, consumerGroup="billing", clientId="c1", msgId=msg_id)
    assert answer.body == b'{"consumeResult":"CR_SUCCESS"}'
    (question,) = peer.sent
    assert question.ext == {
        "consumerGroup": "billing",
        "clientId": "c1",
        "msgId": msg_id,
        "brokerName": "b1",
    }
    assert decode_record(question.body).body == b"second"


@pytest.mark.parametrize(
    ("msg_id", "part"), [("xyz", "not a message id"), ("7F00000100002A9F00000000000FFFFF", "can not find")]
)
def test_a_message_that_is_not_there_cannot_be_handed_over(world: World, msg_id: str, part: str) -> None:
    peer = world.online("billing", "c1", "orders")
    refused = world.refusal(R.CONSUME_MESSAGE_DIRECTLY, consumerGroup="billing", clientId="c1", msgId=msg_id)
    assert refused[0] == ResponseCode.SYSTEM_ERROR
    assert part in refused[1]
    assert peer.sent == []


STATUS = {"topic": "orders", "group": "billing"}
HELD = b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"b1","queueId":0,"topic":"orders"}:3}}'


def test_offsets_held_by_each_consumer_are_collected(world: World) -> None:
    one, two = world.online("billing", "c1", "orders"), world.online("billing", "c22", "orders")
    one.answer = Command(0, 1, body=HELD)
    two.answer = Command(0, 1, body=b'{"messageQueueTable":{}}')
    answer = world.ok(R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **STATUS)
    assert answer.body == (
        b'{"consumerTable":{"c1":{{"brokerName":"b1","queueId":0,"topic":"orders"}:3},"c22":{}},'
        b'"messageQueueTable":{}}'
    )
    assert (one.sent[0].code, one.sent[0].ext) == (R.GET_CONSUMER_STATUS_FROM_CLIENT, STATUS)


def test_one_consumer_may_be_named_and_the_others_are_left_alone(world: World) -> None:
    one, two = world.online("billing", "c1", "orders"), world.online("billing", "c22", "orders")
    one.answer = Command(0, 1, body=HELD)
    told = world.json(R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **STATUS, clientAddr="c1")
    assert told["consumerTable"] == {"c1": {mq("orders", 0): 3}}
    assert two.sent == []
    refused = world.refusal(R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **STATUS, clientAddr="c333")
    assert "not online" in refused[1]


@pytest.mark.parametrize(
    "bad", [RequestTimeout("silent"), Command(1, 1, remark="no"), Command(0, 1, body=b"[oops")]
)
def test_who_gives_no_status_is_left_out_unless_nobody_does(world: World, bad: Command | Exception) -> None:
    one, two = world.online("billing", "c1", "orders"), world.online("billing", "c22", "orders")
    one.answer, two.answer = bad, Command(0, 1, body=HELD)
    told = world.json(R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **STATUS)
    assert list(told["consumerTable"]) == ["c22"]
    two.answer = bad
    code, _ = world.refusal(R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **STATUS)
    assert code == ResponseCode.CONSUME_MSG_TIMEOUT


def test_status_needs_an_online_group_of_able_clients(world: World) -> None:
    assert "online" in world.refusal(R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **STATUS)[1]
    world.online("billing", "c1", "orders", version=27)
    assert "version 27" in world.refusal(R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **STATUS)[1]
