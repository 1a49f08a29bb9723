"""A message for people and for programs."""

from __future__ import annotations

import base64

import pytest

from orbitmq.cli.message_view import as_document, one_line, print_message
from orbitmq.wire.compression import Compression, compress
from orbitmq.wire.message import Message, decode_record, encode_record
from orbitmq.wire.properties import encode_properties


def message(body: bytes = b"hello", sys_flag: int = 0, **properties: str) -> Message:
    record = encode_record(
        topic="TopicA",
        body=body,
        properties=encode_properties({"UNIQ_KEY": "AB" * 16, **properties}),
        queue_id=3,
        queue_offset=5,
        physical_offset=1024,
        sys_flag=sys_flag,
        born_ms=1_700_000_000_000,
        born_host="10.0.0.1:5555",
        store_ms=1_700_000_000_001,
        store_host="10.0.0.2:10911",
    )
    return decode_record(record)


def test_every_field_is_in_the_document() -> None:
    document = as_document(message(TAGS="TagA", KEYS="k1 k2", region="eu"))
    assert document["msg_id"] == "AB" * 16
    assert document["offset_msg_id"] == "0A00000200002A9F0000000000000400"
    assert (document["queue_id"], document["queue_offset"]) == (3, 5)
    assert (document["tag"], document["keys"]) == ("TagA", ["k1", "k2"])
    assert (document["born_host"], document["store_ms"]) == ("10.0.0.1:5555", 1_700_000_000_001)
    assert document["properties"]["region"] == "eu"
    assert document["body"] == "hello"


def test_compressed_bodies_are_shown_as_they_were_sent() -> None:
    packed = message(compress(b"a" * 9000, Compression.ZLIB), Compression.ZLIB.sys_flag)
    assert as_document(packed)["body"] == "a" * 9000


@pytest.mark.parametrize("body", [b"\xff\xfe\x00", b"\x1b[2Jgone"])
def test_bytes_that_are_not_text_never_reach_the_terminal(
    body: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    document = as_document(message(body))
    assert base64.b64decode(document["body_base64"]) == body
    assert "body" not in document
    print_message(message(body))
    assert "\x1b" not in capsys.readouterr().out + one_line(message(body))


def test_a_body_that_cannot_be_decompressed_is_shown_as_stored_with_the_reason() -> None:
    broken = message(b"not zlib", Compression.ZLIB.sys_flag)
    document = as_document(broken)
    assert document["body"] == "not zlib"
    assert "decompressed" in document["body_problem"]


def test_a_line_names_place_tag_keys_and_shortens_the_body() -> None:
    line = one_line(message(b"first\nsecond" + b"x" * 500, TAGS="TagA", KEYS="k1"))
    assert "  3@5  [TagA]  #k1  first second" in line
    assert line.endswith("…")
    assert len(line) < 300


def test_the_long_form_names_user_properties_but_not_the_systems(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_message(message(region="eu", WAIT="true"))
    out = capsys.readouterr().out
    assert "property region" in out
    assert "WAIT" not in out
    assert out.endswith("hello\n")
