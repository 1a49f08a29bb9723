"""Many messages in one half message: visible together, each once, whatever happens in the middle of the commit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq.broker.transaction import half_batch, lane
from orbitmq.broker.transaction.begun import TRIED_FOR_MS
from orbitmq.store.cleaner import DISK_FULL
from orbitmq.store.commit_log import CommitLog
from orbitmq.store.inner_message import InnerMessage
from orbitmq.wire.batch import MAX_HALF_BATCH, encode_batch
from orbitmq.wire.codes import ResponseCode, SysFlag
from orbitmq.wire.command import Command
from orbitmq.wire.java_hash import string_hash, tag_code
from orbitmq.wire.message import Message
from orbitmq.wire.properties import Prop, encode_properties
from orbitmq.wire.topics import HALF_TOPIC, OP_TOPIC
from tests.broker.transaction.test_lane import Side, end, half, sides, text
from tests.broker.transaction.world import COMMIT, ROLLBACK, World, leave_torn

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


def ask_for(world: World) -> None:
    world.join("pg")
    world.round()


def take_along(world: World) -> None:
    """As when the log file it lies in is about to go."""
    world.store.cleaner.guards[-1](world.store.log.position)
    world.transactions.tick()


MOVES = {"where it was sent": lambda world: None, "asked for": ask_for, "taken along": take_along}
ROWS = [b"row 0", b"row 1", b"row 2", b"row 3"]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("written", range(5))
def test_what_a_crash_left_of_a_commit_is_completed(world: World, written: int, move: str) -> None:
    """The messages come before the word that it has ended: a crash may leave any number of them."""
    place = prepare(world, entries(4))
    MOVES[move](world)
    world.transactions.tick()
    leave_torn(world, lambda: world.end(place, COMMIT), written)
    assert bool(world.transactions.ledger.open) == (written == 0), "only a commit that began is completed"
    assert bool(world.bodies(OP_TOPIC)) == (written > 0)
    world.end(place, COMMIT)
    world.restart()
    world.end(place, COMMIT)
    assert world.bodies("TopicA", 2) == ROWS


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("rows", [1, 4])
def test_also_what_it_left_of_a_quick_one(sides: tuple[Side, Side], rows: int, moved: bool) -> None:
    for side in sides:
        world = side.world
        single = half(0, text())
        (answer,) = side.read(half_batch_frame(1, entries(rows)) if rows > 1 else single)
        if moved:
            ask_for(world)
            world.transactions.tick()
        leave_torn(world, partial(side.read, end(answer, COMMIT)), (rows + 1) // 2)
        assert not world.transactions.ledger.open
        world.end(at(answer), COMMIT)
        assert world.bodies("TopicA", 1) == (ROWS if rows > 1 else [single.body])


@pytest.mark.parametrize("written", [1, 4])
def test_a_new_master_completes_it_as_soon_as_it_may_write(world: World, written: int) -> None:
    """The log that it followed may end in the middle of a commit, and it starts before it is confirmed."""
    place = prepare(world, entries(4))
    leave_torn(world, lambda: world.end(place, COMMIT), written, refusal="not confirmed yet")
    for _ in range(2):
        world.transactions.tick()
        assert not world.transactions.ledger.open and not world.records(OP_TOPIC)
        assert world.end(place, COMMIT).code == ResponseCode.SERVICE_NOT_AVAILABLE
        world.restart(refusal="not confirmed yet")
    world.store.fault = None
    world.store.writes_begin()
    assert world.bodies("TopicA", 2) == ROWS, "before anybody else may write"
    world.restart()
    assert world.bodies(OP_TOPIC) == [b"0"] and world.progress() == (1, 1)
    assert world.end(place, COMMIT).code == 0
    assert world.bodies("TopicA", 2) == ROWS


def test_a_store_that_heals_completes_it_first(world: World) -> None:
    place = prepare(world, entries(4))
    leave_torn(world, lambda: world.end(place, COMMIT), 2, refusal="no space left")
    assert world.store.fault is not None
    world.store.fault.heals = True
    world.store.try_to_heal()
    assert world.bodies("TopicA", 2) == ROWS


def test_nobody_is_told_of_success_before_it_is_complete(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it only said, another crash could lose the rest."""
    place = prepare(world, entries(4))
    leave_torn(world, lambda: world.end(place, COMMIT), 2, refusal="not confirmed yet")
    world.store.fault = None
    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "_write_staged", fail)
        assert world.end(place, COMMIT).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert len(world.records("TopicA", 2)) == 2
    world.store.fault = None
    assert world.end(place, COMMIT).code == 0
    assert world.bodies("TopicA", 2) == ROWS


