"""Many messages in one half message: visible together, each once, whatever happens in the middle of the commit."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq.broker.transaction import half_batch
from orbitmq.wire.batch import MAX_HALF_BATCH, encode_batch
from orbitmq.wire.codes import ResponseCode, SysFlag
from orbitmq.wire.command import Command
from orbitmq.wire.java_hash import string_hash
from orbitmq.wire.properties import Prop, encode_properties
from orbitmq.wire.topics import HALF_TOPIC, OP_TOPIC
from tests.broker.transaction.test_lane import Side, end, half, sides, text
from tests.broker.transaction.world import COMMIT, ROLLBACK, World

__all__ = ["sides"]
Entry = tuple[int, bytes, bytes]


def entry(number: int, **more: str) -> Entry:
    properties = {Prop.UNIQ_KEY: f"{number:032}", Prop.TAGS: "t", Prop.KEYS: f"k{number} all", **more}
    return number, b"row %d" % number, encode_properties(properties)


def entries(count: int) -> list[Entry]:
    return [entry(number) for number in range(count)]


def send(
    world: World, batch: Sequence[Entry] | bytes, count: int | str | None = None, **more: str
) -> Command:
    body = batch if isinstance(batch, bytes) else encode_batch(batch)
    properties = {
        Prop.TRANSACTION_PREPARED: "true",
        Prop.PRODUCER_GROUP: "pg",
        Prop.UNIQ_KEY: f"{0:032}",
        Prop.HALF_BATCH: str(len(batch) if count is None else count),
    }
    return world.send("TopicA", body, sys_flag=SysFlag.TX_PREPARED, queue_id=2, **{**properties, **more})


def prepare(world: World, batch: Sequence[Entry]) -> tuple[int, int]:
    answer = send(world, batch)
    assert answer.code == 0, answer.remark
    return int(answer.ext["queueOffset"]), int(answer.ext["msgId"][16:], 16)


def test_a_commit_makes_each_a_message_of_its_own(world: World) -> None:
    place = prepare(world, entries(5))
    assert not world.records("TopicA", 2)
    assert world.end(place, COMMIT).code == 0
    found = world.records("TopicA", 2)
    assert [(m.flag, m.body, m.tags, m.keys, m.queue_offset) for m in found] == [
        (n, b"row %d" % n, "t", f"k{n} all", n) for n in range(5)
    ]
    assert [m.msg_id for m in found] == [f"{n:032}" for n in range(5)]
    assert {m.sys_flag for m in found} == {SysFlag.TX_COMMIT}
    assert {m.prepared_offset for m in found} == {place[1]}
    assert {m.born_ms for m in found} == {world.now}
    assert {m.properties[Prop.CLUSTER] for m in found} == {world.config.broker_cluster_name}
    assert not {Prop.HALF_BATCH, Prop.REAL_TOPIC, Prop.TRANSACTION_PREPARED} & found[0].properties.keys()
    queue = world.store.find_queue("TopicA", 2)
    assert queue is not None
    unit = queue.unit(3)
    assert unit is not None and unit[2] == string_hash("t")
    assert world.bodies(OP_TOPIC) == [b"0"]


def test_it_ends_once(world: World) -> None:
    place = prepare(world, entries(3))
    for _ in range(2):
        assert world.end(place, COMMIT).code == 0
    world.restart()
    assert world.end(place, COMMIT).code == 0
    assert len(world.records("TopicA", 2)) == 3
    assert world.end(place, ROLLBACK).code == ResponseCode.SUCCESS, "how it ended is not known any more"


def test_a_rollback_leaves_nothing(world: World) -> None:
    place = prepare(world, entries(3))
    world.end(place, ROLLBACK)
    world.restart()
    assert not world.records("TopicA", 2) and not world.transactions.ledger.open


@pytest.mark.parametrize("written", range(5))
def test_what_a_crash_left_of_a_commit_is_completed(world: World, written: int) -> None:
    """The messages come before the word that it has ended: a crash may leave any number of them."""
    place = prepare(world, entries(4))
    (stored,) = world.records(HALF_TOPIC)
    for message in half_batch.messages(stored, "TopicA", 2)[:written]:
        world.store.put(message)
    world.restart()
    assert bool(world.transactions.ledger.open) == (written == 0), "only a commit that began is completed"
    assert world.bodies(OP_TOPIC) == ([b"0"] if written else [])
    world.end(place, COMMIT)
    world.restart()
    assert world.bodies("TopicA", 2) == [b"row 0", b"row 1", b"row 2", b"row 3"]


@pytest.mark.parametrize("written", [1, 4])
def test_a_new_master_completes_it_once_it_may_write(world: World, written: int) -> None:
    """The log that it followed may end in the middle of a commit, and it starts before it is confirmed."""
    place = prepare(world, entries(4))
    (stored,) = world.records(HALF_TOPIC)
    for message in half_batch.messages(stored, "TopicA", 2)[:written]:
        world.store.put(message)
    for _ in range(2):
        world.restart(refusal="not confirmed yet")
        world.transactions.tick()
        assert not world.transactions.ledger.open and not world.records(OP_TOPIC)
    world.store.fault = None
    assert world.end(place, COMMIT).code == 0, "repeated before the rest is there"
    world.transactions.tick()
    assert world.bodies("TopicA", 2) == [b"row 0", b"row 1", b"row 2", b"row 3"]
    world.restart()
    assert world.bodies(OP_TOPIC) == [b"0"] and world.progress() == (1, 1)


def test_of_the_largest_batch_the_last_message_is_enough_to_know(world: World) -> None:
    """Behind the torn one there is nothing; before it there may be any number of others."""
    for number in range(3):
        world.end(prepare(world, [entry(number * 1000 + n) for n in range(MAX_HALF_BATCH)]), COMMIT)
    torn = [entry(5000 + n) for n in range(MAX_HALF_BATCH)]
    place = prepare(world, torn)
    stored = world.records(HALF_TOPIC)[-1]
    for message in half_batch.messages(stored, "TopicA", 2)[:-1]:
        world.store.put(message)
    world.restart()
    world.end(place, COMMIT)
    bodies = world.bodies("TopicA", 2)
    assert len(bodies) == len(set(bodies)) == 4 * MAX_HALF_BATCH


def test_one_that_was_asked_for_is_committed_from_its_new_place(world: World) -> None:
    prepare(world, entries(3))
    world.join("pg")
    world.round()
    world.restart(saved=False)
    (half_now,) = world.transactions.ledger.open.values()
    assert half_now.checks == 1
    assert world.end((half_now.queue_offset, half_now.log_offset), COMMIT).code == 0
    assert world.bodies("TopicA", 2) == [b"row 0", b"row 1", b"row 2"]
    world.restart()
    assert not world.transactions.ledger.open


@pytest.mark.parametrize(
    ("batch", "count", "more", "why"),
    [
        (b"junk", 1, {}, "message 0 of the batch"),
        (encode_batch(entries(2))[:-1], 2, {}, "message 1 of the batch"),
        (entries(2), 3, {}, "it holds 2 messages"),
        (entries(2), "two", {}, "it holds 2 messages"),
        (entries(MAX_HALF_BATCH + 1), None, {}, "it holds 1001 messages; 1 to 1000"),
        ([(0, b"x", b"TAGS\x01t")], None, {}, r"message 0 has no unique id \(UNIQ_KEY\)"),
        ([entry(1), entry(1)], None, {}, "message 1 has no unique id .* of its own"),
        ([(0, b"", b"UNIQ_KEY\x01u")], None, {}, "message 0 is empty"),
        ([entry(1), entry(2, DELAY="3")], None, {}, "message 1 has DELAY"),
        ([entry(1, CLUSTER="other")], None, {}, "message 0 has CLUSTER"),
        ([entry(1, big="x" * 32_700)], None, {}, "bytes of properties"),
        (entries(2), None, {"DELAY": "3"}, "compressed or delayed"),
        ([(0, b"x" * 400_000, entry(n)[2]) for n in range(3)], None, {}, "mappedFileSizeCommitLog"),
    ],
)
def test_what_could_not_be_committed_is_refused(
    world: World, batch: Sequence[Entry] | bytes, count: int | str | None, more: dict[str, str], why: str
) -> None:
    answer = send(world, batch, count, **more)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None and "send them one by one" in answer.remark
    assert re.search(why, answer.remark)
    assert not world.records(HALF_TOPIC)


# The quick way and the plain one.


def half_batch_frame(opaque: int, batch: Sequence[Entry]) -> Command:
    command = half(opaque, text(f"{0:032}", f"{Prop.HALF_BATCH}\x01{len(batch)}"))
    command.body = encode_batch(batch)
    return command


PROPERTIES = st.lists(
    st.sampled_from(["TAGS\x01t", "KEYS\x01a b", "mine\x01v", "WAIT\x01false", "größe\x01groß"]),
    max_size=3,
    unique=True,
)


@st.composite
def batches(draw: st.DrawFn) -> list[Entry]:
    texts = draw(st.lists(PROPERTIES, min_size=1, max_size=6))
    long = draw(st.booleans())
    return [
        (number, b"%d" % number, "\x02".join([f"UNIQ_KEY\x01{number:0{32 if long else 1}}", *text]).encode())
        for number, text in enumerate(texts)
    ]


@given(sent=st.lists(batches(), min_size=1, max_size=4), decision=st.sampled_from([COMMIT, ROLLBACK]))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_both_ways_do_the_same(
    tmp_path_factory: pytest.TempPathFactory, sent: list[list[Entry]], decision: int
) -> None:
    root = tmp_path_factory.mktemp("ways")
    results = []
    for hot in (True, False):
        side = Side(root / str(hot), hot=hot)
        answers = side.read(*(half_batch_frame(n, batch) for n, batch in enumerate(sent)))
        said = side.read(*(end(answer, decision, oneway=False) for answer in answers))
        again = side.read(*(end(answer, decision, oneway=False) for answer in answers))
        counted = sorted(side.world.stats.topic_totals())
        results.append(([a.code for a in (*answers, *said, *again)], side.seen(), side.standing(), counted))
        side.world.close()
    assert results[0] == results[1]


def test_ends_of_a_read_share_one_commit(sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch) -> None:
    side = sides[0]
    answers = side.read(*(half_batch_frame(n, [entry(n * 10 + k) for k in range(10)]) for n in range(8)))
    commits: list[int] = []
    commit_staged = side.world.store.commit_staged
    monkeypatch.setattr(side.world.store, "commit_staged", lambda: commits.append(1) or commit_staged())
    side.read(*(end(answer, COMMIT) for answer in answers))
    assert len(commits) == 1
    assert len(side.world.records("TopicA", 1)) == 80
