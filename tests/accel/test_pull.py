"""A pull's header and its answer, by the accelerator and by their Python twins."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.broker import pull_answer
from orbitmq.store.consume_queue import UNIT
from orbitmq.wire.header_json import HOT_ERRORS, PULL
from tests.accel.direct import header
from tests.accel.fuzz import Fuzzer

if accel.read_pull is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

NUMBERS = {
    "queueId": "3",
    "queueOffset": "123456789012",
    "maxMsgNums": "32",
    "sysFlag": "3",
    "commitOffset": "-1",
    "suspendTimeoutMillis": "15000",
    "subVersion": "1700000000000",
}
EXT = {"consumerGroup": "CG", "topic": "T", **NUMBERS}


def read(head: bytes) -> Any:
    data = b"\0\0\0\0" + head + b"}}"
    return accel.read_pull(data, 4, 4 + len(head))


def twin(head: bytes) -> Any:
    """What the Python decoder finds, in the accelerator's order; None: it leaves the header to the tolerant one."""
    try:
        found = PULL.decode(head)
    except HOT_ERRORS:
        return None
    f = found.extFields
    optional = [b"\1" if text is None else text.encode() for text in (f.subscription, f.expression_type)]
    return (
        *(f.consumer_group.encode(), f.topic.encode(), f.queue_id, *optional),
        *(found.opaque, f.queue_offset, f.max_msg_nums, f.sys_flag, f.commit_offset),
        *(f.suspend_timeout_millis, f.sub_version, f.page_bytes, f.page_parts),
    )


def told(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same with the key taken apart."""
    group, topic, queue_id, subscription, kind, rest = found[0].split(b"\0")
    assert not rest
    return (group, topic, int(queue_id), subscription, kind, *found[1:])


def key_of(ext: dict[str, str]) -> bytes:
    names = ("consumerGroup", "topic", "queueId", "subscription", "expressionType")
    return b"".join(ext.get(name, "\1").encode() + b"\0" for name in names)


texts = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters='"\\'), max_size=40)


@settings(max_examples=300, deadline=None)
@given(
    st.permutations(sorted(EXT)),
    texts,
    texts,
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 10**17),
    st.data(),
)
def test_what_clients_send_is_read_as_the_twin_reads_it(
    names: list[str], group: str, topic: str, opaque: int, offset: int, data: st.DataObject
) -> None:
    ext = {name: EXT[name] for name in names}
    ext |= {"consumerGroup": group, "topic": topic, "queueOffset": str(offset)}
    more = {"subscription": texts, "expressionType": texts, "pageBytes": st.just("4194304"), "bname": texts}
    more["pageParts"] = st.sampled_from(("0", "7", "-1"))
    for name in data.draw(st.sets(st.sampled_from(sorted(more)))):
        ext[name] = data.draw(more[name])
    head = header(11, ext, opaque)
    found = read(head)
    assert found is not None
    assert told(found) == twin(head)
    assert found[0] == key_of(ext)


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": None},
        {"topic": 5},
        {"topic": 'a"b'},
        {"topic": "ä"},
        {"queueId": "2147483648"},
        {"queueId": 5},
        {"queueId": ""},
        {"queueId": "1.0"},
        {"queueOffset": "9223372036854775808"},
        {"maxMsgNums": "many"},
        {"pageBytes": "99999999999"},
        {"pageParts": "bodies"},
        {"consumerGroup": "x" * 1030},
    ],
)
def test_anything_else_is_left_to_the_twin(changed: dict[str, object]) -> None:
    ext = {**EXT, **changed}
    assert (
        read(json.dumps({"code": 11, "extFields": ext, "opaque": 1}, separators=(",", ":")).encode()) is None
    )


@pytest.mark.parametrize("missing", sorted(EXT))
def test_an_incomplete_pull_is_left_to_the_twin(missing: str) -> None:
    assert read(header(11, {name: value for name, value in EXT.items() if name != missing})) is None


@pytest.mark.parametrize("flag", [1, 2, 3])
def test_answers_and_oneway_requests_are_left_to_the_twin(flag: int) -> None:
    assert read(header(11, EXT, flag=flag)) is None


def test_mutated_headers_are_never_read_otherwise_than_by_the_twin() -> None:
    mutated = Fuzzer(accel, 3).mutated
    ext = {**EXT, "subscription": "*", "expressionType": "TAG", "pageBytes": "65536", "pageParts": "3"}
    head = header(11, ext, 77)
    taken = 0
    for _ in range(20_000):
        changed = mutated(head)
        found = read(changed)
        if found is not None:
            taken += 1
            assert told(found) == twin(changed), changed
    assert taken > 1000


def test_two_pulls_share_a_key_only_if_all_its_texts_are_the_same() -> None:
    shapes = [
        EXT,
        {**EXT, "topic": "U"},
        {**EXT, "queueId": "4"},
        {**EXT, "consumerGroup": "C", "topic": "GT"},
        {**EXT, "subscription": ""},
        {**EXT, "subscription": "*"},
        {**EXT, "expressionType": ""},
        {**EXT, "subscription": "A", "expressionType": "TAG"},
    ]
    assert len({read(header(11, ext))[0] for ext in shapes}) == len(shapes)


def test_the_answer_is_the_twins_with_the_records_behind_it() -> None:
    assert accel.found_page is not None
    assert accel.gather is not None
    random = Random(4)
    segment = random.randbytes(5000)
    for _ in range(300):
        units, at = b"", random.randrange(100)
        for _ in range(random.randrange(1, 9)):
            size = random.randrange(1, 700)
            units += UNIT.pack(7000 + at, size, 5)
            at += size
        place = units, segment, 7000, 7000 + 4000, random.randrange(9), random.randrange(5000), None
        high, low, offset = (random.choice((0, 5, 10**15)) for _ in range(3))
        suggested, opaque = random.randrange(3), random.randrange(-(2**31), 2**31)
        records, expected = accel.gather(*place)
        header_text = pull_answer.ANSWER % (0, high, low, offset + expected, suggested, opaque, b"FOUND")
        frame, count, size = accel.found_page(*place, pull_answer.FOUND, high, low, offset, suggested, opaque)
        assert (count, size) == (expected, len(records))
        assert frame[8:] == header_text + records
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert int.from_bytes(frame[4:8], "big") == len(header_text)


def test_nonsense_is_refused() -> None:
    assert accel.found_page is not None
    place = UNIT.pack(0, 10, 0), bytes(100), 0, 100, 1, 1, None
    with pytest.raises(ValueError, match="six texts"):
        accel.found_page(*place, (b"", b""), 1, 1, 1, 1, 1)
    with pytest.raises(TypeError):
        accel.found_page(*place, ("",) * 6, 1, 1, 1, 1, 1)
    assert accel.read_pull is not None
    for start, stop in ((-1, 3), (0, 100), (5, 4)):
        assert accel.read_pull(b"abcde", start, stop) is None
    with pytest.raises(TypeError):
        accel.read_pull("text", 0, 4)  # type: ignore[arg-type]
