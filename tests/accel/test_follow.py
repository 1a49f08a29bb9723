"""A log taken over by the accelerator and by its twin: the same queues, the same index, the same complaints."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.store import follower as follower_module
from orbitmq.store.errors import StoreError
from orbitmq.store.follower import LogFollower
from orbitmq.store.message_store import MessageStore
from orbitmq.wire.message import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, encode_blank, encode_record
from orbitmq.wire.topics import SCHEDULE_TOPIC
from tests.support.stores import open_small

if accel.follow is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

FILE_BYTES = 32 * 1024
T0 = 1_700_000_000_000


class Draft(NamedTuple):
    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    sys_flag: int
    later_ms: int
    born_host: bytes
    store_host: bytes
    magic: int
    hurry: int
    """How many queue offsets are left out before it: a gap."""


names = st.sampled_from(["Alpha", "Alpha", "Alpha", "Beta", "Zürich", SCHEDULE_TOPIC])
values = st.sampled_from([b"A", b"B", b"x y", b" x  y ", b"\xc3\xa4", b"", b"\xff", b"k" * 90])
pairs = st.tuples(
    st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"other", b"", b"KEY", b"TAGSX"]),
    st.sampled_from([b"\x01", b"\x01", b"\x01", b"", b"\x01\x01"]),
    values | st.sampled_from([b"1", b"3", b"99"]),
)
texts = st.lists(pairs, max_size=5).map(lambda all_pairs: b"\x02".join(b"".join(pair) for pair in all_pairs))
plain_texts = st.just(b"UNIQ_KEY\x01C0\x02TAGS\x01A\x02KEYS\x01a b")
drafts = st.builds(
    Draft,
    names,
    st.sampled_from([0, 0, 1, 3]),
    st.sampled_from([b"", b"x", b"y" * 70, b"z" * 2000]),
    texts | plain_texts,
    st.sampled_from([0, 0, 0, 0, 1, 4, 8, 12]),
    st.sampled_from([0, 0, 0, 1, 1000]),
    st.sampled_from([bytes(8), bytes(8), bytes(20)]),
    st.sampled_from([bytes(8), bytes(8), bytes(20)]),
    st.sampled_from([MESSAGE_MAGIC] * 5 + [MESSAGE_MAGIC_V2]),
    st.sampled_from([0] * 15 + [2]),
)


def log_of(messages: list[Draft]) -> bytes:
    """As a master writes it, with a marker where a file is full."""
    parts: list[bytes] = []
    position, now = 0, T0
    ends: dict[tuple[str, int], int] = {}
    for draft in messages:
        now += draft.later_ms
        place = (draft.topic, draft.queue_id)
        offset = ends.get(place, 0) + draft.hurry
        fixed: dict[str, Any] = {
            "topic": draft.topic,
            "body": draft.body,
            "properties": draft.properties,
            "queue_id": draft.queue_id,
            "queue_offset": offset,
            "sys_flag": draft.sys_flag,
            "store_ms": now,
            "born_host": draft.born_host,
            "store_host": draft.store_host,
            "magic": draft.magic,
        }
        size = len(encode_record(**fixed))
        left = FILE_BYTES - position % FILE_BYTES
        if size + 8 > left:
            parts.append(encode_blank(left).ljust(left, b"\0"))
            position += left
        parts.append(encode_record(**fixed, physical_offset=position))
        position += size
        if draft.sys_flag & 12 in (0, 8):  # prepared and rolled back ones have no place in the queue
            ends[place] = offset + 1
    return b"".join(parts)


def take(root: Path, log: bytes, block: int, *, plain: bool) -> tuple[Any, ...]:
    """What the store holds afterwards, and what was wrong with the log."""
    built = follower_module.follow, follower_module.whole_records
    if plain:
        follower_module.follow = follower_module.whole_records = None
    try:
        with closing(open_small(root)) as store:
            follower = LogFollower(store)
            problem = ""
            try:
                for at in range(0, len(log), block):
                    follower.take(at, log[at : at + block])
            except StoreError as error:
                problem = str(error)
            return problem, follower.confirmed, store.log.committed_ms, held(store)
    finally:
        follower_module.follow, follower_module.whole_records = built


def held(store: MessageStore) -> Any:
    store.tick()
    queues = {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset, queue.next_offset, units)
        for queue in store.all_queues()
        if (units := [queue.unit(at) for at in range(queue.min_offset, queue.max_offset)])
    }
    keys = {
        (topic, key): store.query_keys(topic, key, 0, 1 << 60, 100)
        for topic in ("Alpha", "Beta", "Zürich")
        for key in ("a", "b", "C0", "A", "B", "x", "y", "ä", "k" * 90)
    }
    return queues, keys


@settings(max_examples=60, deadline=None)
@given(st.lists(drafts, max_size=40), st.sampled_from([50, 300, 4096, 1 << 20]), st.data())
def test_both_ways_show_the_same(messages: list[Draft], block: int, data: st.DataObject) -> None:
    log = log_of(messages)
    if log and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(log) - 1))
        log = log[:at] + bytes([data.draw(st.integers(0, 255))]) + log[at + 1 :]
    with tempfile.TemporaryDirectory() as root:
        quick = take(Path(root, "quick"), log, block, plain=False)
        assert quick == take(Path(root, "plain"), log, block, plain=True)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.lists(drafts, max_size=4).map(log_of), st.integers(0, 1 << 50), st.data())
def test_both_ways_find_the_same_whole_records(log: bytes, offset: int, data: st.DataObject) -> None:
    cut = log[: data.draw(st.integers(0, len(log)))]
    with tempfile.TemporaryDirectory() as root, closing(open_small(Path(root))) as store:
        follower = LogFollower(store)
        store.log.position = offset
        assert accel.whole_records is not None
        quick = accel.whole_records(cut, offset, FILE_BYTES)
        built, follower_module.whole_records = follower_module.whole_records, None
        try:
            assert quick == follower._whole_bytes(cut)
        finally:
            follower_module.whole_records = built
            store.log.position = 0


@pytest.mark.parametrize("queue_id", [-1, -2, -(2**31)])
def test_a_queue_with_a_number_below_zero_does_no_harm(tmp_path: Path, queue_id: int) -> None:
    """One flipped bit makes such a number; it once ended the follower of a topic that it knew."""
    log = bytearray(log_of([Draft("Alpha", 0, b"x", b"", 0, 0, bytes(8), bytes(8), MESSAGE_MAGIC, 0)] * 3))
    second = len(log) // 3
    log[second + 12 : second + 16] = queue_id.to_bytes(4, "big", signed=True)
    quick = take(tmp_path / "quick", bytes(log), 4096, plain=False)
    assert quick == take(tmp_path / "plain", bytes(log), 4096, plain=True)
    assert not quick[0]


def test_a_queue_that_went_is_not_written_to(tmp_path: Path) -> None:
    """The follower remembers queues by their objects; a topic may be deleted between two blocks."""
    message = Draft("Alpha", 0, b"x", b"TAGS\x01A", 0, 0, bytes(8), bytes(8), MESSAGE_MAGIC, 0)
    log = log_of([message] * 10)
    size = len(log) // 10
    with closing(open_small(tmp_path)) as store:
        follower = LogFollower(store)
        follower.take(0, log[: size * 4])
        before = store.find_queue("Alpha", 0)
        assert before is not None and before.max_offset == 4
        store.delete_topic("Alpha")
        follower.take(size * 4, log[size * 4 :])
        queue = store.find_queue("Alpha", 0)
        assert queue is not None and queue is not before
        assert (queue.min_offset, queue.max_offset, before.max_offset) == (4, 10, 4)
