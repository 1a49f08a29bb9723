"""END_TRANSACTION on a real store."""

from __future__ import annotations

from typing import Any

import pytest

from orbitmq.broker.transaction import records
from orbitmq.config import BrokerRole
from orbitmq.wire.codes import ResponseCode, SysFlag
from orbitmq.wire.topics import HALF_TOPIC, OP_TOPIC
from tests.broker.transaction.world import (
    COMMIT,
    HOST,
    ROLLBACK,
    UNANSWERED,
    UNKNOWN,
    World,
)


class TestEnding:
    def test_commit_writes_the_real_message_and_then_the_op(self, world: World) -> None:
        half_place = world.prepare(queue_id=3, body=b"b", TAGS="a")
        assert world.end(half_place, COMMIT).code == 0
        (real,) = world.records("TopicA", 3)
        (half,) = world.records(HALF_TOPIC)
        (op,) = world.records(OP_TOPIC)
        assert real.sys_flag & SysFlag.TX_MASK == SysFlag.TX_COMMIT
        assert real.prepared_offset == half.physical_offset
        assert (real.properties, real.body, real.born_ms, real.born_host, real.flag) == (
            half.properties,
            half.body,
            half.born_ms,
            half.born_host,
            half.flag,
        )
        assert (op.body, op.properties_raw, op.queue_id) == (b"0", b"WAIT\x01true\x02TAGS\x01d", 0)
        assert op.born_host == HOST
        assert real.physical_offset + real.size == op.physical_offset

    def test_rollback_writes_only_the_op(self, world: World) -> None:
        half_place = world.prepare()
        assert world.end(half_place, ROLLBACK).code == 0
        assert not world.records("TopicA")
        assert world.bodies(OP_TOPIC) == [b"0"]
        world.join("pg")
        world.round()
        assert len(world.records(HALF_TOPIC)) == 1

    def test_saying_it_again_changes_nothing(self, world: World) -> None:
        half_place = world.prepare()
        for _ in range(3):
            assert world.end(half_place, COMMIT).code == 0
        assert len(world.records("TopicA")) == len(world.records(OP_TOPIC)) == 1
        reply = world.end(half_place, ROLLBACK)
        assert reply.code == 1 and "committed before" in (reply.remark or "")

    def test_a_rolled_back_message_is_never_delivered(self, world: World) -> None:
        half_place = world.prepare()
        world.end(half_place, ROLLBACK)
        assert world.end(half_place, COMMIT).code == 1
        world.restart(saved=False)
        world.end(half_place, COMMIT)
        assert not world.records("TopicA")

    def test_not_known_yet_leaves_it_open(self, world: World) -> None:
        half_place = world.prepare()
        assert world.end(half_place, UNKNOWN).code == 0
        assert world.end(half_place, COMMIT).code == 0
        assert len(world.records("TopicA")) == 1

    def test_oneway_is_not_answered(self, world: World) -> None:
        half_place = world.prepare()
        assert world.end(half_place, COMMIT, oneway=True) is UNANSWERED
        assert len(world.records("TopicA")) == 1

    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            ({"group": "other"}, "group wrong"),
            ({"queue_offset": 7}, "table offset wrong"),
            ({"log_offset": 5}, "prepared transaction message failed"),
            ({"log_offset": 1 << 60}, "prepared transaction message failed"),
            ({"log_offset": -1}, "prepared transaction message failed"),
            ({"decision": 4}, "must be 8"),
        ],
    )
    def test_foreign_numbers_are_refused(self, world: World, changed: dict[str, Any], why: str) -> None:
        queue_offset, log_offset = world.prepare()
        fields = {
            "group": "pg",
            "queue_offset": queue_offset,
            "log_offset": log_offset,
            "decision": COMMIT,
            **changed,
        }
        reply = world.end(
            (fields["queue_offset"], fields["log_offset"]), fields["decision"], group=fields["group"]
        )
        assert reply.code == 1 and why in (reply.remark or "")
        assert not world.records("TopicA") and not world.records(OP_TOPIC)

    def test_an_ordinary_message_is_not_a_transaction(self, world: World) -> None:
        reply = world.send(PGROUP="pg")
        log_offset = int(reply.ext["msgId"][16:], 16)
        assert world.end((0, log_offset), COMMIT).code == 1
        assert len(world.records("TopicA")) == 1

    def test_a_slave_ends_nothing(self, world: World) -> None:
        half_place = world.prepare()
        world.config.broker_role = BrokerRole.SLAVE
        assert world.end(half_place, COMMIT).code == ResponseCode.SLAVE_NOT_AVAILABLE

    def test_a_store_that_takes_no_writes_refuses_and_can_be_asked_again(self, world: World) -> None:
        half_place = world.prepare()
        world.store.refuse_writes("disk full")
        assert world.end(half_place, COMMIT).code == ResponseCode.SERVICE_NOT_AVAILABLE
        world.store.fault = None
        assert world.end(half_place, COMMIT).code == 0
        assert len(world.records("TopicA")) == 1

    def test_a_delayed_message_waits_after_its_commit(self, world: World) -> None:
        half_place = world.prepare(DELAY="3")
        world.delays.delayed.clear()
        world.end(half_place, COMMIT)
        assert world.delays.delayed == ["3"]
        (real,) = world.records("TopicA")
        assert world.delays.stored == [(real.physical_offset, 0)]

    def test_a_delay_that_cannot_be_is_refused_before_and_not_after(self, world: World) -> None:
        reply = world.send(TRAN_MSG="true", PGROUP="pg", DELAY="many")
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL and not world.records(HALF_TOPIC)
        half_place = world.prepare(DELAY="3")
        world.delays.broken = True
        assert world.end(half_place, COMMIT).code == 0
        assert len(world.records("TopicA")) == 1

    def test_the_quick_way_and_the_plain_one_store_the_same(self, world: World) -> None:
        world.prepare(queue_id=1, TAGS="größe", KEYS="a b", mine="v")
        (half,) = world.records(HALF_TOPIC)
        assert records.real(half, "TopicA", 1, 77) == records.real_draft(half, "TopicA", 1, 77).finish()
