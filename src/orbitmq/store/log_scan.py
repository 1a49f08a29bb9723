"""Read a commit-log file record by record: what recovery dispatches again, and what verify checks.

A scan stops at the first place without a sound record and says why. `resync` then looks for the next sound
one: damage in the middle of a file costs the records it hit, not those behind it.

Positions (`start`, `end`, `pos`) count from the beginning of the file, offsets from the beginning of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from mmap import mmap
from struct import Struct
from typing import NamedTuple

from orbitmq.wire.checksum import crc32
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.java_hash import string_hash
from orbitmq.wire.message import BLANK, BLANK_BYTES, BLANK_MAGIC, FIXED_BYTES, check_record
from orbitmq.wire.message import MESSAGE_MAGIC as MAGIC
from orbitmq.wire.message import MESSAGE_MAGIC_V2 as MAGIC_V2
from orbitmq.wire.properties import find_property
from orbitmq.wire.topics import SCHEDULE_TOPIC

FileBytes = bytes | mmap

_V6_FLAGS = SysFlag.BORN_V6 | SysFlag.STORE_V6
_TX_MASK = SysFlag.TX_MASK
_QUEUED_TYPES = (0, SysFlag.TX_COMMIT)


def _head(born_host: int, store_host: int) -> Struct:
    # size, magic, crc, queueId, queueOffset, physicalOffset, sysFlag, storeTimestamp, bodyLength
    return Struct(f">iIIi4xqqi8x{born_host}xq{store_host}x12xi")


_HEADS = (_head(8, 8), _head(20, 8), _head(8, 20), _head(20, 20))
_HEAD = _HEADS[0]
_HEAD_BYTES = _HEAD.size
_SHORT = Struct(">h")
_PHYSICAL_OFFSET = Struct(">q")
_PHYSICAL_OFFSET_AT = 28
# What the magics of both record layouts share; the fourth byte tells them apart.
_MAGIC_START = b"\xda\xa3\x20"
_MAGIC_ENDS = b"\xa7\xab"
_BLANK_MAGIC_BYTES = BLANK_MAGIC.to_bytes(4, "big")
_KNOWN_TOPICS = 8192
_FIND_BYTES = 1 << 20


class ScannedRecord(NamedTuple):
    """What queues and index need to know about a record."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    properties: bytes

    @property
    def is_queued(self) -> bool:
        """Half and rolled-back messages have no unit in a queue."""
        return self.sys_flag & _TX_MASK in _QUEUED_TYPES

    @property
    def is_indexed(self) -> bool:
        return self.sys_flag & _TX_MASK != SysFlag.TX_ROLLBACK

    @property
    def tags_code(self) -> int:
        """The tag's hash, 0 without one. (Queues of the schedule topic keep the delivery time instead.)"""
        tags = find_property(self.properties, b"TAGS")
        return string_hash(tags.decode("utf-8", "replace")) if tags else 0

    @property
    def delay_level(self) -> bytes | None:
        return find_property(self.properties, b"DELAY")

    def unit_code(self, levels_ms: tuple[int, ...]) -> int:
        """What the queue unit carries: the tag's hash, in the schedule topic the delivery time."""
        level_text = self.delay_level if self.topic == SCHEDULE_TOPIC else None
        if level_text is None:
            return self.tags_code
        level = int(level_text) if level_text.isdigit() else 0
        return self.store_ms + (levels_ms[level - 1] if 1 <= level <= len(levels_ms) else 1000)

    @property
    def keys(self) -> list[bytes]:
        """The keys under which the record is indexed, in their order: its unique id, then the user's."""
        # One pass instead of two searches: recovery asks this for every record.
        unique = user = b""
        for pair in self.properties.split(b"\x02"):
            name, _, value = pair.partition(b"\x01")
            if name == b"UNIQ_KEY":
                unique = value or unique
            elif name == b"KEYS":
                user = value or user
        found = [unique] if unique else []
        if user:
            found += [key for key in user.split(b" ") if key]
        return found

    @property
    def index_rows(self) -> list[tuple[bytes, bytes, int, int]]:
        """Rows for IndexService.add_rows; none for a record that is not indexed."""
        if not self.is_indexed:
            return []
        prefix = self.topic.encode() + b"#"
        return [(prefix, key, self.offset, self.store_ms) for key in self.keys]


class Stop(Enum):
    """Why a scan went no further."""

    END = "end"
    """All bytes asked for were read."""
    BLANK = "blank"
    """The rest of the file is unused; the log goes on in the next file."""
    ZEROS = "zeros"
    """Nothing was written here."""
    BAD = "bad"
    """There is something, but no sound record."""


