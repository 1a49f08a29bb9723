from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.checksum import crc32


@given(st.binary(max_size=4096))
def test_is_the_crc_without_its_sign_bit(body: bytes) -> None:
    assert crc32(body) == zlib.crc32(body) & 0x7FFFFFFF
    assert crc32(memoryview(body)) == crc32(body)


def test_of_the_reference_body() -> None:
    assert crc32(b"hi") == 1486039724
