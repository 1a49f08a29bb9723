"""Templates against their plain twins: commands made field by field, batches made by the codec."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.fast_send import (
    PLAIN_ENTRY_BYTES,
    FrameMaker,
    encode_entries,
    encode_plain,
)
from orbitmq.client.outgoing import json_inside
from orbitmq.wire.answer_json import ANSWER, from_command
from orbitmq.wire.batch import encode_batch, iter_batch
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import Command, decode, encode
from orbitmq.wire.frame import FrameReader
from orbitmq.wire.header_json import HOT_ERRORS, SEND_V2
from orbitmq.wire.headers import SendHeaderV2, to_ext

ID = "0A000001002A00000000000000010000"
NAMES = st.text("abc%|_-XYZ09", min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
CODES = {
    "single": (RequestCode.SEND_MESSAGE_V2, 0, False),
    "oneway": (RequestCode.SEND_MESSAGE_V2, 2, False),
    "reply": (RequestCode.SEND_REPLY_MESSAGE_V2, 0, False),
    "batch": (RequestCode.SEND_BATCH_MESSAGE, 0, True),
}


@pytest.mark.parametrize("kind", list(CODES))
@given(
    group=NAMES,
    topic=NAMES,
    broker=st.text('ab-%é"\\', min_size=1, max_size=10),
    queue_id=st.integers(0, 1000),
    opaque=st.integers(0, 2**31 - 1),
    born_ms=st.integers(0, 2**50),
    more=TEXTS,
    sys_flag=st.integers(0, 0x7FF),
    body=st.binary(max_size=100),
)
def test_a_frame_is_what_a_command_would_be(
    kind: str,
    group: str,
    topic: str,
    broker: str,
    queue_id: int,
    opaque: int,
    born_ms: int,
    more: str,
    sys_flag: int,
    body: bytes,
) -> None:
    code, flag, batch = CODES[kind]
    make = getattr(FrameMaker(group, topic, queue_id, broker), kind)
    made = make(opaque, born_ms, ID.encode(), json_inside(more), sys_flag, body)
    header = SendHeaderV2(
        a=group,
        b=topic,
        c="TBW102",
        d=4,
        e=queue_id,
        f=sys_flag,
        g=born_ms,
        h=0,
        i="" if batch else f"UNIQ_KEY\x01{ID}{more}",
        j=0,
        k=False,
        m=batch,
        n=broker,
    )
    plain = encode(Command(code, flag, opaque, to_ext(header), body))
    (frame,) = FrameReader().feed(made)
    (expected,) = FrameReader().feed(plain)
    assert decode(frame) == decode(expected)
    # The broker's typed decoder takes it without falling back.
    size = int.from_bytes(frame[:4], "big")
    assert SEND_V2.decode(frame[4 : 4 + size]).extFields.b == topic


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=50), st.integers(0x8000, 0xFF00))
def test_plain_batches_are_what_the_codec_writes(bodies: list[bytes], first: int) -> None:
    stamp = "%" + ID[:27]
    made = encode_plain(bodies, stamp, first)
    properties = [f"UNIQ_KEY\x01{stamp}{first + at:04X}".encode() for at in range(len(bodies))]
    assert made == encode_batch((0, body, text) for body, text in zip(bodies, properties, strict=True))
    assert len(made) == sum(map(len, bodies)) + PLAIN_ENTRY_BYTES * len(bodies)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=50), TEXTS), min_size=1, max_size=20))
def test_batches_with_properties_are_what_the_codec_reads(messages: list[tuple[bytes, str]]) -> None:
    entries = [(body, more.encode()) for body, more in messages]
    read = list(iter_batch(encode_entries(entries, ID[:28], 0x8000)))
    assert read == [
        (0, body, f"UNIQ_KEY\x01{ID[:28]}{0x8000 + at:04X}".encode() + more)
        for at, (body, more) in enumerate(entries)
    ]


@given(
    st.integers(0, 5000),
    st.integers(0, 2**31 - 1),
    st.fixed_dictionaries(
        {},
        optional={
            "msgId": st.text("0123456789ABCDEF,", max_size=40),
            "queueId": st.integers(0, 2**31 - 1).map(str),
            "queueOffset": st.integers(0, 2**63 - 1).map(str),
            "recallHandle": st.text("abc=", min_size=1, max_size=5),
            "TRACE_ON": st.just("true"),
        },
    ),
    st.one_of(st.none(), TEXTS),
)
def test_the_typed_answer_is_what_the_tolerant_reader_finds(
    code: int, opaque: int, ext: dict[str, str], remark: str | None
) -> None:
    command = Command(code, 1, opaque, ext, remark=remark)
    (frame,) = FrameReader().feed(encode(command))
    assert ANSWER.decode(frame[4:]) == from_command(decode(frame)) == from_command(command)


def test_an_answer_that_is_unusual_is_left_to_the_tolerant_reader() -> None:
    for text in (b'{"code":0,"flag":1,"opaque":5,"extFields":{"queueId":"x"}}', b"{code:0,opaque:5,flag:1}"):
        with pytest.raises(HOT_ERRORS):
            ANSWER.decode(text)
    answer = from_command(Command(0, 1, 5, {"queueId": "x", "queueOffset": str(2**70)}))
    assert (answer.extFields.queueId, answer.extFields.queueOffset) == (-1, -1)
