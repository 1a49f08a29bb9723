from __future__ import annotations

import struct

import pytest

from orbitmq.wire import header_binary
from orbitmq.wire.errors import WireError


def header(ext: bytes, *, language: int = 0, remark: bytes = b"", ext_size: int | None = None) -> bytes:
    size = len(ext) if ext_size is None else ext_size
    fixed = struct.pack(">hBhiii", 10, language, 407, 7, 0, len(remark))
    return fixed + remark + struct.pack(">i", size) + ext


def entry(key: bytes, value: bytes) -> bytes:
    return struct.pack(">H", len(key)) + key + struct.pack(">i", len(value)) + value


def ext_of(data: bytes) -> dict[str, str]:
    return header_binary.decode(data)[3]


def test_the_last_of_two_equal_keys_wins() -> None:
    assert ext_of(header(entry(b"a", b"1") + entry(b"a", b"2"))) == {"a": "2"}


def test_an_empty_value_is_an_absent_one() -> None:
    assert ext_of(header(entry(b"a", b"") + entry(b"b", b"x"))) == {"b": "x"}


def test_an_empty_remark_is_none() -> None:
    assert header_binary.decode(header(b""))[4] is None
    assert header_binary.decode(header(b"", remark=b"why"))[4] == "why"
    assert header_binary.decode(header_binary.encode(1, 1, 2, {}, "", "JAVA", 407))[4] is None


def test_an_unknown_language_is_other() -> None:
    assert header_binary.decode(header(b"", language=99))[5] == "OTHER"
    data = header_binary.encode(1, 1, 2, {}, None, "COBOL", 407)
    assert header_binary.decode(data)[5] == "OTHER"


def test_codes_are_signed() -> None:
    data = header_binary.encode(-1, 0, 2, {}, None, "JAVA", 407)
    assert header_binary.decode(data)[0] == -1


def test_a_header_may_end_before_its_ext_length() -> None:
    assert header_binary.decode(header(b"")[:-4])[3] == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        header(b"")[:10],
        header(b"", ext_size=-1),
        header(b"", ext_size=5),
        header(b"\0"),
        header(b"\0\1"),
        header(b"\0\1a\0\0\0"),
        header(b"\0\1a\0\0\0\2x"),
        header(b"\0\1a\xff\xff\xff\xff"),
        header(b"\xff\xffa"),
        header(entry(b"a", b"\xff")),
        header(b"", remark=b"\xff"),
        struct.pack(">hBhiii", 10, 0, 407, 7, 0, -1),
        struct.pack(">hBhiii", 10, 0, 407, 7, 0, 100),
    ],
)
def test_lengths_that_lie_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="binary header"):
        header_binary.decode(data)


def test_what_does_not_fit_is_not_written() -> None:
    with pytest.raises(WireError, match="use JSON"):
        header_binary.encode(200050, 0, 0, {}, None, "JAVA", 407)
    with pytest.raises(WireError, match="ext key"):
        header_binary.encode(1, 0, 0, {"k" * 40000: "v"}, None, "JAVA", 407)