class SegmentScan:
    """Iterate for the records; afterwards `pos`, `stop` and `problem` say where and why it ended."""

    __slots__ = ("_base", "_buf", "_check_crc", "_end", "_topics", "pos", "problem", "stop")

    def __init__(self, buf: FileBytes, base: int, start: int, end: int, check_crc: bool) -> None:
        self._buf = buf
        self._base = base
        self._end = min(end, len(buf))
        self._check_crc = check_crc
        self._topics: dict[bytes, str] = {}
        self.pos = start
        self.stop = Stop.END
        self.problem = ""

    def __iter__(self) -> Iterator[ScannedRecord]:
        buf, base, end, check_crc = self._buf, self._base, self._end, self._check_crc
        unpack_head, unpack_short, topics = _HEAD.unpack_from, _SHORT.unpack_from, self._topics
        pos = self.pos
        while end - pos >= FIXED_BYTES:
            size, magic, crc, queue_id, queue_offset, physical, sys_flag, store_ms, body_bytes = unpack_head(
                buf, pos
            )
            body_at = pos + _HEAD_BYTES
            if sys_flag & _V6_FLAGS:
                head = _HEADS[(sys_flag & _V6_FLAGS) >> 4]
                if end - pos < head.size + FIXED_BYTES - _HEAD_BYTES:
                    break
                store_ms, body_bytes = head.unpack_from(buf, pos)[7:]
                body_at = pos + head.size
            # Nothing below may read past the record's end, whatever its lengths claim.
            next_pos = pos + size
            topic_at = body_at + body_bytes
            if physical != base + pos or next_pos > end or body_bytes < 0 or topic_at + 3 > next_pos:
                break
            if magic == MAGIC:
                topic_bytes = buf[topic_at]
                topic_at += 1
            elif magic == MAGIC_V2:
                topic_bytes = unpack_short(buf, topic_at)[0]
                topic_at += 2
            else:
                break
            properties_at = topic_at + topic_bytes
            if topic_bytes < 0 or properties_at + 2 > next_pos or (magic == MAGIC and topic_bytes > 127):
                break
            properties_at += 2
            if unpack_short(buf, properties_at - 2)[0] != next_pos - properties_at:
                break
            if check_crc and body_bytes and crc32(buf[body_at : body_at + body_bytes]) != crc:
                break
            raw_topic = buf[topic_at : topic_at + topic_bytes]
            topic = topics.get(raw_topic)
            if topic is None:
                topic = self._remember_topic(raw_topic)
            properties = buf[properties_at:next_pos]
            self.pos = next_pos
            yield ScannedRecord(
                base + pos, size, topic, queue_id, queue_offset, sys_flag, store_ms, properties
            )
            pos = next_pos
        self._explain(pos)

    def _remember_topic(self, raw: bytes) -> str:
        if len(self._topics) >= _KNOWN_TOPICS:
            self._topics.clear()
        topic = self._topics[raw] = raw.decode("utf-8", "replace")
        return topic

    def _explain(self, pos: int) -> None:
        """The slow look at where the loop ended."""
        buf, end = self._buf, self._end
        self.pos = pos
        if pos >= end:
            return
        if end - pos < BLANK_BYTES:
            if any(buf[pos:end]):
                self._bad(f"{end - pos} bytes are left, not even a blank marker fits")
            return
        size, magic = BLANK.unpack_from(buf, pos)
        if magic == BLANK_MAGIC:
            if size == len(buf) - pos:
                self.stop = Stop.BLANK
            else:
                self._bad(
                    f"a blank marker gives its size as {size}, {len(buf) - pos} bytes are left in the file"
                )
        elif size == 0 and magic == 0:
            self.stop = Stop.ZEROS
        else:
            reason = check_record(buf, pos, end, self._check_crc).reason
            self._bad(reason or "the record names another place in the log as its own")

    def _bad(self, problem: str) -> None:
        self.stop = Stop.BAD
        self.problem = problem


def scan_segment(
    buf: FileBytes, base: int, start: int = 0, end: int | None = None, check_crc: bool = True
) -> SegmentScan:
    """The records of a log file that begins at offset `base`, from position `start` up to `end`."""
    return SegmentScan(buf, base, start, len(buf) if end is None else end, check_crc)


def read_record(buf: FileBytes, base: int, pos: int, check_crc: bool = True) -> ScannedRecord | None:
    """The sound record at this position, if there is one."""
    if not 0 <= pos < len(buf):
        return None
    return next(iter(SegmentScan(buf, base, pos, len(buf), check_crc)), None)


def resync(buf: FileBytes, base: int, pos: int, end: int | None = None) -> int | None:
    """The first position behind `pos` with a whole sound record or a fitting blank marker, if any.

    A record must carry its own offset, so a copy of a log inside a message's body is never mistaken for one.
    """
    limit = len(buf) if end is None else min(end, len(buf))
    record = _find_record(buf, base, pos + 1, limit)
    # A marker in front of the record found means that the record is a left-over behind the end of the file.
    blank = _find_blank(buf, pos + 1, limit if record is None else record)
    return record if blank is None else blank


def _find_record(buf: FileBytes, base: int, first: int, limit: int) -> int | None:
    for hit in _hits(buf, _MAGIC_START, first + 4, limit):
        pos = hit - 4
        if pos + FIXED_BYTES > limit:
            return None
        if (
            buf[hit + 3] in _MAGIC_ENDS
            and _PHYSICAL_OFFSET.unpack_from(buf, pos + _PHYSICAL_OFFSET_AT)[0] == base + pos
            and next(iter(SegmentScan(buf, base, pos, limit, True)), None) is not None
        ):
            return pos
    return None


def _find_blank(buf: FileBytes, first: int, limit: int) -> int | None:
    for hit in _hits(buf, _BLANK_MAGIC_BYTES, first + 4, limit):
        pos = hit - 4
        if BLANK.unpack_from(buf, pos)[0] == len(buf) - pos:
            return pos
    return None


def _hits(buf: FileBytes, needle: bytes, start: int, end: int) -> Iterator[int]:
    """Where the needle occurs. In pieces: mmap.find compares byte by byte, bytes.find is an order faster."""
    overlap = len(needle) - 1
    while start < end:
        piece = buf[start : min(start + _FIND_BYTES + overlap, end)]
        hit = piece.find(needle)
        while hit >= 0:
            yield start + hit
            hit = piece.find(needle, hit + 1)
        start += _FIND_BYTES
