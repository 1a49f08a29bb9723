"""Cutting the answer to a pull into records without decoding them."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from orbitmq.client.errors import OrbitMQError
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.message import FIXED_BYTES, MESSAGE_MAGIC, RecordKind, check_record

# Size, magic, queue offset, sysFlag and body length of a record with IPv4 hosts.
_HEAD: Final = Struct(">iI12xq8xi44xi")
_V6_FLAGS: Final = SysFlag.BORN_V6 | SysFlag.STORE_V6


class Page(NamedTuple):
    """Where the records of a page begin, which queue offsets they have and how large they are."""

    starts: list[int]
    offsets: list[int]
    sizes: list[int]


def cut(buf: bytes) -> Page:
    """Finds the records of a page. A bad one is an error: going on behind it would lose messages unseen."""
    starts: list[int] = []
    offsets: list[int] = []
    sizes: list[int] = []
    pos, end = 0, len(buf)
    unpack, add_start, add_offset, add_size = _HEAD.unpack_from, starts.append, offsets.append, sizes.append
    while pos < end:
        if end - pos < FIXED_BYTES:
            raise _bad(buf, pos)
        size, magic, offset, sys_flag, body_length = unpack(buf, pos)
        if magic == MESSAGE_MAGIC and not sys_flag & _V6_FLAGS:
            if size > end - pos or not 0 <= body_length <= size - FIXED_BYTES:
                raise _bad(buf, pos)
        elif check_record(buf, pos, end, check_crc=False).kind != RecordKind.MESSAGE:
            raise _bad(buf, pos)
        add_start(pos)
        add_offset(offset)
        add_size(size)
        pos += size
    return Page(starts, offsets, sizes)


def _bad(buf: bytes, pos: int) -> OrbitMQError:
    reason = check_record(buf, pos, len(buf), check_crc=False).reason or "the bytes there are no message"
    return OrbitMQError(
        f"no readable message at byte {pos} of a pulled page: {reason}",
        hint="check the broker's store with `orbitmq store verify`",
    )
