"""The message record: one layout for the commit log, pull and query answers and transaction checks.

Every length comes from a peer or from a disk that may have lost a write, so each is compared with the bytes
really there before it is used. encode_record and decode_record are the plain reference of the layout; faster
writers elsewhere are tested against them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from mmap import mmap
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from orbitmq.wire.checksum import crc32
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.compression import DEFAULT_LIMIT_BYTES, decompress
from orbitmq.wire.errors import WireError
from orbitmq.wire.message_id import HOST_V4_BYTES, HOST_V6_BYTES, offset_msg_id, pack_host, unpack_host
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES, Prop, decode_properties, split_keys

MESSAGE_MAGIC = 0xDAA320A7
# Written by 5.x for topics above 127 bytes: the topic length takes two bytes.
MESSAGE_MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194

MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
FLAG_AT = 16
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_MS_AT = 40
BORN_HOST_AT = 48
STORE_MS_AT = 56  # with an IPv4 born host, 12 later otherwise

# Total size of a record less its body, topic and properties, with IPv4 hosts.
FIXED_BYTES = 91
BLANK_BYTES = 8
MAX_TOPIC_BYTES = 127
V6_EXTRA_BYTES = HOST_V6_BYTES - HOST_V4_BYTES

_V6_FLAGS = SysFlag.BORN_V6 | SysFlag.STORE_V6
_V6_SHIFT = 4


def _head(born_host: int, store_host: int) -> Struct:
    return Struct(f">iIIiiqqiq{born_host}sq{store_host}siqi")


HEADS = (
    _head(HOST_V4_BYTES, HOST_V4_BYTES),
    _head(HOST_V6_BYTES, HOST_V4_BYTES),
    _head(HOST_V4_BYTES, HOST_V6_BYTES),
    _head(HOST_V6_BYTES, HOST_V6_BYTES),
)
"""totalSize … bodyLength, indexed by the two IPv6 bits of the sysFlag."""
HEAD = HEADS[0]

BLANK = Struct(">iI")
_BYTE = Struct(">b")
_SHORT = Struct(">h")

Buffer = bytes | bytearray | memoryview | mmap


class RecordProblem(WireError):
    """The bytes at a place where a record should be are not one."""


class RecordKind(IntEnum):
    MESSAGE = 0
    BLANK = 1
    """The rest of the file is unused, records go on in the next one."""
    END = 2
    """Nothing was ever written here."""
    BAD = 3


class RecordCheck(NamedTuple):
    kind: RecordKind
    size: int
    """Bytes to the next record; 0 where the record gives no size that can be trusted."""
    reason: str = ""


@dataclass(slots=True)
class Message:
    topic: str
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int
    born_host_bytes: bytes
    store_ms: int
    store_host_bytes: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    """As stored; decoded_body() undoes compression."""
    body_crc: int
    properties_raw: bytes
    size: int
    # Most readers want few properties of few messages, so the text is only taken apart when asked for.
    _properties: dict[str, str] | None = field(default=None, repr=False, compare=False)

    @property
    def properties(self) -> dict[str, str]:
        if self._properties is None:
            self._properties = decode_properties(self.properties_raw)
        return self._properties

    @property
    def born_host(self) -> str:
        return unpack_host(self.born_host_bytes)

    @property
    def store_host(self) -> str:
        return unpack_host(self.store_host_bytes)

    @property
    def tags(self) -> str | None:
        return self.properties.get(Prop.TAGS)

    @property
    def keys(self) -> str | None:
        return self.properties.get(Prop.KEYS)

    @property
    def key_list(self) -> list[str]:
        return split_keys(self.keys)

    @property
    def offset_msg_id(self) -> str:
        return offset_msg_id(self.store_host_bytes, self.physical_offset)

    @property
    def msg_id(self) -> str:
        """The producer's unique id; the offset id for messages written without one."""
        return self.properties.get(Prop.UNIQ_KEY) or self.offset_msg_id

    @property
    def transaction_type(self) -> int:
        return self.sys_flag & SysFlag.TX_MASK

    def decoded_body(self, limit: int = DEFAULT_LIMIT_BYTES) -> bytes:
        return decompress(self.body, self.sys_flag, limit)


