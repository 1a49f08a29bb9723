from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.codes import LANGUAGES, RequestCode
from orbitmq.wire.command import CODEC_BINARY, CODEC_JSON, Command, decode, encode, encode_head, request
from orbitmq.wire.errors import FrameError, WireError
from orbitmq.wire.frame import MAX_FRAME_BYTES

ROUTE = Command(105, ext={"topic": "T"}, opaque=7, language="JAVA")
ROUTE_JSON = (
    '{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
    '"serializeTypeCurrentRPC":"JSON","version":407}'
)
ROUTE_BINARY = """00000025 01000021 0069 00 0197 00000007 00000000 00000000 0000000C
    0005 746F706963 00000001 54"""


def test_json_frame_is_javas() -> None:
    frame = encode(ROUTE)
    assert frame == bytes.fromhex("0000007F 0000007B") + ROUTE_JSON.encode()
    assert decode(frame[4:]) == ROUTE


def test_binary_frame_is_javas() -> None:
    command = Command(105, ext={"topic": "T"}, opaque=7, language="JAVA", codec=CODEC_BINARY)
    frame = encode(command)
    assert frame == bytes.fromhex(ROUTE_BINARY)
    assert decode(frame[4:]) == command


INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(max_size=40)


@given(
    st.builds(
        Command,
        code=INT32,
        flag=INT32,
        opaque=INT32,
        ext=st.dictionaries(TEXT, TEXT, max_size=8),
        body=st.binary(max_size=100),
        remark=st.none() | TEXT,
        language=st.sampled_from(LANGUAGES),
        version=INT32,
    )
)
def test_json_round_trip(command: Command) -> None:
    frame = encode(command)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode(frame[4:]) == command
    assert decode(memoryview(frame)[4:]) == command


@given(
    st.builds(
        Command,
        code=st.integers(-(2**15), 2**15 - 1),
        flag=INT32,
        opaque=INT32,
        ext=st.dictionaries(TEXT, TEXT.filter(bool), max_size=8),
        body=st.binary(max_size=100),
        remark=st.none() | TEXT.filter(bool),
        language=st.sampled_from(LANGUAGES),
        version=st.integers(-(2**15), 2**15 - 1),
        codec=st.just(CODEC_BINARY),
    )
)
def test_binary_round_trip(command: Command) -> None:
    frame = encode(command)
    assert frame[4] == CODEC_BINARY
    assert decode(frame[4:]) == command
    assert decode(memoryview(frame)[4:]) == command


@given(st.binary(max_size=200))
def test_garbage_ends_in_a_wire_error(data: bytes) -> None:
    try:
        decode(data)
    except WireError as error:
        assert str(error)


@given(st.binary(max_size=120), st.sampled_from([CODEC_JSON, CODEC_BINARY]))
def test_garbage_in_a_well_framed_header_ends_in_a_wire_error(header: bytes, codec: int) -> None:
    try:
        decode(((codec << 24) | len(header)).to_bytes(4, "big") + header)
    except WireError as error:
        assert str(error)


def test_header_length_beyond_the_frame() -> None:
    with pytest.raises(WireError, match="header length 255 does not fit"):
        decode(bytes.fromhex("000000FF 7B7D"))


def test_unknown_codec() -> None:
    with pytest.raises(WireError, match="codec 2"):
        decode(bytes.fromhex("02000000"))


def test_a_code_too_large_for_the_binary_form_goes_as_json() -> None:
    frame = encode(Command(RequestCode.POP_MESSAGE, codec=CODEC_BINARY))
    assert frame[4] == CODEC_JSON
    assert decode(frame[4:]).code == 200050


@pytest.mark.parametrize("codec", [CODEC_JSON, CODEC_BINARY])
def test_a_reply_carries_opaque_and_codec_of_its_request(codec: int) -> None:
    asked = Command(11, flag=0, opaque=42, codec=codec)
    reply = asked.reply(22, "no offset", {"offset": "1"}, b"body")
    assert (reply.code, reply.flag, reply.opaque, reply.codec) == (22, 1, 42, codec)
    assert reply.is_response
    assert not reply.is_oneway
    assert decode(encode(reply)[4:]) == reply


def test_replies_do_not_share_their_fields() -> None:
    asked = Command(11)
    asked.reply().ext["a"] = "b"
    assert asked.reply().ext == {}
    assert request(11).ext == {}


def test_requests() -> None:
    assert request(34, body=b"x") == Command(34, body=b"x")
    oneway = request(15, {"topic": "T"}, oneway=True)
    assert oneway.is_oneway
    assert not oneway.is_response
    assert oneway.flag == 2


def test_head_and_body_apart_are_the_same_bytes() -> None:
    command = Command(0, flag=1, body=b"records")
    assert encode_head(command) + command.body == encode(command)


def test_a_frame_that_no_peer_would_take_is_not_written() -> None:
    with pytest.raises(FrameError, match="above the frame limit"):
        encode(Command(0, body=bytes(MAX_FRAME_BYTES)))


@pytest.mark.parametrize("codec", [CODEC_JSON, CODEC_BINARY])
def test_text_that_is_not_unicode_is_refused(codec: int) -> None:
    with pytest.raises(WireError, match="surrogate"):
        encode(Command(0, remark="\ud800", codec=codec))
