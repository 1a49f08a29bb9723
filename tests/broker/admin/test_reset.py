from __future__ import annotations

import pytest

from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode as R
from orbitmq.wire.codes import ResponseCode
from tests.broker.admin.world import World, mq


@pytest.fixture
def marked(world: World) -> int:
    """Two queues with three old and two new messages each, read to the end; the time between old and new."""
    world.topic("orders", 2)
    for queue_id in (0, 1):
        for _ in range(3):
            world.put("orders", queue_id)
    world.now += 1000
    mark = world.now
    for queue_id in (0, 1):
        for _ in range(2):
            world.put("orders", queue_id)
        world.offsets.commit("billing", "orders", queue_id, 5)
    return mark


def reset(world: World, timestamp: int, force: bool = True, language: str = "JAVA", **more: object) -> dict:
    answer = world.ask(
        R.INVOKE_BROKER_TO_RESET_OFFSET,
        language=language,
        topic="orders",
        group="billing",
        timestamp=timestamp,
        isForce=force,
        **more,
    )
    assert answer.code == 0, answer.remark
    table: dict = fastjson.loads(answer.body)["offsetTable"]
    return table


def test_every_member_is_ordered_to_the_offsets_of_that_time(world: World, marked: int) -> None:
    peers = [world.online("billing", "c1", "orders"), world.online("billing", "c22", "orders")]
    assert reset(world, marked) == {mq("orders", 0): 3, mq("orders", 1): 3}
    for peer in peers:
        (order,) = peer.sent
        assert order.code == R.RESET_CONSUMER_CLIENT_OFFSET
        assert order.ext == {
            "topic": "orders",
            "group": "billing",
            "timestamp": str(marked),
            "isForce": "false",
        }
        assert order.body == (
            b'{"offsetTable":{{"brokerName":"b1","queueId":0,"topic":"orders"}:3,'
            b'{"brokerName":"b1","queueId":1,"topic":"orders"}:3}}'
        )
    # The clients commit the new offsets themselves, once they have dropped what they hold.
    assert world.offsets.query("billing", "orders", 0) == 5


@pytest.mark.parametrize(
    ("client", "tool", "as_list"),
    [
        ("CPP", "JAVA", True),
        ("OTHER", "CPP", True),
        ("OTHER", "JAVA", False),
        ("JAVA", "CPP", False),
        ("GO", "CPP", False),
    ],
)
def test_each_language_gets_the_form_it_reads(
    world: World, marked: int, client: str, tool: str, as_list: bool
) -> None:
    peer = world.online("billing", "c1", "orders", language=client)
    reset(world, marked, language=tool)
    as_listed = (
        b'{"offsetTable":[{"brokerName":"b1","offset":3,"queueId":0,"topic":"orders"},'
        b'{"brokerName":"b1","offset":3,"queueId":1,"topic":"orders"}]}'
    )
    assert (peer.sent[0].body == as_listed) is as_list
    assert b" " not in peer.sent[0].body


def test_without_force_a_group_is_never_set_forward(world: World, marked: int) -> None:
    world.online("billing", "c1", "orders")
    world.offsets.commit("billing", "orders", 0, 1)
    assert reset(world, marked, force=False) == {mq("orders", 0): 1, mq("orders", 1): 3}
    assert reset(world, -1) == {mq("orders", 0): 5, mq("orders", 1): 5}
    assert reset(world, 0) == {mq("orders", 0): 0, mq("orders", 1): 0}


def test_a_group_without_offsets_needs_force(world: World, marked: int) -> None:
    peer = world.online("billing", "c1", "orders")
    world.offsets.remove_group("billing")
    refused = world.refusal(
        R.INVOKE_BROKER_TO_RESET_OFFSET, topic="orders", group="billing", timestamp=marked, isForce=False
    )
    assert refused[0] == ResponseCode.SYSTEM_ERROR
    assert "force" in refused[1]
    assert peer.sent == []
    assert reset(world, marked) == {mq("orders", 0): 3, mq("orders", 1): 3}


def test_one_queue_and_an_exact_offset_can_be_named(world: World, marked: int) -> None:
    world.online("billing", "c1", "orders")
    assert reset(world, marked, queueId=1) == {mq("orders", 1): 3}
    assert reset(world, -1, queueId=1, offset=2) == {mq("orders", 1): 2}
    assert len(reset(world, marked, queueId=-1)) == 2
    assert reset(world, -1, offset=4) == {mq("orders", 0): 4, mq("orders", 1): 4}
    assert reset(world, -1, offset=9) == {mq("orders", 0): 5, mq("orders", 1): 5}
    wrong = {"topic": "orders", "group": "billing", "timestamp": -1, "isForce": True}
    assert "no queue 2" in world.refusal(R.INVOKE_BROKER_TO_RESET_OFFSET, **wrong, queueId=2)[1]
    assert "0 to 5" in world.refusal(R.INVOKE_BROKER_TO_RESET_OFFSET, **wrong, queueId=1, offset=6)[1]


@pytest.mark.parametrize(
    ("group", "topic", "code", "part"),
    [
        ("offline", "orders", ResponseCode.CONSUMER_NOT_ONLINE, "not online"),
        ("billing", "nope", ResponseCode.SYSTEM_ERROR, "no topic"),
        ("news", "orders", ResponseCode.SYSTEM_ERROR, "broadcasting"),
        ("ancient", "orders", ResponseCode.SYSTEM_ERROR, "version 27"),
    ],
)
def test_what_cannot_be_reset_is_refused_and_nobody_is_told(
    world: World, marked: int, group: str, topic: str, code: int, part: str
) -> None:
    peers = [
        world.online("billing", "c1", "orders"),
        world.online("news", "c1", "orders", model="BROADCASTING"),
        world.online("ancient", "c1", "orders"),
        world.online("ancient", "c22", "orders", version=27),
    ]
    refused = world.refusal(
        R.INVOKE_BROKER_TO_RESET_OFFSET, topic=topic, group=group, timestamp=marked, isForce=True
    )
    assert refused[0] == code
    assert part in refused[1]
    assert all(peer.sent == [] for peer in peers)
