"""Transactions on a real store, with a clock that tests move: 15 questions take no time."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orbitmq.broker.offsets import OffsetTable
from orbitmq.broker.transaction import records
from orbitmq.config import BrokerRole
from orbitmq.store.commit_log import CommitLog
from orbitmq.wire import fastjson
from orbitmq.wire.codes import OrbitCode, RequestCode, ResponseCode, SysFlag
from orbitmq.wire.command import request
from orbitmq.wire.message import decode_record
from orbitmq.wire.message_id import offset_msg_id, pack_host
from orbitmq.wire.topics import HALF_TOPIC, OP_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from tests.broker.transaction.world import HOST, T0, UNANSWERED, Peer, World

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "store"
COMMIT, ROLLBACK, UNKNOWN = SysFlag.TX_COMMIT, SysFlag.TX_ROLLBACK, SysFlag.TX_NONE


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def checks(peer: Peer) -> list[dict[str, Any]]:
    """The questions a producer got."""
    return [command.ext for command in peer.sent if command.code == RequestCode.CHECK_TRANSACTION_STATE]


def place(question: dict[str, Any]) -> tuple[int, int]:
    return int(question["tranStateTableOffset"]), int(question["commitLogOffset"])


class TestSending:
    def test_a_half_message_is_stored_aside_as_the_java_broker_does(self, world: World) -> None:
        place = world.prepare(queue_id=2, body=b"half", TAGS="a", KEYS="k1", mine="v")
        assert not world.records("TopicA", 2)
        (half,) = world.records(HALF_TOPIC)
        assert (half.queue_offset, half.physical_offset) == place
        assert (half.queue_id, half.sys_flag, half.flag, half.body) == (0, 0, 5, b"half")
        assert half.properties == {
            "WAIT": "true",
            "TRAN_MSG": "true",
            "PGROUP": "pg",
            "UNIQ_KEY": "T1",
            "TAGS": "a",
            "KEYS": "k1",
            "mine": "v",
            "CLUSTER": "DefaultCluster",
            "REAL_TOPIC": "TopicA",
            "REAL_QID": "2",
        }
        topic = world.topics.get(HALF_TOPIC)
        assert topic is not None and (topic.read_queue_nums, topic.perm) == (1, 6)
        assert HALF_TOPIC in world.registered
        assert world.topics.get(OP_TOPIC) is None

    @pytest.mark.parametrize(("sys_flag", "marked"), [(SysFlag.TX_PREPARED, {}), (0, {"TRAN_MSG": "true"})])
    def test_either_mark_makes_it_a_half_message(
        self, world: World, sys_flag: int, marked: dict[str, str]
    ) -> None:
        assert world.send(sys_flag=sys_flag, PGROUP="pg", UNIQ_KEY="U", **marked).code == 0
        (half,) = world.records(HALF_TOPIC)
        assert half.sys_flag & SysFlag.TX_MASK == 0 and half.properties["TRAN_MSG"] == "true"

    def test_a_client_cannot_send_a_committed_message_itself(self, world: World) -> None:
        for sys_flag in (SysFlag.TX_COMMIT, SysFlag.TX_ROLLBACK):
            assert world.send(sys_flag=sys_flag).code == 0
        assert [message.sys_flag for message in world.records("TopicA")] == [0, 0]

    def test_a_copy_for_the_retry_topic_is_no_transaction(self, world: World) -> None:
        assert world.send("%RETRY%g", TRAN_MSG="true", PGROUP="pg", UNIQ_KEY="U").code == 0
        assert len(world.records("%RETRY%g")) == 1 and not world.records(HALF_TOPIC)

    def test_refused_when_the_broker_takes_none(self, tmp_path: Path) -> None:
        world = World(tmp_path, reject_transaction_message=True)
        reply = world.send(TRAN_MSG="true", PGROUP="pg")
        assert reply.code == ResponseCode.NO_PERMISSION and "rejectTransactionMessage" in (reply.remark or "")
        world.close()

    def test_refused_without_a_group_to_ask(self, world: World) -> None:
        reply = world.send(TRAN_MSG="true")
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL and "PGROUP" in (reply.remark or "")

    def test_refused_when_the_properties_leave_no_room_for_the_count(self, world: World) -> None:
        reply = world.send(TRAN_MSG="true", PGROUP="pg", big="x" * 32_600)
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL


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


class TestQuestions:
    def test_the_question_carries_the_message_and_its_new_place(self, world: World) -> None:
        world.prepare(queue_id=2, body=b"q", TAGS="a")
        producer = world.join("pg")
        world.round()
        (command,) = producer.sent
        assert command.is_oneway
        (old, new) = world.records(HALF_TOPIC)
        assert new.properties == {**old.properties, "TRANSACTION_CHECK_TIMES": "1"}
        assert (new.body, new.born_ms, new.born_host, new.flag) == (
            old.body,
            old.born_ms,
            old.born_host,
            old.flag,
        )
        assert command.ext == {
            "tranStateTableOffset": "1",
            "commitLogOffset": str(new.physical_offset),
            "msgId": "T1",
            "transactionId": "T1",
            "offsetMsgId": offset_msg_id(pack_host(HOST), new.physical_offset),
        }
        asked = decode_record(command.body)
        assert (asked.topic, asked.queue_id, asked.body) == ("TopicA", 2, b"q")
        assert (asked.queue_offset, asked.physical_offset) == (1, new.physical_offset)
        assert asked.properties == new.properties

    def test_the_answer_ends_it(self, world: World) -> None:
        world.prepare()
        producer = world.join("pg")
        world.round()
        assert world.end(place(checks(producer)[0]), COMMIT, peer=producer).code == 0
        world.round()
        assert len(checks(producer)) == 1 and len(world.records("TopicA")) == 1
        assert world.bodies(OP_TOPIC) == [b"1"]

    def test_a_late_answer_under_the_first_offset_counts_and_the_second_changes_nothing(
        self, world: World
    ) -> None:
        first = world.prepare()
        producer = world.join("pg")
        world.round()
        assert world.end(first, COMMIT).code == 0
        assert world.end(place(checks(producer)[0]), COMMIT).code == 0
        assert len(world.records("TopicA")) == 1
        assert world.bodies(OP_TOPIC) == [b"1", b"0"]

    def test_not_before_its_time_and_then_once_a_round(self, world: World) -> None:
        producer = world.join("pg")
        world.now += 57_000
        world.prepare()
        world.round(3_000)
        assert not checks(producer)
        world.round(30_000)
        assert not checks(producer), "the round's interval has not passed"
        world.round(30_000)
        assert len(checks(producer)) == 1

    def test_fifteen_times_and_then_put_aside(self, world: World) -> None:
        world.prepare(body=b"stuck")
        producer = world.join("pg")
        for minute in range(1, 16):
            world.round()
            assert len(checks(producer)) == minute
        world.round()
        assert len(checks(producer)) == 15
        (aside,) = world.records(TRANS_CHECK_MAX_TIME_TOPIC)
        assert aside.body == b"stuck" and aside.properties["TRANSACTION_CHECK_TIMES"] == "15"
        topic = world.topics.get(TRANS_CHECK_MAX_TIME_TOPIC)
        assert topic is not None and topic.read_queue_nums == 1
        world.round()
        assert len(world.records(HALF_TOPIC)) == 16
        # Put aside, not decided: the producer may still say so.
        assert world.end(place(checks(producer)[-1]), COMMIT).code == 0
        assert world.bodies("TopicA") == [b"stuck"]

    def test_resumed_by_an_operator_it_is_asked_for_from_the_start(self, world: World) -> None:
        world.prepare()
        producer = world.join("pg")
        for _ in range(16):
            world.round()
        (aside,) = world.records(TRANS_CHECK_MAX_TIME_TOPIC)
        command = request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": aside.offset_msg_id})
        assert world.ask(command).code == 0
        assert world.records(HALF_TOPIC)[-1].properties["TRANSACTION_CHECK_TIMES"] == "0"
        world.round()
        assert len(checks(producer)) == 16
        assert world.end(place(checks(producer)[-1]), COMMIT).code == 0
        assert len(world.records("TopicA")) == 1
        reply = world.ask(command)
        assert reply.code == 1 and "over" in (reply.remark or "")

    @pytest.mark.parametrize("msg_id", ["", "garbage", "0" * 32, offset_msg_id(pack_host(HOST), 1 << 50)])
    def test_nothing_is_resumed_that_is_not_there(self, world: World, msg_id: str) -> None:
        reply = world.ask(request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": msg_id}))
        assert reply.code == 1 and reply.remark

    def test_an_ordinary_message_is_not_resumed(self, world: World) -> None:
        msg_id = world.send().ext["msgId"]
        assert world.ask(request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": msg_id})).code == 1

    def test_a_vanished_group_is_waited_for_and_nothing_counts(self, world: World) -> None:
        world.prepare()
        for _ in range(30):
            world.round()
        assert len(world.records(HALF_TOPIC)) == 1
        producer = world.join("pg")
        world.round()
        assert world.records(HALF_TOPIC)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert len(checks(producer)) == 1

    def test_put_aside_when_nobody_came_back_before_the_log_drops_it(self, world: World) -> None:
        world.prepare()
        world.round(72 * 3_600_000)
        assert not world.records(TRANS_CHECK_MAX_TIME_TOPIC)
        world.round()
        assert len(world.records(TRANS_CHECK_MAX_TIME_TOPIC)) == 1

    def test_another_producer_of_the_group_is_asked_when_the_first_died(self, world: World) -> None:
        first = world.join("pg", peer=Peer("10.0.0.1:1"), client_id="a")
        world.prepare(peer=first)
        second = world.join("pg", peer=Peer("10.0.0.2:2"), client_id="b")
        first.closed = True
        world.round()
        assert not checks(first) and len(checks(second)) == 1
        assert world.end(place(checks(second)[0]), COMMIT, peer=second).code == 0
        assert len(world.records("TopicA")) == 1

    def test_producers_of_a_group_take_turns(self, world: World) -> None:
        producers = [world.join("pg", peer=Peer(f"10.0.0.{i}:1"), client_id=str(i)) for i in range(3)]
        for i in range(9):
            world.prepare(f"T{i}")
        world.round()
        assert [len(checks(producer)) for producer in producers] == [3, 3, 3]

    def test_one_group_does_not_answer_for_another(self, world: World) -> None:
        world.prepare(group="other")
        producer = world.join("pg")
        world.round()
        assert not producer.sent

    def test_its_own_immunity(self, world: World) -> None:
        world.prepare("slow", CHECK_IMMUNITY_TIME_IN_SECONDS="150")
        world.prepare("odd", CHECK_IMMUNITY_TIME_IN_SECONDS="what?")
        producer = world.join("pg")
        for expected in (["odd"], ["odd", "odd"], ["odd", "odd", "odd", "slow"]):
            world.round()
            assert sorted(question["msgId"] for question in checks(producer)) == expected

    def test_one_that_waits_long_is_taken_along(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        first = world.prepare("slow", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        for i in range(1100):
            world.end(world.prepare(f"T{i}"), COMMIT)
        world.round()
        carried = world.records(HALF_TOPIC)[-1]
        assert carried.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
        assert "TRANSACTION_CHECK_TIMES" not in carried.properties
        world.round()
        assert world.progress() == (1101, 1100)
        world.restart()
        assert world.end(first, COMMIT).code == 0, "the producer only knows the first offset"
        assert len(world.records("TopicA")) == 1101
        assert world.end((carried.queue_offset, carried.physical_offset), COMMIT).code == 0
        assert len(world.records("TopicA")) == 1101

    def test_many_open_ones_are_asked_for_in_slices(self, world: World) -> None:
        producer = world.join("pg")
        for i in range(300):
            world.prepare(f"T{i}")

        async def run() -> None:
            world.round()
            assert len(checks(producer)) < 300
            async with asyncio.timeout(5):
                while len(checks(producer)) < 300:
                    await asyncio.sleep(0.005)

        asyncio.run(run())
        assert sorted(q["msgId"] for q in checks(producer)) == sorted(f"T{i}" for i in range(300))

    def test_a_clock_far_off_does_not_lose_the_first_question(self, world: World) -> None:
        world.prepare("past", born_ms=1000)
        world.prepare("future", born_ms=T0 * 2)
        producer = world.join("pg")
        world.round()
        assert [question["msgId"] for question in checks(producer)] == ["past", "future"]

    def test_a_write_error_only_delays_the_question(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.prepare()
        producer = world.join("pg")

        def fail(*_: object) -> None:
            raise OSError(28, "no space left")

        with monkeypatch.context() as patch:
            patch.setattr(CommitLog, "_write_staged", fail)
            world.round()
        assert not producer.sent and world.store.refusal
        world.round()
        assert not producer.sent, "no writes while the store refuses them"
        world.store.fault = None
        world.round()
        assert len(checks(producer)) == 1

    def test_a_half_message_cleaned_from_the_log_is_forgotten(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        half_place = world.prepare()
        producer = world.join("pg")
        monkeypatch.setattr(world.store, "read_record", lambda offset: None)
        world.round()
        assert not producer.sent
        assert world.end(half_place, COMMIT).code == 1


class TestRestart:
    def test_open_ones_stay_open_and_ended_ones_ended(self, world: World) -> None:
        places = [world.prepare(f"T{i}") for i in range(4)]
        world.end(places[1], COMMIT)
        world.end(places[2], ROLLBACK)
        for saved in (True, False):
            world.restart(saved=saved)
            assert world.progress() == (0, 0)
            assert list(world.transactions.ledger.open) == [0, 3]
        assert world.end(places[1], COMMIT).code == 0
        assert len(world.records("TopicA")) == 1, "repeated after the restart"
        producer = world.join("pg")
        world.round()
        assert [question["msgId"] for question in checks(producer)] == ["T0", "T3"]

    def test_the_number_of_questions_goes_on_where_it_was(self, world: World) -> None:
        world.prepare()
        producer = world.join("pg")
        for _ in range(10):
            world.round()
        world.restart(saved=False)
        producer = world.join("pg")
        for _ in range(6):
            world.round()
        assert len(checks(producer)) == 5
        assert len(world.records(TRANS_CHECK_MAX_TIME_TOPIC)) == 1

    def test_a_real_message_without_its_op_is_not_delivered_again(self, world: World) -> None:
        """What a crash in the middle of the write of a commit leaves."""
        half_place = world.prepare(body=b"once")
        (half,) = world.records(HALF_TOPIC)
        world.store.put(records.real(half, "TopicA", 0).finish())
        world.restart()
        assert world.bodies(OP_TOPIC) == [b"0"]
        assert not world.transactions.ledger.open
        world.end(half_place, COMMIT)
        assert world.bodies("TopicA") == [b"once"]

    def test_ops_as_5_x_writes_them(self, world: World) -> None:
        places = [world.prepare(f"T{i}") for i in range(3)]
        world.put(OP_TOPIC, b"0,2,", TAGS="d")
        world.put(OP_TOPIC, b"garbage", TAGS="d")
        world.put(OP_TOPIC, b"1", TAGS="x")
        world.restart()
        assert list(world.transactions.ledger.open) == [1]
        assert world.end(places[0], COMMIT).code == 0
        assert not world.records("TopicA")

    def test_progress_ahead_of_the_queue_does_not_hide_new_messages(self, world: World) -> None:
        """After a power failure the table may have reached the disk and the log's end not."""
        world.prepare("T0")
        world.end((0, 0), ROLLBACK)
        world.offsets.commit("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0, 50)
        world.restart(saved=False)
        assert world.progress()[0] == 1 and "consumerOffset.json" in world.saved
        half_place = world.prepare("T1")
        world.restart()
        assert world.end(half_place, COMMIT).code == 0

    def test_without_an_id_of_its_own_a_message_is_still_recognised(self, world: World) -> None:
        for _ in range(2):
            world.send(sys_flag=SysFlag.TX_PREPARED, PGROUP="pg", queue_id=1, body=b"same")
        world.join("pg")
        world.round()
        world.restart(saved=False)
        assert list(world.transactions.ledger.open) == [2, 3]


class TestListing:
    def ask(self, world: World, **fields: str) -> dict[str, Any]:
        reply = world.ask(request(OrbitCode.LIST_HALF_MESSAGES, fields))
        assert reply.code == 0, reply.remark
        data: dict[str, Any] = fastjson.loads(reply.body)
        return data

    def test_open_ones_with_everything_a_person_asks_for(self, world: World) -> None:
        world.prepare("T1", queue_id=3, TAGS="a", KEYS="k1 k2", group="g1")
        world.end(world.prepare("T2"), COMMIT)
        world.join("g1")
        world.round()
        found = self.ask(world)
        assert found["open"] == 1 and found["nextOffset"] == -1
        (row,) = found["halfMessages"]
        assert row["msgId"] == "T1" and row["topic"] == "TopicA" and row["queueId"] == 3
        assert row["producerGroup"] == "g1" and row["producersOnline"] == 1 and row["checkTimes"] == 1
        assert row["keys"] == "k1 k2" and row["tags"] == "a" and row["queueOffset"] == 2
        assert row["bornTimestamp"] == T0 and row["immunityTime"] == 6000

    def test_pages_and_filters(self, world: World) -> None:
        for i in range(5):
            world.prepare(f"T{i}", group=f"g{i % 2}", topic="TopicB" if i == 4 else "TopicA")
        first = self.ask(world, maxNum="2")
        assert [row["msgId"] for row in first["halfMessages"]] == ["T0", "T1"] and first["nextOffset"] == 2
        rest = self.ask(world, maxNum="9", fromOffset="2")
        assert [row["msgId"] for row in rest["halfMessages"]] == ["T2", "T3", "T4"] and rest[
            "nextOffset"
        ] == -1
        assert [row["msgId"] for row in self.ask(world, producerGroup="g1")["halfMessages"]] == ["T1", "T3"]
        assert [row["msgId"] for row in self.ask(world, topic="TopicB")["halfMessages"]] == ["T4"]
        assert self.ask(world, producerGroup="nobody")["halfMessages"] == []


def test_the_store_of_a_java_broker_is_taken_over(tmp_path: Path) -> None:
    """Two transactions are pending there, asked for 12 times already; the others are over."""
    shutil.copytree(GOLDEN, tmp_path / "store")
    offsets = OffsetTable()
    offsets.from_json(fastjson.loads((tmp_path / "store/config/consumerOffset.json").read_bytes()))
    world = World(tmp_path / "store", now=1_794_773_300_000, offsets=offsets)
    ledger = world.transactions.ledger
    assert [(half.queue_offset, half.checks) for half in ledger.open.values()] == [(64, 12), (65, 12)]
    assert ledger.progress() == (64, 30)
    assert not world.store.refusal
    producer = world.join("golden_tx_producer")
    committed = len(world.records("GoldenTx", 2))
    world.round()
    assert [question["msgId"][-4:] for question in checks(producer)] == ["0185", "0186"]
    assert world.end(place(checks(producer)[0]), COMMIT, group="golden_tx_producer").code == 0
    assert world.records("GoldenTx", 2)[committed].body.startswith(b"tx-pending-1")
    for _ in range(4):
        world.round()
    assert len(checks(producer)) == 2 + 2
    assert len(world.records(TRANS_CHECK_MAX_TIME_TOPIC)) == 1
    world.close()


def test_what_we_write_looks_like_what_the_java_broker_wrote(world: World, tmp_path: Path) -> None:
    """Field by field, for a transaction that was asked for once and then committed."""
    shutil.copytree(GOLDEN, tmp_path / "golden")
    golden = World(tmp_path / "golden", now=1_794_773_300_000)
    theirs = next(m for m in golden.records("GoldenTx", 2) if m.body.startswith(b"tx-late-commit-10"))
    their_half = next(m for m in golden.records(HALF_TOPIC) if m.physical_offset == theirs.prepared_offset)
    their_op = next(m for m in golden.records(OP_TOPIC) if m.body == str(their_half.queue_offset).encode())
    first = next(m for m in golden.records(HALF_TOPIC) if m.msg_id == theirs.msg_id)
    properties = dict(first.properties)
    for name in ("REAL_TOPIC", "REAL_QID", "CLUSTER", "WAIT"):
        del properties[name]
    world.send("GoldenTx", first.body, sys_flag=SysFlag.TX_PREPARED, queue_id=2, **properties)
    producer = world.join("golden_tx_producer")
    world.round()
    assert world.end(place(checks(producer)[0]), COMMIT, group="golden_tx_producer").code == 0
    (ours,) = world.records("GoldenTx", 2)
    our_half = world.records(HALF_TOPIC)[-1]
    (our_op,) = world.records(OP_TOPIC)
    for mine, other in ((ours, theirs), (our_half, their_half), (our_op, their_op)):
        assert {**mine.properties, "CLUSTER": ""} == {**other.properties, "CLUSTER": ""}
        assert (mine.sys_flag, mine.queue_id, mine.reconsume_times) == (
            other.sys_flag,
            other.queue_id,
            other.reconsume_times,
        )
    assert ours.body == theirs.body and ours.prepared_offset == our_half.physical_offset
    golden.close()
