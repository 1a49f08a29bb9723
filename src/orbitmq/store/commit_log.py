"""The log: every message of every topic, one after the other, in files of equal length.

Appending is two steps. `stage` packs a record and gives it its place; `commit` writes everything staged with one call.
All messages that arrived in one network read share one commit. The writer is the event loop alone: no locks.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from orbitmq.store.consume_queue import UNIT, ConsumeQueue
from orbitmq.store.disk import Disk
from orbitmq.store.segment import SegmentSeries
from orbitmq.wire.checksum import crc32
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.errors import WireError
from orbitmq.wire.java_hash import tag_code
from orbitmq.wire.message import (
    BLANK_BYTES,
    BLANK_MAGIC,
    FIXED_BYTES,
    HEADS,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    V6_EXTRA_BYTES,
)

_BLANK = Struct(">iI")
_PROPERTIES_LENGTH = Struct(">H")
_BATCH_ITEM = Struct(">iiiii")
_BATCH_ITEM_BYTES = _BATCH_ITEM.size
_BORN_V6 = int(SysFlag.BORN_V6)
_MAX_PROPERTIES_BYTES = 32767
_pack_unit = UNIT.pack
_pack_length = _PROPERTIES_LENGTH.pack


class CommitLog:
    """Single writer. `position` is where the next record goes; what lies before it has been handed to the system."""

    __slots__ = (
        "_clock",
        "_disk",
        "_fd",
        "_fixed_bytes",
        "_head_v4",
        "_head_v6",
        "_parts",
        "_segment_base",
        "_segment_end",
        "_staged_from",
        "_start_position",
        "_store_flag",
        "_store_host",
        "position",
        "rows",
        "series",
        "store_ms",
        "units",
    )

    def __init__(self, disk: Disk, series: SegmentSeries, clock: Callable[[], int], store_host: bytes) -> None:
        self._disk = disk
        self.series = series
        self._clock = clock
        self._store_host = store_host
        self._store_flag = int(SysFlag.STORE_V6) if len(store_host) > 8 else 0
        self._head_v4 = HEADS[self._store_flag >> 4].pack
        self._head_v6 = HEADS[(self._store_flag | SysFlag.BORN_V6) >> 4].pack
        self._fixed_bytes = FIXED_BYTES - 1 + (V6_EXTRA_BYTES if self._store_flag else 0)
        self._parts: list[bytes] = []
        self.units: list[tuple[ConsumeQueue, bytes]] = []
        self.rows: list[tuple[bytes, bytes, int, int]] = []
        self._fd = -1
        self._segment_base = 0
        self._segment_end = 0
        self._staged_from = 0
        self._start_position = 0
        self.position = 0
        self.store_ms = 0

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
        self._fd = self.series.fd(base)

    # --- appending --------------------------------------------------------------------------------------------

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
    ) -> int:
        """Packs one record behind the others; returns its log offset. The caller has checked all sizes."""
        units = self.units
        if not units:
            self._begin()
        store_ms = self.store_ms
        topic_part = queue.topic_part
        size = self._fixed_bytes + len(body) + len(topic_part) + len(properties)
        pack = self._head_v4
        sys_flag |= self._store_flag
        if len(born_host) != 8:
            size += V6_EXTRA_BYTES
            sys_flag |= _BORN_V6
            pack = self._head_v6
        position = self.position
        if position + size + BLANK_BYTES > self._segment_end:
            position = self._roll()
        self._parts += (
            pack(
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
                self._store_host,
                reconsume_times,
                prepared_offset,
                len(body),
            ),
            body,
            topic_part,
            _pack_length(len(properties)),
            properties,
        )
        queue.next_offset += 1
        self.position = position + size
        units.append((queue, _pack_unit(position, size, tags_code)))
        if unique_key:
            self.rows.append((queue.prefix, unique_key, position, store_ms))
        if keys:
            for key in keys.split(b" "):
                if key:
                    self.rows.append((queue.prefix, key, position, store_ms))
        return position

    def stage_batch(
        self, queue: ConsumeQueue, batch: bytes, more_properties: bytes, sys_flag: int, born_ms: int, born_host: bytes
    ) -> list[int]:
        """Packs every message of a batch body (message.md §6) as a record of its own; returns their log offsets.

        Nothing is staged when the batch is malformed (WireError). One loop and locals only: this is the path that
        decides how many batched messages a core can take.
        """
        if not self.units:
            self._begin()
        topic_part = queue.topic_part
        fixed = self._fixed_bytes + len(topic_part)
        pack = self._head_v4
        sys_flag |= self._store_flag
        if len(born_host) != 8:
            fixed += V6_EXTRA_BYTES
            sys_flag |= _BORN_V6
            pack = self._head_v6
        # The whole batch moves to the next file when it may not fit; the properties added to each are counted too.
        count_bound = len(batch) // (_BATCH_ITEM_BYTES + 2) + 1
        items_bytes = len(batch) + count_bound * (fixed + len(more_properties) + 1)
        if self.position + items_bytes + BLANK_BYTES > self._segment_end:
            exact = self._batch_bytes(batch, fixed, len(more_properties))
            if self.position + exact + BLANK_BYTES > self._segment_end:
                self._roll()
        position = self.position
        store_ms, store_host, queue_id = self.store_ms, self._store_host, queue.queue_id
        queue_offset = queue.next_offset
        prefix = queue.prefix
        parts: list[bytes] = []
        units: list[tuple[ConsumeQueue, bytes]] = []
        rows: list[tuple[bytes, bytes, int, int]] = []
        offsets: list[int] = []
        at, end = 0, len(batch)
        while at < end:
            body_at = at + _BATCH_ITEM_BYTES
            if body_at > end:
                raise WireError(f"batch item at byte {at} is cut off")
            total, _, _, flag, body_bytes = _BATCH_ITEM.unpack_from(batch, at)
            body_end = body_at + body_bytes
            properties_at = body_end + 2
            if body_bytes < 0 or properties_at > end:
                raise WireError(f"batch item at byte {at} announces a body of {body_bytes} bytes")
            next_at = properties_at + (batch[body_end] << 8 | batch[body_end + 1])
            if next_at > end or next_at - at != total:
                raise WireError(f"batch item at byte {at} announces {total} bytes and has {next_at - at}")
            properties = batch[properties_at:next_at]
            tags_code = 0
            # Separators in front keep a name inside another one's value or tail from matching.
            text = b"\x02" + properties + b"\x02"
            found = text.find(b"\x02TAGS\x01")
            if found >= 0:
                tags_code = tag_code(text[found + 6 : text.find(b"\x02", found + 6)])
            found = text.find(b"\x02UNIQ_KEY\x01")
            if found >= 0:
                rows.append((prefix, text[found + 10 : text.find(b"\x02", found + 10)], position, store_ms))
            found = text.find(b"\x02KEYS\x01")
            if found >= 0:
                for key in text[found + 6 : text.find(b"\x02", found + 6)].split(b" "):
                    if key:
                        rows.append((prefix, key, position, store_ms))
            if more_properties:
                if properties and properties[-1] != 2:
                    properties += b"\x02"
                properties += more_properties
            body = batch[body_at:body_end]
            size = fixed + body_bytes + len(properties)
            if len(properties) > _MAX_PROPERTIES_BYTES:
                raise WireError(f"batch item at byte {at} has {len(properties)} bytes of properties, 32767 are allowed")
            parts += (
                pack(
                    size,
                    MESSAGE_MAGIC,
                    crc32(body),
                    queue_id,
                    flag,
                    queue_offset,
                    position,
                    sys_flag,
                    born_ms,
                    born_host,
                    store_ms,
                    store_host,
                    0,
                    0,
                    body_bytes,
                ),
                body,
                topic_part,
                _pack_length(len(properties)),
                properties,
            )
            offsets.append(position)
            units.append((queue, _pack_unit(position, size, tags_code)))
            queue_offset += 1
            position += size
            at = next_at
        queue.next_offset = queue_offset
        self.position = position
        self._parts += parts
        self.units += units
        self.rows += rows
        return offsets

    @staticmethod
    def _batch_bytes(batch: bytes, fixed: int, more_bytes: int) -> int:
        """Upper bound, to the byte but for separators, of what the records of a batch take in the log."""
        total = at = 0
        while 0 <= at <= len(batch) - _BATCH_ITEM_BYTES:
            size = _BATCH_ITEM.unpack_from(batch, at)[0]
            if size <= 0:
                break
            total += fixed + size - _BATCH_ITEM_BYTES - 2 + more_bytes + 1
            at += size
        return total

    def _begin(self) -> None:
        """One store time per commit, never running backwards: recovery and search by time rely on the order."""
        now = self._clock()
        if now > self.store_ms:
            self.store_ms = now
        self._start_position = self.position

    def _roll(self) -> int:
        """Closes the file with a blank marker and goes on in the next one."""
        left = self._segment_end - self.position
        self._parts.append(_BLANK.pack(left, BLANK_MAGIC))
        self._write_staged()
        base = self._segment_end
        if self.series.base_of(base) is None:
            self.series.create(base, sync_directory=True)
        self._use_segment(base)
        self.position = self._staged_from = base
        return base

    def _write_staged(self) -> None:
        parts = self._parts
        if parts:
            self._disk.pwrite(self._fd, b"".join(parts), self._staged_from - self._segment_base)
            parts.clear()

    def commit(self) -> tuple[list[tuple[ConsumeQueue, bytes]], list[tuple[bytes, bytes, int, int]]]:
        """Writes what is staged. Returns the units and key rows that dispatch has to bring into queues and index."""
        self._write_staged()
        self._staged_from = self._start_position = self.position
        units, rows = self.units, self.rows
        self.units = []
        self.rows = []
        return units, rows

    def roll_back(self) -> None:
        """After a failed write: nothing staged happened, the places are given again."""
        for queue, _ in self.units:
            queue.next_offset -= 1
        self.units = []
        self.rows = []
        self._parts.clear()
        self.position = self._staged_from = self._start_position
        base = self.position - self.position % self.series.segment_bytes
        if base != self._segment_base:
            self._use_segment(base)

    # --- reading ----------------------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the log; empty when the place is not (or no longer) there."""
        series = self.series
        base = offset - offset % series.segment_bytes
        if base < series.start or offset + size > self.position or offset < 0:
            return b""
        inside = offset - base
        return series.map(base)[inside : inside + size]

    def record(self, offset: int) -> bytes | None:
        """The whole record at this offset, or None when no record begins there."""
        head = self.read(offset, 8)
        if len(head) < 8:
            return None
        size, magic = _BLANK.unpack(head)
        if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2) or size < FIXED_BYTES:
            return None
        data = self.read(offset, size)
        return data if len(data) == size else None

    @property
    def start(self) -> int:
        return self.series.start