def encode_record(
    *,
    topic: str | bytes,
    body: bytes,
    properties: bytes = b"",
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    sys_flag: int = 0,
    born_ms: int = 0,
    born_host: str | bytes = "0.0.0.0:0",
    store_ms: int = 0,
    store_host: str | bytes = "0.0.0.0:0",
    reconsume_times: int = 0,
    prepared_offset: int = 0,
    magic: int = MESSAGE_MAGIC,
) -> bytes:
    """One record. The IPv6 bits of the sysFlag follow the hosts given, whatever the caller set."""
    topic_bytes = topic if isinstance(topic, bytes) else topic.encode("utf-8", "replace")
    born = born_host if isinstance(born_host, bytes) else pack_host(born_host)
    store = store_host if isinstance(store_host, bytes) else pack_host(store_host)
    topic_limit = MAX_TOPIC_BYTES if magic == MESSAGE_MAGIC else 0x7FFF
    if len(topic_bytes) > topic_limit:
        raise WireError(
            f"the topic takes {len(topic_bytes)} bytes; the limit is {topic_limit}, use a shorter name"
        )
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise WireError(
            f"the properties take {len(properties)} bytes; the limit is {MAX_PROPERTIES_BYTES}, shorten them"
        )
    sys_flag = sys_flag & ~_V6_FLAGS | _v6_bit(born, SysFlag.BORN_V6) | _v6_bit(store, SysFlag.STORE_V6)
    head = HEADS[(sys_flag & _V6_FLAGS) >> _V6_SHIFT]
    topic_length_bytes = 1 if magic == MESSAGE_MAGIC else 2
    size = head.size + len(body) + topic_length_bytes + len(topic_bytes) + _SHORT.size + len(properties)
    try:
        fixed = head.pack(
            *(size, magic, crc32(body), queue_id, flag, queue_offset, physical_offset, sys_flag),
            *(born_ms, born, store_ms, store, reconsume_times, prepared_offset, len(body)),
        )
    except StructError as error:
        raise WireError(f"a message of topic {topic!r} cannot be encoded: {error}") from error
    return b"".join(
        (
            fixed,
            body,
            len(topic_bytes).to_bytes(topic_length_bytes, "big"),
            topic_bytes,
            _SHORT.pack(len(properties)),
            properties,
        )
    )


def _v6_bit(host: bytes, bit: int) -> int:
    if len(host) not in (HOST_V4_BYTES, HOST_V6_BYTES):
        raise WireError(f"a host takes {HOST_V4_BYTES} or {HOST_V6_BYTES} bytes, not {len(host)}")
    return bit if len(host) == HOST_V6_BYTES else 0


def encode_blank(size: int) -> bytes:
    """The marker that leaves the last size bytes of a file unused."""
    if size < BLANK_BYTES:
        raise WireError(f"a blank marker takes {BLANK_BYTES} bytes, only {size} are left in the file")
    return BLANK.pack(size, BLANK_MAGIC)


def _open(buf: Buffer, pos: int, limit: int) -> tuple[tuple[Any, ...], int, int, int, int] | str:
    """The record at pos if its lengths agree, or what is wrong with them. The body is not looked at.

    Gives the fields of the head, then where the body begins and ends, where the topic begins and ends.
    """
    room = limit - pos
    if room < FIXED_BYTES:
        return f"{max(room, 0)} bytes are left, a record takes at least {FIXED_BYTES}"
    head = HEAD.unpack_from(buf, pos)
    size, magic, sys_flag = head[0], head[1], head[7]
    fixed = FIXED_BYTES
    if magic == MESSAGE_MAGIC:
        topic_length_bytes = 1
    elif magic == MESSAGE_MAGIC_V2:
        topic_length_bytes = 2
        fixed += 1
    else:
        return f"magic is {magic:#010x}, not that of a message"
    layout = HEADS[(sys_flag & _V6_FLAGS) >> _V6_SHIFT]
    fixed += layout.size - HEAD.size
    if not fixed <= size <= room:
        return f"size is given as {size}, possible are {fixed} to {room}"
    if layout is not HEAD:
        head = layout.unpack_from(buf, pos)
    body_length = head[14]
    spare = size - fixed
    if not 0 <= body_length <= spare:
        return f"body length is given as {body_length}, the record has room for {spare}"
    spare -= body_length
    body_at = pos + layout.size
    body_end = body_at + body_length
    topic_at = body_end + topic_length_bytes
    # Java reads the length as a signed byte, so above 127 no one could read the record.
    topic_length = (_BYTE if topic_length_bytes == 1 else _SHORT).unpack_from(buf, body_end)[0]
    if not 0 <= topic_length <= spare:
        return f"topic length is given as {topic_length}, the record has room for {spare}"
    topic_end = topic_at + topic_length
    properties_length = _SHORT.unpack_from(buf, topic_end)[0]
    if properties_length != spare - topic_length:
        return (
            f"body {body_length}, topic {topic_length} and properties {properties_length} do not add up "
            f"to the given size {size}"
        )
    return head, body_at, body_end, topic_at, topic_end


