"""The quick reading of records gives what the plain one gives, or leaves the record to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orbitmq.broker.timing import quick
from orbitmq.broker.timing.records import delivered, read_waiting
from orbitmq.wire.errors import WireError
from orbitmq.wire.message import encode_record
from orbitmq.wire.topics import SCHEDULE_TOPIC, TIMER_TOPIC

NOW = 1_800_000_000_000
NAMES = [
    "REAL_TOPIC",
    "REAL_QID",
    "TAGS",
    "KEYS",
    "UNIQ_KEY",
    "TIMER_OUT_MS",
    "TIMER_DELIVER_MS",
    "TIMER_ROLL_FROM",
    "TIMER_ROLL_TIMES",
    "TIMER_DEL_UNIQKEY",
    "DELAY",
    "mine",
]
values = st.one_of(
    st.sampled_from(["", "0", "3", "TopicA", "a b", str(NOW), str(NOW + 700), "ü"]), st.text(max_size=5)
)
pairs = st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=10)
usual = st.just([("REAL_TOPIC", "TopicA"), ("REAL_QID", "1"), ("TIMER_OUT_MS", str(NOW))])


@st.composite
def records(draw: st.DrawFn) -> bytes:
    listed = draw(st.one_of(pairs, usual)) + draw(pairs)
    text = "\x02".join(f"{name}\x01{value}" for name, value in listed).encode("utf-8", "replace")
    text += draw(st.sampled_from([b"", b"\x02"]))
    record = encode_record(
        topic=draw(st.sampled_from([TIMER_TOPIC, SCHEDULE_TOPIC, "Other"])),
        body=draw(st.binary(max_size=20)),
        properties=text,
        queue_offset=draw(st.integers(0, 2)),
        sys_flag=draw(st.sampled_from([0, 8, 0x301])),
        flag=draw(st.integers(0, 5)),
        born_ms=5,
        born_host=draw(st.sampled_from([bytes(8), bytes(range(20))])),
        store_ms=NOW - 1,
        reconsume_times=draw(st.integers(0, 3)),
    )
    if draw(st.booleans()):
        return record
    position = draw(st.integers(0, len(record) - 1))
    return record[:position] + draw(st.binary(max_size=3)) + record[position + 1 :]


@given(records())
def test_a_quick_delivery_is_the_plain_one(record: bytes) -> None:
    found = quick.delivery(record, NOW)
    if found is None:
        return
    try:
        plain = delivered(read_waiting(record), NOW)
    except WireError:
        return  # refused for its target, which the quick way looks at later
    assert found.target == (plain.topic.encode(), str(plain.queue_id).encode()) or not plain.topic.isascii()
    for name in ("body", "properties", "flag", "born_ms", "born_host", "reconsume_times", "tags_code"):
        assert getattr(found, name) == getattr(plain, name), name
    assert (found.sys_flag, found.unique_key, found.keys) == (plain.sys_flag, plain.unique_key, plain.keys)


@given(records(), st.integers(0, 2))
def test_a_quick_time_is_the_plain_one(record: bytes, queue_offset: int) -> None:
    found = quick.due_of(record, queue_offset)
    if found is None:
        return
    try:
        waiting = read_waiting(record)
    except WireError:
        return  # damage of the body is found when the message is delivered
    assert waiting.due_ms == found
    assert waiting.message.queue_offset == queue_offset
    assert waiting.cancels is None and waiting.rolled_from is None


def test_the_common_record_is_quick() -> None:
    text = f"REAL_TOPIC\x01TopicA\x02REAL_QID\x013\x02TIMER_OUT_MS\x01{NOW}\x02UNIQ_KEY\x01a".encode()
    record = encode_record(topic=TIMER_TOPIC, body=b"x", properties=text, queue_offset=7)
    assert quick.due_of(record, 7) == NOW
    assert quick.due_of(record, 8) is None
    assert quick.delivery(record, NOW) is not None


def test_properties_that_are_longer_than_they_say_are_not_quick() -> None:
    text = f"REAL_TOPIC\x01TopicA\x02REAL_QID\x013\x02TIMER_OUT_MS\x01{NOW}".encode()
    record = bytearray(encode_record(topic=TIMER_TOPIC, body=b"x", properties=text, queue_offset=7))
    length_at = len(record) - len(text) - 2
    record[length_at : length_at + 2] = (len(text) - 1).to_bytes(2, "big")
    assert quick.due_of(bytes(record), 7) is None