def fail(*_: object) -> None:
    raise OSError(28, "no space left")


def test_a_full_disk_is_no_hindrance(world: World) -> None:
    """Else it would stay full: the log file with the half message could not go."""
    place = prepare(world, entries(4))
    guard = world.store.cleaner.guards[-1]
    assert guard(place[1]), "nothing of it lies before"
    leave_torn(world, lambda: world.end(place, COMMIT), 2, refusal="not confirmed yet")
    guard = world.store.cleaner.guards[-1]
    assert guard(place[1]) and not guard(place[1] + 1)
    world.store.fault = None
    world.store.refuse_writes(f"{DISK_FULL} (95% used)")
    world.transactions.tick()
    assert world.bodies("TopicA", 2) == ROWS
    assert guard(place[1] + 1)


def test_a_half_message_that_cannot_be_read_loses_no_rows_in_silence(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, other = prepare(world, entries(4)), prepare(world, entries(9)[5:])
    leave_torn(world, lambda: world.end(place, COMMIT), 2, refusal="not confirmed yet")
    world.store.fault = None
    read = world.store.read_record
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "read_record", lambda at: None if at == place[1] else read(at))
        world.transactions.tick()
        world.transactions.tick()
        assert caplog.text.count("half message 0 of producer group pg") == 1, "said once"
        assert "cannot be completed" in caplog.text and "orbitmq store verify" in caplog.text
        assert not world.records(OP_TOPIC)
        patch.setattr(world.store, "read_record", read)
        patch.setattr(half_batch, "rest", lambda *_: 1 // 0)
        again = world.end(place, COMMIT)
        assert again.code == ResponseCode.SERVICE_NOT_AVAILABLE and "not complete yet" in (again.remark or "")
        assert world.end(other, COMMIT).code == 0, "others are not held up"
        guard = world.store.cleaner.guards[-1]
        assert not guard(place[1] + 1) and world.progress()[0] < 1
        world.now += TRIED_FOR_MS + 1
        world.transactions.tick()
        assert "some of its messages may be missing" in caplog.text
        again = world.end(place, COMMIT)
        assert again.code == ResponseCode.SYSTEM_ERROR and "could not be completed" in (again.remark or "")
        world.transactions.tick()
        assert guard(place[1] + 1) and world.progress()[0] == 2


def test_one_that_cannot_be_completed_stops_neither_the_start_nor_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    places = [prepare(world, entries(4)), prepare(world, entries(9)[5:])]
    (first, second) = world.records(HALF_TOPIC)
    for stored in (first, second):
        for message in half_batch.messages(stored, "TopicA", 2, stored.physical_offset)[:2]:
            world.store.put(message)
    rest = half_batch.rest

    def broken(half: Message, stored: set[bytes]) -> list[InnerMessage]:
        if half.physical_offset == places[0][1]:
            raise ValueError("cannot be understood")
        return rest(half, stored)

    monkeypatch.setattr(half_batch, "rest", broken)
    world.restart()
    assert "cannot be understood" in caplog.text
    assert world.bodies(OP_TOPIC) == [b"1"]
    monkeypatch.undo()
    world.transactions.tick()
    assert sorted(world.bodies("TopicA", 2)) == [*ROWS, b"row 5", b"row 6", b"row 7", b"row 8"]


ODD_TEXT = b"UNIQ_KEY\x01%b\x02TAGS\x01\xff\xfe\x02mine\x01\x80\x02KEYS\x01a \xfd"


@pytest.mark.parametrize("written", [None, *range(4)])
def test_texts_that_are_no_utf_8_are_committed_both_ways(
    sides: tuple[Side, Side], written: int | None
) -> None:
    """A foreign producer may send them, and what was taken has to be committed; also its unique ids."""
    batch = [(n, b"row %d" % n, ODD_TEXT % (b"u%d\xff" % n if n else b"u\xfe")) for n in range(4)]
    seen = []
    for side in sides:
        world = side.world
        (answer,) = side.read(half_batch_frame(1, batch))
        assert answer.code == 0, answer.remark
        if written is None:
            (said,) = side.read(end(answer, COMMIT, oneway=False))
            assert said.code == 0, said.remark
        else:
            leave_torn(world, partial(side.read, end(answer, COMMIT)), written)
            world.end(at(answer), COMMIT)
        assert world.bodies("TopicA", 1) == ROWS
        assert {m.properties_raw.count(b"\xff\xfe") for m in world.records("TopicA", 1)} == {1}
        queue = world.store.find_queue("TopicA", 1)
        assert queue is not None
        units = [queue.unit(n) for n in range(4)]
        seen.append([unit[2] for unit in units if unit is not None])
    assert seen[0] == seen[1] == [tag_code(b"\xff\xfe")] * 4


def test_a_tag_that_is_no_utf_8_has_its_hash_on_every_way() -> None:
    message = InnerMessage("T", 0, b"x", b"TAGS\x01\xff\xfe").index_properties()
    assert message.tags_code == tag_code(b"\xff\xfe")


def at(answer: Command) -> tuple[int, int]:
    return int(answer.ext["queueOffset"]), int(answer.ext["msgId"][16:], 16)


@pytest.mark.parametrize("way", [0, 1], ids=["quick", "plain"])
def test_a_commit_that_begins_a_new_log_file_and_fails_is_taken_back(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch, way: int
) -> None:
    """The end of the old file was written by then."""
    side = sides[way]
    log = side.world.store.log
    batch = [(n, bytes(3000), entry(n)[2]) for n in range(40)]
    (answer,) = side.read(half_batch_frame(1, batch))
    file_bytes = log.series.segment_bytes
    while (filler := file_bytes - log.position - 100_000) > 0:
        side.world.put("Filler", bytes(min(filler, 60_000)))
    standing = side.standing()
    write, calls = CommitLog._write_staged, []

    def second_fails(of: CommitLog) -> None:
        calls.append(of.position)
        write(of) if len(calls) == 1 else fail()

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "_write_staged", second_fails)
        (said,) = side.read(end(answer, COMMIT, oneway=False))
    assert len(calls) >= 2, "the file was changed"
    assert said.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert side.standing() == standing
    assert not side.world.records("TopicA", 1)
    side.world.store.fault = None
    (said,) = side.read(end(answer, COMMIT, oneway=False))
    assert said.code == 0 and log.position > file_bytes
    side.world.restart()
    assert [m.msg_id for m in side.world.records("TopicA", 1)] == [f"{n:032}" for n in range(40)]


