"""Parts of the records of a page, kind by kind: against records that Python takes apart, and through sockets."""

from __future__ import annotations

import socket
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.broker import pull_answer
from orbitmq.store.consume_queue import UNIT
from orbitmq.wire.codes import PagePart, SysFlag
from orbitmq.wire.message import MESSAGE_MAGIC_V2, encode_record

if accel.found_parts is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

BASE = 1 << 30
HEAD_BYTES = 88
HIGH, LOW, SUGGESTED, OPAQUE = 10**15, 3, 0, -77
V4, V6 = bytes((127, 0, 0, 1, 0, 0, 42, 159)), bytes(20)

contents = st.tuples(
    st.binary(max_size=300), st.sampled_from((b"", b"TAGS\x01A", b"TAGS\x01A\x02KEYS\x01k" * 9))
)


def record(offset: int, body: bytes, properties: bytes = b"", **fields: Any) -> bytes:
    hosts = {"store_host": V4, "born_host": V4}
    return encode_record(
        **{"topic": "T", "body": body, "properties": properties, "queue_offset": offset, **hosts, **fields}
    )


def placed(records: list[bytes], gap: int = 0) -> tuple[bytes, bytes]:
    """Units, and the file that they point into."""
    at = BASE
    units: list[bytes] = []
    for each in records:
        units.append(UNIT.pack(at + gap, len(each), 5))
        at += gap + len(each)
    return b"".join(units), b"".join(bytes(gap) + each for each in records)


def cut_plainly(records: list[bytes], parts: int) -> bytes:
    """What a page with these parts holds."""
    kinds: dict[int, list[bytes]] = {PagePart.HEADS: [], PagePart.BODIES: [], PagePart.PROPERTIES: []}
    for each in records:
        body_end = HEAD_BYTES + int.from_bytes(each[84:88], "big")
        kinds[PagePart.HEADS].append(each[:HEAD_BYTES])
        kinds[PagePart.BODIES].append(each[HEAD_BYTES:body_end])
        kinds[PagePart.PROPERTIES].append(each[body_end + 1 + each[body_end] :])
    page = [len(records), sum(map(len, records))]
    for kind in (PagePart.BODIES, PagePart.PROPERTIES):
        if parts & kind:
            page += [sum(map(len, kinds[kind][:number])) for number in range(len(records) + 1)]
    texts = [b"".join(texts) for kind, texts in kinds.items() if parts & kind]
    return b"".join(number.to_bytes(4, "little") for number in page) + b"".join(texts)


def asked(
    units: bytes, file: bytes, offset: int, parts: int, *, fd: int = -1, most: int = 9000, size: int = 1 << 30
) -> tuple[bytes, int, int]:
    assert accel.found_parts is not None
    place = units, file, BASE, BASE + len(file), most, size, None
    return accel.found_parts(
        *place, pull_answer.FOUND_PARTS[parts], HIGH, LOW, offset, SUGGESTED, OPAQUE, fd, parts
    )


def framed(following: int, parts: int, page: bytes) -> bytes:
    header = pull_answer.ANSWER.replace(b'"suggest', b'"pageParts":"%d","suggest' % parts)
    header %= (0, HIGH, LOW, following, SUGGESTED, OPAQUE, b"FOUND")
    size = len(header)
    return (4 + size + len(page)).to_bytes(4, "big") + size.to_bytes(4, "big") + header + page


@given(
    st.lists(contents, min_size=1, max_size=12), st.integers(0, 7), st.integers(0, 2**62), st.integers(0, 9)
)
def test_a_page_holds_just_the_parts(
    messages: list[tuple[bytes, bytes]], parts: int, first: int, gap: int
) -> None:
    records = [record(first + number, *message) for number, message in enumerate(messages)]
    frame, count, size = asked(*placed(records, gap), first, parts)
    assert (count, size) == (len(records), sum(map(len, records)))
    assert frame == framed(first + count, parts, cut_plainly(records, parts))


