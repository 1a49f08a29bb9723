"""What a broker knows about its transactions after a start, also in a Java broker's directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from orbitmq.broker.offsets import OffsetTable
from orbitmq.wire import fastjson
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.topics import HALF_TOPIC, OP_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from tests.broker.transaction.world import (
    COMMIT,
    ROLLBACK,
    World,
    checks,
    leave_torn,
    place,
)

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "store"


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
        leave_torn(world, lambda: world.end(half_place, COMMIT), 1)
        assert world.bodies(OP_TOPIC) == [b"0"]
        assert not world.transactions.ledger.open
        world.end(half_place, COMMIT)
        assert world.bodies("TopicA") == [b"once"]

    def test_neither_when_its_half_message_was_moved_before(self, world: World) -> None:
        half_place = world.prepare(body=b"once")
        world.join("pg")
        world.round()
        world.transactions.tick()
        leave_torn(world, lambda: world.end(half_place, COMMIT), 1)
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