def test_ends_of_a_read_are_written_when_they_are_many(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read may bring hundreds of them: a hundred megabytes more would be held in memory."""
    side = sides[0]
    monkeypatch.setattr(lane, "MOST_STAGED_BYTES", 30_000)
    batches = [[(0, bytes(500), entry(n * 10 + k)[2]) for k in range(10)] for n in range(20)]
    answers = side.read(*(half_batch_frame(n, batch) for n, batch in enumerate(batches)))
    commits: list[int] = []
    commit_staged = side.world.store.commit_staged

    def counted() -> int:
        commits.append(sum(map(len, side.world.store.log._parts)))
        return commit_staged()

    monkeypatch.setattr(side.world.store, "commit_staged", counted)
    said = side.read(*(end(answer, COMMIT, oneway=False) for answer in answers))
    assert [one.code for one in said] == [0] * 20
    assert 4 <= len(commits) <= 7 and max(commits) < 45_000
    assert len(side.world.records("TopicA", 1)) == 200 and not side.world.transactions.ledger.open


def test_of_the_largest_batch_the_last_message_is_enough_to_know(world: World) -> None:
    """Behind the torn one there is nothing; before it there may be any number of others."""
    for number in range(3):
        world.end(prepare(world, [entry(number * 1000 + n) for n in range(MAX_HALF_BATCH)]), COMMIT)
    torn = [entry(5000 + n) for n in range(MAX_HALF_BATCH)]
    place = prepare(world, torn)
    leave_torn(world, lambda: world.end(place, COMMIT), MAX_HALF_BATCH - 1)
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
        (entries(MAX_HALF_BATCH + 1), None, {}, "it holds more than 1000 messages"),
        (encode_batch(entries(MAX_HALF_BATCH)) + b"j", 1000, {}, "message 1000 of the batch"),
        (encode_batch(entries(MAX_HALF_BATCH + 1)) + b"j", 1001, {}, "it holds more than 1000 messages"),
        ([(0, b"x", b"TAGS\x01t")], None, {}, r"message 0 has no unique id \(UNIQ_KEY\)"),
        ([entry(1), entry(1)], None, {}, "message 1 has no unique id .* of its own"),
        ([(0, b"", b"UNIQ_KEY\x01u")], None, {}, "message 0 is empty"),
        ([entry(1), entry(2, DELAY="3")], None, {}, "message 1 has DELAY"),
        ([entry(1, CLUSTER="other")], None, {}, "message 0 has CLUSTER"),
        ([entry(1, big="x" * 32_700)], None, {}, "bytes of properties"),
        (entries(2), None, {"DELAY": "3"}, "it has DELAY"),
        (entries(2), None, {Prop.INNER_MULTI_DISPATCH: "x"}, f"it has {Prop.INNER_MULTI_DISPATCH}"),
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
