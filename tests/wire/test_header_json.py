from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire import header_json
from orbitmq.wire.errors import WireError
from orbitmq.wire.headers import PullHeader, SendHeader, SendHeaderV2, UpdateOffsetHeader, parse, to_ext

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def test_key_order_and_absent_fields() -> None:
    assert header_json.encode(0, 1, 5, {}, None, "PYTHON", 407) == (
        b'{"code":0,"flag":1,"language":"PYTHON","opaque":5,"serializeTypeCurrentRPC":"JSON","version":407}'
    )
    assert header_json.encode(1, 1, 5, {"a": "b"}, "why", "PYTHON", 407) == (
        b'{"code":1,"extFields":{"a":"b"},"flag":1,"language":"PYTHON","opaque":5,"remark":"why",'
        b'"serializeTypeCurrentRPC":"JSON","version":407}'
    )
    assert header_json.encode(1, 1, 5, {}, 'a"\n\x01', "PYTHON", 407) == (
        b'{"code":1,"flag":1,"language":"PYTHON","opaque":5,"remark":"a\\"\\n\\u0001",'
        b'"serializeTypeCurrentRPC":"JSON","version":407}'
    )


@given(
    INT32,
    INT32,
    INT32,
    st.dictionaries(st.text(), st.text(), max_size=6),
    st.none() | st.text(),
    st.text(max_size=8),
    INT32,
)
def test_written_headers_are_strict_json_without_white_space(
    code: int, flag: int, opaque: int, ext: dict[str, str], remark: str | None, language: str, version: int
) -> None:
    data = header_json.encode(code, flag, opaque, ext, remark, language, version)
    tree = json.loads(data)
    assert list(tree) == sorted(tree)
    assert msgspec.json.encode(tree) == data
    assert header_json.decode(data) == (code, flag, opaque, ext, remark, language, version)


JSON_SCALARS = st.none() | st.booleans() | INT64 | st.text(max_size=12)
LOOSE_HEADERS = st.fixed_dictionaries(
    {"code": st.integers(0, 400) | st.just("11")},
    optional={
        "flag": INT32 | st.none(),
        "opaque": INT32 | st.just("77"),
        "extFields": st.none() | st.dictionaries(st.text(max_size=6), JSON_SCALARS, max_size=5),
        "language": st.sampled_from(["JAVA", "GO", "COBOL", 0, 9, 99, None]),
        "version": INT32,
        "remark": st.none() | st.text(max_size=10),
        "serializeTypeCurrentRPC": st.sampled_from(["JSON", "ROCKETMQ"]),
        "unknown": st.lists(JSON_SCALARS, max_size=3),
    },
)


@given(LOOSE_HEADERS, st.sampled_from([None, 2]))
def test_fast_and_tolerant_reading_agree(tree: dict[str, Any], indent: int | None) -> None:
    data = json.dumps(tree, indent=indent).encode()
    assert header_json.decode(data) == header_json.decode_tolerant(data)


def test_values_java_tolerates_in_ext_fields() -> None:
    data = b'{"code":11,"extFields":{"i":5,"t":true,"f":false,"n":null,"d":1.5,"o":{"a":1}},"opaque":1}'
    assert header_json.decode(data)[3] == {"i": "5", "t": "true", "f": "false", "d": "1.5", "o": '{"a":1}'}


def test_fastjson_liberties() -> None:
    data = b'{code:11, \'opaque\':1, "extFields":{"properties":"a\x01b\x02"}}'
    code, _, opaque, ext, *_ = header_json.decode(data)
    assert (code, opaque, ext) == (11, 1, {"properties": "a\x01b\x02"})


@pytest.mark.parametrize("written", ['"7"', '" 7 "', "7.0", '"7.0"', '"70e-1"', '"0.7e1"'])
def test_numbers_written_in_another_way(written: str) -> None:
    assert header_json.decode(b'{"code":11,"opaque":%b}' % written.encode())[2] == 7


def test_absent_fields_have_javas_defaults() -> None:
    assert header_json.decode(b'{"code":11}') == (11, 0, 0, {}, None, "OTHER", 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"code":null}',
        b'{"code":"x"}',
        b'{"code":true}',
        b'{"code":1.5}',
        b'{"code":"1.5"}',
        b'{"code":"1e999"}',
        b'{"code":"0x1"}',
        b'{"code":4294967296}',
        b'{"code":1,"opaque":99999999999}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1',
        b'{"code":1}}',
        b'\xff{"code":1}',
        b'{"code":1,"remark":"\\ud800"}',
        b'{"a":' * 5000,
        b"[" * 100000,
        b'{"code":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="command header"):
        header_json.decode(data)