@given(st.integers(0, 7), st.integers(1, 9), st.integers(0, 2000))
def test_limits_are_those_of_whole_records(parts: int, most: int, size: int) -> None:
    assert accel.gather is not None
    records = [record(number, bytes(100 * number)) for number in range(8)]
    units, file = placed(records)
    taken, count = accel.gather(units, file, BASE, BASE + len(file), most, size)
    frame, *told = asked(units, file, 0, parts, most=most, size=size)
    assert told == [count, len(taken)]
    assert frame == framed(count, parts, cut_plainly(records[:count], parts))


@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize(
    "odd",
    [
        {"born_host": V6},
        {"store_host": V6},
        {"magic": MESSAGE_MAGIC_V2},
        {"sys_flag": SysFlag.COMPRESSED},
        {"sys_flag": SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP},
        {"queue_offset": 99},
    ],
)
def test_a_page_with_one_record_that_is_not_plain_is_not_cut(place: int, odd: dict[str, Any]) -> None:
    records = [record(number, b"body", **(odd if number == place else {})) for number in range(7)]
    for parts in range(8):
        assert asked(*placed(records), 0, parts) == (b"", 0, 0)


def test_properties_that_do_not_end_with_the_record_are_not_cut() -> None:
    sound = record(0, b"body", b"TAGS\x01A")
    for longer in (sound[:-7] + b"\x07" + sound[-6:], sound[:-7] + b"\x05" + sound[-6:]):
        units, file = placed([longer])
        assert asked(units, file, 0, PagePart.PROPERTIES)[1] == 0
        assert asked(units, file, 0, PagePart.BODIES | PagePart.HEADS)[1] == 1, "nobody asked for them"
    topic = bytearray(record(0, b"body"))
    topic[HEAD_BYTES + 4] = 0xFF  # its length
    assert asked(*placed([bytes(topic)]), 0, PagePart.PROPERTIES)[1] == 0


def test_nothing_and_unknown_parts_are_no_page() -> None:
    assert accel.found_parts is not None
    units, file = placed([record(0, b"body")])
    assert asked(b"", file, 0, PagePart.BODIES) == (b"", 0, 0)
    assert asked(units, b"", 0, PagePart.BODIES) == (b"", 0, 0), "the record is not there"
    for parts in (-1, 8, 1 << 20):
        place = units, file, BASE, BASE + len(file), 1, 1, None
        assert accel.found_parts(*place, pull_answer.FOUND, 1, 1, 0, 0, 1, -1, parts) == (b"", 0, 0)


@pytest.mark.parametrize("buffer_bytes", [4096, 100_000, 8 << 20])
@pytest.mark.parametrize("parts", [PagePart.BODIES, PagePart.BODIES | PagePart.HEADS, 7, 1])
def test_what_is_written_and_what_is_left_are_the_answer(buffer_bytes: int, parts: int) -> None:
    random = Random(buffer_bytes + parts)
    ways = set()
    for number in range(25):
        mean = random.choice((50, 1000, 30_000)) if number else 600
        count = random.randrange(1, 2 + min(1_500_000 // mean, 3000)) if number else 3000
        bodies = [random.randbytes(random.randrange(2 * mean)) for _ in range(count)]
        records = [record(5 + row, body, b"KEYS\x01k") for row, body in enumerate(bodies)]
        units, file = placed(records, random.choice((0, 7)))
        whole, *expected = asked(units, file, 5, parts)
        near, far = socket.socketpair()
        with near, far:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            near.setblocking(False)
            rest, *told = asked(units, file, 5, parts, fd=near.fileno())
            assert told == expected == [len(records), sum(map(len, records))]
            assert drained(far) + rest == whole
            ways.add("copied" if rest == whole else "in part" if rest else "written")
    direct = parts & PagePart.BODIES and not parts & PagePart.PROPERTIES
    assert "copied" in ways
    assert bool(ways & {"in part", "written"}) == bool(direct)


def drained(reader: socket.socket) -> bytes:
    found: list[bytes] = []
    try:
        while more := reader.recv(1 << 20, socket.MSG_DONTWAIT):
            found.append(more)
    except BlockingIOError:
        pass
    return b"".join(found)
