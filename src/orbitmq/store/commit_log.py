"""The log: every message of every topic, one after the other, in files of equal length.

Appending is two steps. Staging packs records and gives them their places; `commit` writes everything staged with one
call. All messages that arrived in one network read share one commit. The writer is the event loop alone: no locks.
"""

from __future__ import annotations

from collections.abc import Callable

from orbitmq.store.consume_queue import UNIT, ConsumeQueue
from orbitmq.store.disk import Disk
from orbitmq.store.segment import SegmentSeries
from orbitmq.store.staged import Staged
from orbitmq.wire.checksum import crc32
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.message import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    FIXED_BYTES,
    HEADS,
    MAX_TOPIC_BYTES,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    V6_EXTRA_BYTES,
)

BORN_V6 = int(SysFlag.BORN_V6)
LARGEST_HEAD_BYTES = FIXED_BYTES + 2 * V6_EXTRA_BYTES + MAX_TOPIC_BYTES + BLANK_BYTES
"""What a record takes at most besides body and properties, with the blank marker that must fit behind it."""
_pack_unit = UNIT.pack


class CommitLog:
    """Single writer. `position` is where the next record goes; what lies before it has been handed to the system."""

    __slots__ = (
        "_clock",
        "_disk",
        "_fd",
        "_parts",
        "_segment_base",
        "_segment_end",
        "_staged_from",
        "_start_position",
        "committed_ms",
        "fixed_bytes",
        "pack_v4",
        "pack_v6",
        "position",
        "records_end",
        "series",
        "staged",
        "store_flag",
        "store_host",
        "store_ms",
    )

    def __init__(
        self, disk: Disk, series: SegmentSeries, clock: Callable[[], int], store_host: bytes
    ) -> None:
        self._disk = disk
        self.series = series
        self._clock = clock
        self.store_host = store_host
        self.store_flag = int(SysFlag.STORE_V6) if len(store_host) > 8 else 0
        self.pack_v4 = HEADS[self.store_flag >> 4].pack
        self.pack_v6 = HEADS[(self.store_flag | BORN_V6) >> 4].pack
        self.fixed_bytes = FIXED_BYTES - 1 + (V6_EXTRA_BYTES if self.store_flag else 0)
        """Size of a record besides body, properties, and topic with its length byte; an IPv6 born host adds to it."""
        self._parts: list[bytes] = []
        self.staged = Staged()
        self._fd = -1
        self._segment_base = 0
        self._segment_end = 0
        self.records_end = 0
        """Up to where records may lie in this file."""
        self._staged_from = 0
        self._start_position = 0
        self.position = 0
        self.store_ms = 0
        self.committed_ms = 0
        """Store time of the newest record written."""

    def start_at(self, position: int) -> None:
        """Where recovery found the end; the file that holds it is made if need be."""
        self.position = self._staged_from = self._start_position = position
        base = position - position % self.series.segment_bytes
        if self.series.base_of(base) is None:
            self.series.create(base, sync_directory=True)
        self._use_segment(base)

    def _use_segment(self, base: int) -> None:
        self._segment_base = base
        self._segment_end = base + self.series.segment_bytes
        self.records_end = self._segment_end - BLANK_BYTES
        self._fd = self.series.fd(base)

    # --- appending --------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """One store time per commit, never running backwards: recovery and search by time rely on the order."""
        staged = self.staged
        if not staged.units:
            now = self._clock()
            if now > self.store_ms:
                self.store_ms = now
            staged.store_ms = self.store_ms
            self._start_position = self.position
        return self.store_ms

    def room_for(self, size: int) -> int:
        """Where `size` bytes in one piece go: here, or at the start of the next file when they do not fit here."""
        if self.position + size > self.records_end:
            self._roll()
        return self.position

    def extend(self, parts: list[bytes], position: int) -> None:
        """Takes packed records that end at `position`; their units and keys are the caller's to stage."""
        self._parts += parts
        self.position = position

    def stage(
        self,
        queue: ConsumeQueue,
        body: bytes,
        properties: bytes,
        sys_flag: int,
        flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        tags_code: int = 0,
        unique_key: bytes | None = None,
        keys: bytes | None = None,
        delay_ms: int | None = None,
    ) -> int:
        """Packs one record behind the others; returns its log offset. The caller has checked all sizes.

        With a delay, the queue unit carries the delivery time, counted from the store time, instead of the tag's hash.
        """
        store_ms = self.begin()
        if delay_ms is not None:
            tags_code = store_ms + delay_ms
        topic_part = queue.topic_part
        size = self.fixed_bytes + len(body) + len(topic_part) + len(properties)
        pack = self.pack_v4
        sys_flag |= self.store_flag
        if len(born_host) != 8:
            size += V6_EXTRA_BYTES
            sys_flag |= BORN_V6
            pack = self.pack_v6
        position = self.room_for(size)
        head = pack(
            size,
            MESSAGE_MAGIC,
            crc32(body),
            queue.queue_id,
            flag,
            queue.next_offset,
            position,
            sys_flag,
            born_ms,
            born_host,
            store_ms,
            self.store_host,
            reconsume_times,
            prepared_offset,
            len(body),
        )
        self._parts += (head, body, topic_part, len(properties).to_bytes(2, "big"), properties)
        self.position = position + size
        queue.next_offset += 1
        staged = self.staged
        staged.add_units(queue, _pack_unit(position, size, tags_code))
        if unique_key:
            staged.add_key(queue.prefix, unique_key, position)
        if keys:
            for key in keys.split(b" "):
                if key:
                    staged.add_key(queue.prefix, key, position)
        return position

    def _roll(self) -> None:
        """Closes the file with a blank marker and goes on in the next one."""
        self._parts.append(BLANK.pack(self._segment_end - self.position, BLANK_MAGIC))
        self._write_staged()
        self._next_segment()
        self.position = self._staged_from = self._segment_base

    def _next_segment(self) -> None:
        base = self._segment_end
        if self.series.base_of(base) is None:
            self.series.create(base, sync_directory=True)
        self._use_segment(base)

    def _write_staged(self) -> None:
        parts = self._parts
        if parts:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._disk.pwrite(self._fd, data, self._staged_from - self._segment_base)
            parts.clear()

    def commit(self) -> Staged:
        """Writes what is staged. Returns what dispatch has to bring into queues and index."""
        if self._parts:
            self._write_staged()
        self._staged_from = self._start_position = self.position
        staged = self.staged
        if staged.units:
            self.committed_ms = staged.store_ms
        self.staged = Staged()
        return staged

    def roll_back(self) -> None:
        """After a failed write: nothing staged happened, the places are given again.

        What the write left on the disk is wiped out, or the next recovery would take it for messages. OSError when
        that fails too.
        """
        self.staged.undo()
        self.staged = Staged()
        self._parts.clear()
        self.position = self._staged_from = self._start_position
        reached = self._segment_base
        base = self.position - self.position % self.series.segment_bytes
        if base != reached:
            self._use_segment(base)
        self.series.wipe(self.position, reached + self.series.segment_bytes)

    def append_raw(self, data: bytes) -> None:
        """Another broker's log goes on here, byte for byte; records may come in pieces. Nothing is staged meanwhile."""
        at = 0
        while at < len(data):
            if self.position == self._segment_end:
                self._next_segment()
            piece = data[at : at + self._segment_end - self.position]
            self._disk.pwrite(self._fd, piece, self.position - self._segment_base)
            at += len(piece)
            self.position += len(piece)
            self._staged_from = self._start_position = self.position

    # --- reading ----------------------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the log; empty when the place is not (or no longer) there."""
        series = self.series
        base = offset - offset % series.segment_bytes
        if base < series.start or offset + size > self.position or offset < 0 or size < 0:
            return b""
        inside = offset - base
        return series.map(base)[inside : inside + size]

    def store_time_at(self, offset: int) -> int:
        """Of the record there; -1 when there is none."""
        head = self.read(offset, 76)
        if len(head) < 76:
            return -1
        start = 68 if int.from_bytes(head[36:40], "big") & 0x10 else 56
        return int.from_bytes(head[start : start + 8], "big")

    def record(self, offset: int) -> bytes | None:
        """The whole record at this offset, or None when no record begins there."""
        head = self.read(offset, 8)
        if len(head) < 8:
            return None
        size, magic = BLANK.unpack(head)
        if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2) or size < FIXED_BYTES:
            return None
        data = self.read(offset, size)
        return data if len(data) == size else None

    @property
    def start(self) -> int:
        return self.series.start