@pytest.mark.parametrize("depth", [90, 500, 900, 940, 980, 2000, 100000])
def test_deep_nesting_never_escapes_as_another_error(depth: int) -> None:
    data = b'{"code":1,"extFields":{"a":' + b"[" * depth + b"]" * depth + b"}}"
    try:
        assert header_json.decode(data)[3] == {"a": "[" * depth + "]" * depth}
    except WireError as error:
        assert "nested" in str(error)


TEXT = st.text(max_size=20)
SENDS = st.builds(
    SendHeader,
    producer_group=TEXT,
    topic=TEXT,
    default_topic=TEXT,
    default_topic_queue_nums=INT32,
    queue_id=INT32,
    sys_flag=INT32,
    born_timestamp=INT64,
    flag=INT32,
    properties=TEXT,
    reconsume_times=INT32,
    unit_mode=st.booleans(),
    batch=st.booleans(),
    max_reconsume_times=st.none() | INT32,
)


def frame_header(code: int, ext: dict[str, str]) -> bytes:
    return header_json.encode(code, 2, 9, ext, None, "JAVA", 405)


@given(SENDS)
def test_hot_send_v2_agrees_with_the_plain_way(send: SendHeader) -> None:
    ext = to_ext(send.to_v2())
    hot = header_json.SEND_V2.decode(frame_header(310, ext))
    assert (hot.code, hot.flag, hot.opaque, hot.version) == (310, 2, 9, 405)
    plain = parse(SendHeaderV2, ext)
    for letter in "abcdefghijklm":
        assert getattr(hot.extFields, letter) == getattr(plain, letter)
    assert plain.to_v1() == send


@given(SENDS)
def test_hot_send_v1_agrees_with_the_plain_way(send: SendHeader) -> None:
    ext = to_ext(send)
    hot = header_json.SEND_V1.decode(frame_header(10, ext))
    assert (hot.code, hot.flag, hot.opaque, hot.version) == (10, 2, 9, 405)
    plain = parse(SendHeader, ext)
    for name in hot.extFields.__struct_fields__:
        assert getattr(hot.extFields, name) == getattr(plain, name)
    assert plain == send


@given(
    st.builds(
        PullHeader,
        consumer_group=TEXT,
        topic=TEXT,
        queue_id=INT32,
        queue_offset=INT64,
        max_msg_nums=INT32,
        sys_flag=INT32,
        commit_offset=INT64,
        suspend_timeout_millis=INT64,
        sub_version=INT64,
        subscription=st.none() | TEXT,
        expression_type=st.none() | st.sampled_from(["TAG", "SQL92", "null"]),
        page_bytes=INT32,
        page_parts=INT32,
    )
)
def test_hot_pull_agrees_with_the_plain_way(pull: PullHeader) -> None:
    ext = to_ext(pull)
    hot = header_json.PULL.decode(frame_header(11, ext))
    assert (hot.code, hot.flag, hot.opaque, hot.version) == (11, 2, 9, 405)
    for name in hot.extFields.__struct_fields__:
        assert getattr(hot.extFields, name) == getattr(pull, name)
    assert parse(PullHeader, ext) == pull


@given(
    st.builds(UpdateOffsetHeader, consumer_group=TEXT, topic=TEXT, queue_id=INT32, commit_offset=INT64),
)
def test_hot_offset_agrees_with_the_plain_way(update: UpdateOffsetHeader) -> None:
    ext = to_ext(update)
    hot = header_json.OFFSET.decode(frame_header(15, ext))
    for name in hot.extFields.__struct_fields__:
        assert getattr(hot.extFields, name) == getattr(update, name)
    assert parse(UpdateOffsetHeader, ext) == update


@pytest.mark.parametrize(
    "ext",
    [
        {"queueId": ""},
        {"queueId": "x"},
        {"queueId": "99999999999"},
        {"commitOffset": "9223372036854775808"},
        {"topic": None},
    ],
)
def test_hot_decoders_leave_the_unusual_to_the_plain_way(ext: dict[str, Any]) -> None:
    good = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
    data = json.dumps({"code": 15, "opaque": 1, "extFields": good | ext}).encode()
    with pytest.raises(header_json.HOT_ERRORS):
        header_json.OFFSET.decode(data)


def test_hot_errors_cover_what_msgspec_raises() -> None:
    deep = b'{"code":15,"x":' + b"[" * 100000
    for data in (b"", b"{", b"\xff", b'{"code":1,"extFields":{"topic":"\xff"}}', b'{"code":15}', deep):
        with pytest.raises(header_json.HOT_ERRORS):
            header_json.OFFSET.decode(data)
    assert issubclass(msgspec.ValidationError, header_json.HOT_ERRORS)
