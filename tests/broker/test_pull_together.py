"""Held pulls that one commit answers: what goes to one consumer goes there with one write, and is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from orbitmq.broker.topic_config import TopicConfig
from orbitmq.net.together import MOST_BYTES
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.command import Command
from tests.accel.direct import ext_of, framed, header
from tests.support.raw_client import pull_ext
from tests.support.send_sides import PEERS, Side, Wire

TOPIC = "Together"
QUEUES = 4


class CountingWire(Wire):
    """Also remembers how many writes there were."""

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        self.writes: list[int] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(len(data))
        super().write(data)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))


class Stage:
    def __init__(self, root: Path) -> None:
        self.side = Side(root, hot=True)
        world = self.world = self.side.world
        cast(Any, world).suggested_broker_id = lambda group, result: 0
        self.pulls = self.side.gateway.pulls
        world.store.dispatcher.arrived = self.pulls.arrived
        world.store.dispatcher.all_arrived = self.pulls.together.release
        world.topics.put(TopicConfig(TOPIC, QUEUES, QUEUES), world.now)
        self.side.gateway.hot_send._queues(TOPIC)

    def hold(self, wire: Wire, queue_id: int, opaque: int, offset: int = 0) -> None:
        ext = pull_ext(TOPIC, queue_id, offset, suspend_ms=9000)
        assert self.side.read(wire, [framed(header(11, ext, opaque), b"")]) == []

    def send(self, wire: Wire, bodies: dict[int, bytes]) -> list[Command]:
        frames = [
            framed(header(310, ext_of(TOPIC, queue_id, ""), queue_id), body)
            for queue_id, body in bodies.items()
        ]
        return self.side.read(wire, frames)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.side.close()


def test_several_queues_answer_one_consumer_with_one_write(stage: Stage) -> None:
    consumer, other, producer = CountingWire(PEERS[0]), CountingWire(PEERS[0]), CountingWire(PEERS[0])
    for queue_id in range(QUEUES):
        stage.hold(consumer, queue_id, 100 + queue_id)
    stage.hold(other, 0, 7)
    sent = stage.send(producer, dict.fromkeys(range(QUEUES), b"body"))
    assert [answer.code for answer in sent] == [ResponseCode.SUCCESS] * QUEUES
    assert len(consumer.writes) == len(other.writes) == len(producer.writes) == 1
    assert sorted(answer.opaque for answer in consumer.answers()) == [100, 101, 102, 103]
    assert [answer.opaque for answer in other.answers()] == [7]
    assert stage.pulls.held_count == 0
    stage.hold(consumer, 0, 200, offset=1)  # nothing of it is kept back afterwards
    stage.pulls.expire(stage.world.now + 10_000)
    assert [answer.opaque for answer in consumer.answers()] == [200]


def test_who_sends_and_waits_on_one_connection_gets_both_with_one_write(stage: Stage) -> None:
    both = CountingWire(PEERS[0])
    stage.hold(both, 1, 50)
    answers = stage.send(both, {1: b"body", 2: b"body"})
    assert sorted(answer.opaque for answer in answers) == [1, 2, 50]
    assert len(both.writes) == 1


def test_what_is_kept_for_one_consumer_is_bounded(stage: Stage) -> None:
    consumer, producer = CountingWire(PEERS[0]), CountingWire(PEERS[0])
    for number in range(40):  # all of them want the same large message
        stage.hold(consumer, 0, number)
    stage.send(producer, {0: b"x" * (MOST_BYTES // 4)})
    assert len(consumer.answers()) == 40
    assert 8 <= len(consumer.writes) <= 14
    assert max(consumer.writes) < 2 * MOST_BYTES
