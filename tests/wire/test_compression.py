from __future__ import annotations

import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.codes import SysFlag
from orbitmq.wire.compression import Compression, compress, compression_of, decompress
from orbitmq.wire.errors import WireError

LIMIT = 100_000
kinds = pytest.mark.parametrize("kind", list(Compression))


def zstd_without_size(body: bytes) -> bytes:
    """As Java writes it: the frame does not say how long it becomes."""
    return zstandard.ZstdCompressor(level=5, write_content_size=False).compress(body)


@given(st.binary(max_size=2000), st.sampled_from(Compression), st.integers(1, 9))
def test_round_trip(body: bytes, kind: Compression, level: int) -> None:
    assert decompress(compress(body, kind, level), kind.sys_flag, LIMIT) == body


def test_sys_flags() -> None:
    assert [kind.sys_flag for kind in (Compression.LZ4, Compression.ZSTD, Compression.ZLIB)] == [
        0x101,
        0x201,
        0x301,
    ]
    assert compression_of(0x100) is None
    assert compression_of(0x31 | SysFlag.COMPRESSION_LZ4) is Compression.LZ4


def test_zlib_without_type_bits_comes_from_old_clients() -> None:
    packed = compress(b"hello" * 100, Compression.ZLIB)
    assert packed[:2] == b"\x78\x5e"
    assert decompress(packed, SysFlag.COMPRESSED, LIMIT) == b"hello" * 100


def test_plain_bodies_are_left_alone() -> None:
    body = b"plain"
    assert decompress(body, SysFlag.TX_COMMIT, 0) is body


@pytest.mark.parametrize("bits", [0x400, 0x500, 0x600, 0x700])
def test_unknown_kinds_are_refused(bits: int) -> None:
    with pytest.raises(WireError, match="not known"):
        decompress(b"", SysFlag.COMPRESSED | bits, LIMIT)


def test_lz4_blocks_are_independent() -> None:
    # The Java reader stops at linked blocks.
    frame = compress(bytes(1_000_000), Compression.LZ4)
    assert lz4.frame.get_frame_info(frame)["block_linked"] is False


@kinds
def test_bombs_are_refused(kind: Compression) -> None:
    bomb = compress(bytes(50 * LIMIT), kind, 9)
    assert len(bomb) < LIMIT
    with pytest.raises(WireError, match=f"more than the limit of {LIMIT} bytes"):
        decompress(bomb, kind.sys_flag, LIMIT)


def test_zstd_bombs_that_hide_their_size_are_refused() -> None:
    with pytest.raises(WireError, match="more than the limit"):
        decompress(zstd_without_size(bytes(50 * LIMIT)), Compression.ZSTD.sys_flag, LIMIT)


def test_zstd_frames_asking_for_a_huge_window_are_refused() -> None:
    # Magic, descriptor without content size, window descriptor for 2 GiB, one empty last block.
    frame = bytes.fromhex("28B52FFD 00 A8 010000")
    with pytest.raises(WireError, match="cannot be decompressed"):
        decompress(frame, Compression.ZSTD.sys_flag, LIMIT)


@kinds
def test_the_limit_itself_is_allowed(kind: Compression) -> None:
    body = bytes(range(250)) * 40
    packed = compress(body, kind)
    assert decompress(packed, kind.sys_flag, len(body)) == body
    with pytest.raises(WireError, match="more than the limit"):
        decompress(packed, kind.sys_flag, len(body) - 1)


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 64])
def test_zstd_without_content_size_is_read(body: bytes) -> None:
    packed = zstd_without_size(body)
    assert decompress(packed, Compression.ZSTD.sys_flag, len(body)) == body
    with pytest.raises(WireError, match=r"ends in the middle|cannot be decompressed"):
        decompress(packed[:-1], Compression.ZSTD.sys_flag, LIMIT)


@given(st.binary(min_size=1, max_size=500), st.sampled_from(Compression), st.data())
def test_cut_bodies_are_refused(body: bytes, kind: Compression, data: st.DataObject) -> None:
    packed = compress(body, kind)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(WireError):
        decompress(packed[:cut], kind.sys_flag, LIMIT)


@given(st.binary(max_size=100), st.sampled_from(Compression))
def test_garbage_is_refused_cleanly(body: bytes, kind: Compression) -> None:
    magic = {
        Compression.LZ4: b"\x04\x22\x4d\x18",
        Compression.ZSTD: b"\x28\xb5\x2f\xfd",
        Compression.ZLIB: b"\x78\x5e",
    }
    for data in (body, magic[kind] + body):
        try:
            plain = decompress(data, kind.sys_flag, LIMIT)
        except WireError:
            continue
        assert len(plain) <= LIMIT


def test_names() -> None:
    assert Compression.named(" zstd") is Compression.ZSTD
    with pytest.raises(WireError, match="choose zlib, lz4 or zstd"):
        Compression.named("gzip")


def test_zlib_output_is_what_every_reader_takes() -> None:
    assert zlib.decompress(compress(b"abc", Compression.ZLIB)) == b"abc"
