"""Sending and asking on a real store, with a clock that tests move: 15 questions take no time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orbitmq.broker.transaction import room
from orbitmq.store.cleaner import DISK_FULL
from orbitmq.store.commit_log import CommitLog
from orbitmq.wire.codes import RequestCode, ResponseCode, SysFlag
from orbitmq.wire.command import request
from orbitmq.wire.message import decode_record
from orbitmq.wire.message_id import offset_msg_id, pack_host
from orbitmq.wire.topics import HALF_TOPIC, OP_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from tests.broker.transaction.world import (
    COMMIT,
    HOST,
    T0,
    Peer,
    World,
    checks,
    place,
)


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

    def test_refused_when_it_would_not_fit_into_a_log_file_once_more(self, world: World) -> None:
        fits = world.store.settings.commit_log_file_bytes - 700
        world.prepare("T1", body=bytes(fits))
        world.join("pg")
        world.round()
        world.round()
        assert [
            message.properties.get("TRANSACTION_CHECK_TIMES") for message in world.records(HALF_TOPIC)
        ] == [*(None, "1", "2")]
        reply = world.send(body=bytes(fits + 300), TRAN_MSG="true", PGROUP="pg")
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL and "log file" in (reply.remark or "")


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


class TestOldLogFiles:
    def test_a_file_with_an_open_transaction_goes_when_that_was_taken_along(self, world: World) -> None:
        first = world.prepare("T1")
        second = world.prepare("T2")
        guard = world.store.cleaner.guards[-1]
        assert not guard(second[1] + 1)
        assert guard(first[1]), "nothing of it lies before"
        world.transactions.tick()
        assert guard(second[1] + 1)
        carried = world.records(HALF_TOPIC)[2:]
        assert [message.properties["TRAN_PREPARED_QUEUE_OFFSET"] for message in carried] == ["0", "1"]
        world.end((2, carried[0].physical_offset), COMMIT)
        assert len(world.records("TopicA")) == 1

    def test_large_ones_are_taken_along_a_few_at_a_time(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(room, "CLEAR_BYTES", 25_000)
        for i in range(7):
            world.prepare(f"T{i}", body=bytes(10_000))
        guard = world.store.cleaner.guards[-1]
        end = world.store.log.position
        assert not guard(end)
        for left in (4, 1, 0):
            world.transactions.tick()
            assert sum(half.log_offset < end for half in world.transactions.ledger.open.values()) == left
        assert guard(end)

    def test_one_that_nobody_will_be_asked_for_is_put_aside(self, world: World) -> None:
        _, log_offset = world.prepare()
        world.now += 73 * 3_600_000
        guard = world.store.cleaner.guards[-1]
        assert not guard(log_offset + 1)
        world.transactions.tick()
        assert len(world.records(TRANS_CHECK_MAX_TIME_TOPIC)) == 1
        assert guard(log_offset + 1)

    def test_also_when_the_disk_is_full(self, world: World) -> None:
        _, log_offset = world.prepare()
        guard = world.store.cleaner.guards[-1]
        world.store.refuse_writes(f"{DISK_FULL} (95% used)")
        assert not guard(log_offset + 1)
        world.transactions.tick()
        assert guard(log_offset + 1)

    def test_not_while_the_store_cannot_write(self, world: World) -> None:
        _, log_offset = world.prepare()
        guard = world.store.cleaner.guards[-1]
        assert not guard(log_offset + 1)
        world.store.refuse_writes("broken")
        world.transactions.tick()
        assert not guard(log_offset + 1)
