"""Compressed bodies: zlib, LZ4 frames and zstd, told apart by bits of the sysFlag.

The reader never takes more memory than its limit asks for, whatever a peer's frame promises.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Protocol

import lz4.frame
import zstandard

from orbitmq.wire.codes import SysFlag
from orbitmq.wire.errors import WireError

DEFAULT_LEVEL = 5
# Bodies are limited to 4 MiB by default and the limit is applied before compressing; brokers can raise it.
DEFAULT_LIMIT_BYTES = 64 * 1024 * 1024

# Every encoder keeps within this up to level 19; a frame asking for more makes the reader take memory.
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
_TYPE_SHIFT = 8


class Compression(IntEnum):
    """The numbers are those of the sysFlag's compression bits."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3

    @property
    def sys_flag(self) -> int:
        """The bits to set on a message whose body is compressed this way."""
        return SysFlag.COMPRESSED | self << _TYPE_SHIFT

    @classmethod
    def named(cls, name: str) -> Compression:
        try:
            return cls[name.strip().upper()]
        except KeyError:
            raise WireError(f"compression {name!r} is not known; choose zlib, lz4 or zstd") from None


def compression_of(sys_flag: int) -> Compression | None:
    """How a body with this sysFlag is compressed, None if it is not."""
    if not sys_flag & SysFlag.COMPRESSED:
        return None
    number = (sys_flag & SysFlag.COMPRESSION_MASK) >> _TYPE_SHIFT
    if number > Compression.ZLIB:
        raise WireError(
            f"sysFlag {sys_flag:#x} names compression {number}, which is not known; "
            "the message was sent by a newer or broken client"
        )
    # No type bits: clients before 4.9.4 and the Go client, which only know zlib.
    return Compression(number) if number else Compression.ZLIB


def compress(body: bytes, kind: Compression, level: int = DEFAULT_LEVEL) -> bytes:
    if kind is Compression.ZLIB:
        return zlib.compress(body, level)
    if kind is Compression.LZ4:
        # The Java reader refuses frames with linked blocks.
        packed: bytes = lz4.frame.compress(body, compression_level=level, block_linked=False)
        return packed
    return zstandard.ZstdCompressor(level=level).compress(body)


def decompress(body: bytes, sys_flag: int, limit: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """The body as the producer gave it; a body that is not compressed comes back as it is."""
    kind = compression_of(sys_flag)
    if kind is None:
        return body
    try:
        if kind is Compression.ZLIB:
            return _decompress_stream(zlib.decompressobj(), body, limit, kind)
        if kind is Compression.LZ4:
            return _decompress_stream(lz4.frame.LZ4FrameDecompressor(), body, limit, kind)
        return _decompress_zstd(body, limit)
    except (zlib.error, zstandard.ZstdError, RuntimeError) as error:
        raise WireError(
            f"the body is marked as {kind.name.lower()} but cannot be decompressed: {error}; "
            "it was damaged or its sysFlag is wrong"
        ) from error


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _decompress_stream(stream: _Decompressor, body: bytes, limit: int, kind: Compression) -> bytes:
    # One byte more than allowed tells a body that just fits from one that goes on.
    plain = stream.decompress(body, limit + 1)
    if len(plain) > limit:
        raise _too_large(kind, body, limit)
    if not stream.eof:
        raise _cut_off(kind, body)
    return plain


def _decompress_zstd(body: bytes, limit: int) -> bytes:
    # The promised size is used as it stands for the output buffer, so it is judged first. Java writes frames
    # without one (-1).
    promised = zstandard.frame_content_size(body)
    if promised > limit:
        raise _too_large(Compression.ZSTD, body, limit)
    reader = zstandard.ZstdDecompressor(max_window_size=max(_ZSTD_WINDOW_BYTES, limit))
    try:
        plain = reader.decompress(body, max_output_size=limit + 1, allow_extra_data=True)
    except zstandard.ZstdError as error:
        # The library says the same for a frame that ends early and for one that outgrows the buffer.
        if "full frame" not in str(error):
            raise
        if promised < 0 and _goes_beyond(reader, body, limit):
            raise _too_large(Compression.ZSTD, body, limit) from error
        raise _cut_off(Compression.ZSTD, body) from error
    if len(plain) > limit:
        raise _too_large(Compression.ZSTD, body, limit)
    return plain


def _goes_beyond(reader: zstandard.ZstdDecompressor, body: bytes, limit: int) -> bool:
    with reader.stream_reader(body) as stream:
        return len(stream.read(limit + 1)) > limit


def _too_large(kind: Compression, body: bytes, limit: int) -> WireError:
    return WireError(
        f"a {kind.name.lower()} body of {len(body)} bytes holds more than the limit of {limit} bytes; "
        "if such bodies are expected raise the limit, otherwise the sender may be hostile"
    )


def _cut_off(kind: Compression, body: bytes) -> WireError:
    return WireError(
        f"a {kind.name.lower()} body of {len(body)} bytes ends in the middle of its compressed data; "
        "it was damaged or cut by its sender"
    )