def check_record(buf: Buffer, pos: int, limit: int, check_crc: bool = True) -> RecordCheck:
    """What lies at pos of a log file whose bytes end at limit. Never raises for what the bytes hold.

    limit has to be the end of the file, or a blank marker, which reaches up to there, counts as bad.
    """
    limit = min(limit, len(buf))
    if pos < 0:
        return RecordCheck(RecordKind.BAD, 0, f"position {pos} is negative")
    room = limit - pos
    if room < BLANK_BYTES:
        if room <= 0 or not any(buf[pos:limit]):
            return RecordCheck(RecordKind.END, 0)
        return RecordCheck(RecordKind.BAD, 0, f"{room} bytes are left, not even a blank marker fits")
    size, magic = BLANK.unpack_from(buf, pos)
    if magic == BLANK_MAGIC:
        if BLANK_BYTES <= size <= room:
            return RecordCheck(RecordKind.BLANK, size)
        return RecordCheck(RecordKind.BAD, 0, f"a blank marker gives its size as {size} of {room} bytes left")
    if size == 0 and magic == 0:
        return RecordCheck(RecordKind.END, 0)
    opened = _open(buf, pos, limit)
    if isinstance(opened, str):
        return RecordCheck(RecordKind.BAD, 0, opened)
    if check_crc:
        head, body_at, body_end, _, _ = opened
        problem = _crc_problem(buf[body_at:body_end], head[2])
        if problem:
            # The lengths agree, so the place of the next record is known all the same.
            return RecordCheck(RecordKind.BAD, size, problem)
    return RecordCheck(RecordKind.MESSAGE, size)


def _crc_problem(body: bytes | bytearray | memoryview, stored: int) -> str:
    # Java does not check empty bodies, and some writers leave any number there.
    if not body:
        return ""
    real = crc32(body)
    return "" if real == stored else f"the body's checksum is {real}, the record says {stored}"


def decode_record(buf: Buffer, pos: int = 0, check_crc: bool = True) -> Message:
    """The message at pos; RecordProblem if there is no sound one."""
    opened = _open(buf, pos, len(buf)) if pos >= 0 else "the position is negative"
    if isinstance(opened, str):
        raise RecordProblem(f"no readable message at byte {pos}: {opened}")
    head, body_at, body_end, topic_at, topic_end = opened
    size, _, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag = head[:8]
    born_ms, born_host, store_ms, store_host, reconsume_times, prepared_offset = head[8:14]
    body = bytes(buf[body_at:body_end])
    if check_crc:
        problem = _crc_problem(body, body_crc)
        if problem:
            raise RecordProblem(
                f"the message at byte {pos} is damaged: {problem}; read it from a replica if there is one"
            )
    return Message(
        str(buf[topic_at:topic_end], "utf-8", "replace"),
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        body,
        body_crc,
        bytes(buf[topic_end + _SHORT.size : pos + size]),
        size,
    )


def decode_records(body: bytes, check_crc: bool = True) -> list[Message]:
    """All messages of a pull or query answer. A bad one is an error: skipping would lose messages unseen."""
    messages: list[Message] = []
    pos = 0
    end = len(body)
    while pos < end:
        message = decode_record(body, pos, check_crc)
        messages.append(message)
        pos += message.size
    return messages
