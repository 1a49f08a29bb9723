"""One queue of one topic: 20-byte units that point into the commit log, in the order of the queue.

A unit is (log offset 8, record size 4, tag hash or delivery time 8). `next_offset` counts what was assigned at append,
`max_offset` what consumers may see; the two differ while a group commit is pending.
"""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from struct import Struct
from typing import Any, TypeGuard

from orbitmq.store.disk import Disk
from orbitmq.store.segment import DescriptorCache, SegmentSeries
from orbitmq.wire.java_hash import string_hash

UNIT = Struct(">qiq")
UNIT_BYTES = UNIT.size
_FILLER = UNIT.pack(0, 0x7FFFFFFF, 0)

WINDOW_UNITS = 1024
_MOST_WINDOWS = 1024
_windows: OrderedDict[int, weakref.ref[ConsumeQueue]] = OrderedDict()


def _keep_window(queue: ConsumeQueue) -> None:
    """Bounds the memory of all windows together: the queue that got one longest ago gives its up."""
    _windows[id(queue)] = weakref.ref(queue)
    _windows.move_to_end(id(queue))
    if len(_windows) > _MOST_WINDOWS:
        _, oldest = _windows.popitem(last=False)
        if (other := oldest()) is not None:
            other.drop_window()


class ConsumeQueue:
    __slots__ = (
        "__weakref__",
        "_buffer",
        "_file_end",
        "_series",
        "_unsynced_from",
        "_window",
        "checked_from",
        "max_offset",
        "min_offset",
        "next_offset",
        "prefix",
        "prefix_hash",
        "queue_id",
        "topic",
        "topic_part",
        "unsynced",
        "waiters",
    )

    def __init__(
        self, disk: Disk, root: str, topic: str, queue_id: int, file_bytes: int, cache: DescriptorCache
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        encoded = topic.encode()
        self.topic_part = bytes([len(encoded)]) + encoded
        self.prefix = encoded + b"#"
        self.prefix_hash = string_hash(topic + "#")
        self._series = SegmentSeries(disk, os.path.join(root, topic, str(queue_id)), file_bytes, cache)
        self._buffer = bytearray()
        self._file_end = 0
        self._window: tuple[int, bytes] = (0, b"")
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        # Units from here on were written or compared with the log by this process; others are checked when read.
        self.checked_from = 0
        self.unsynced = False
        self._unsynced_from = 0
        self.waiters: list[Any] = []

    # --- writing ----------------------------------------------------------------------------------------------

    def append(self, units: list[bytes]) -> int:
        """Units that became visible. They are read from memory until `write_out` brings them to the file.

        Returns how many bytes are only in memory: a crash loses them, and recovery makes them again from the log.
        """
        joined = units[0] if len(units) == 1 else b"".join(units)
        self._buffer += joined
        self.max_offset += len(joined) // UNIT_BYTES
        return len(self._buffer)

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def write_out(self) -> None:
        """Raises OSError when the file cannot take it; the units then stay in memory and visible."""
        if not self._buffer:
            return
        if not self._series.bases and self._file_end:
            self._fill_before(self._file_end)
        self._series.write(self._file_end * UNIT_BYTES, bytes(self._buffer))
        self._touch(self._file_end)
        self._file_end = self.max_offset
        self._buffer.clear()

    def stored_unit(self, offset: int) -> bytes:
        return self._series.read(offset * UNIT_BYTES, UNIT_BYTES)

    def put_at(self, offset: int, unit: bytes) -> bool:
        """Recovery: this unit belongs at this offset. True when the file had something else there."""
        if not self._series.bases and offset:
            self._fill_before(offset)
            self.min_offset = self.max_offset = self.next_offset = self._file_end = offset
        changed = self.stored_unit(offset) != unit
        if changed:
            self.drop_window()
            if offset > self.max_offset:
                # Messages in between are lost; the hole must not look like the end of the queue.
                self._series.write(self.max_offset * UNIT_BYTES, _FILLER * (offset - self.max_offset))
            self._series.write(offset * UNIT_BYTES, unit)
            self._touch(min(offset, self.max_offset))
        if offset >= self.max_offset:
            self.max_offset = self.next_offset = self._file_end = offset + 1
        return changed

    def _fill_before(self, offset: int) -> None:
        """A first file that does not begin with the queue's first message: the place before is marked as such."""
        position = offset * UNIT_BYTES
        base = position - position % self._series.segment_bytes
        self._series.create(base)
        count = (position - base) // UNIT_BYTES
        if count:
            self._series.write(base, _FILLER * count)

    def begin_at(self, offset: int) -> None:
        """A queue whose first message is not the first it ever had: a slave may join late."""
        empty = self.next_offset == self.max_offset == self.min_offset
        if empty and not self._buffer and not self._series.bases:
            self.min_offset = self.max_offset = self.next_offset = self._file_end = offset

    # --- reading ----------------------------------------------------------------------------------------------

    def read_units(self, offset: int, count: int) -> bytes:
        """Up to `count` visible units from `offset` on, fewer at a file border; empty outside the queue."""
        if offset < self.min_offset or count <= 0:
            return b""
        first = offset - self._file_end
        if first >= 0:
            return bytes(self._buffer[first * UNIT_BYTES : (first + count) * UNIT_BYTES])
        if count <= -first:
            return self._from_file(offset, count)
        units = self._from_file(offset, -first)
        if len(units) == -first * UNIT_BYTES:  # a pull that asks for more gets it, wherever its units wait
            units += self._buffer[: (first + count) * UNIT_BYTES]
        return units

    def _from_file(self, offset: int, count: int) -> bytes:
        """Consumers read on where they were: a window saves them a system call per pull."""
        start, window = self._window
        at = (offset - start) * UNIT_BYTES
        need = count * UNIT_BYTES
        if not 0 <= at <= len(window) - need:
            window = self._series.read(
                offset * UNIT_BYTES, min(max(count, WINDOW_UNITS), self._file_end - offset) * UNIT_BYTES
            )
            self._window = (offset, window)
            at = 0
            if len(window) > need:
                _keep_window(self)
        return window[at : at + need]

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        data = self.read_units(offset, 1)
        return UNIT.unpack(data) if len(data) == UNIT_BYTES else None

    def next_file_offset(self, offset: int) -> int:
        per_file = self._series.segment_bytes // UNIT_BYTES
        return offset - offset % per_file + per_file

    def file_ranges(self) -> Iterator[tuple[int, int, int]]:
        """(first offset, end offset, last modified ms) of each file, clipped to the visible range."""
        for base in self._series.bases:
            first = max(base // UNIT_BYTES, self.min_offset)
            end = min((base + self._series.segment_bytes) // UNIT_BYTES, self.max_offset)
            if first < end:
                yield first, end, self._series.last_modified_ms(base)

    @property
    def end_in_log(self) -> int:
        """Where in the log the newest visible message of this queue ends, 0 when there is none."""
        last = self.unit(self.max_offset - 1) if self.max_offset > self.min_offset else None
        return last[0] + last[1] if last and last[1] != 0x7FFFFFFF else 0

    # --- loading, cutting, cleaning ---------------------------------------------------------------------------

    def load(self) -> None:
        """Finds the end: the last unit, counted from the newest file back, behind which there are only zeros."""
        self._series.load()
        bases = self._series.bases
        if not bases:
            return
        self.min_offset = bases[0] // UNIT_BYTES
        end = self.min_offset
        for base in reversed(bases):
            # A unit is never all zero (its size is positive), though its tag hash may be: round up.
            filled = -(-self._series.filled_bytes(base) // UNIT_BYTES)
            if filled:
                end = base // UNIT_BYTES + filled
                break
        self.max_offset = self.next_offset = self._file_end = end
        self._skip_filler()

    def _skip_filler(self) -> None:
        """Units (0, 2147483647, 0) stand for messages that were never here."""
        per_file = self._series.segment_bytes // UNIT_BYTES
        units = self._series.read(self.min_offset * UNIT_BYTES, per_file * UNIT_BYTES)
        count = 0
        while units[count * UNIT_BYTES : (count + 1) * UNIT_BYTES] == _FILLER:
            count += 1
        self.min_offset = min(self.min_offset + count, self.max_offset)

    def cut_from_log_offset(self, log_end: int, known_end: int = 0) -> int:
        """Drops the units at the end that point at or past `log_end`; how many they were. Not below `known_end`."""
        keep = self.max_offset
        low = max(self.min_offset, known_end)
        while keep > low:
            start = max(low, keep - 1024)
            units = self._read_range(start, keep)
            good = len(units) // UNIT_BYTES
            while good:
                offset, size, _ = UNIT.unpack_from(units, (good - 1) * UNIT_BYTES)
                if offset >= 0 and size > 0 and offset + size <= log_end:
                    break
                good -= 1
            keep = start + good
            if good:
                break
        dropped = self.max_offset - keep
        if dropped:
            self.cut(keep)
        return dropped

    def _read_range(self, start: int, end: int) -> bytes:
        parts = []
        while start < end:
            data = self._series.read(start * UNIT_BYTES, (end - start) * UNIT_BYTES)
            if not data:
                break
            parts.append(data)
            start += len(data) // UNIT_BYTES
        return b"".join(parts)

    def cut(self, offset: int) -> None:
        self._series.truncate_from(offset * UNIT_BYTES)
        self.drop_window()
        self.max_offset = self.next_offset = self._file_end = offset
        self.min_offset = min(self.min_offset, offset)

    def raise_minimum(self, log_start: int) -> bool:
        """After old log files went: forgets units that point below `log_start`. True when the minimum moved."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = self._whole_unit_from(middle, high)
            if unit is not None and unit[0] < log_start:
                low = middle + 1
            else:
                high = middle
        # A hole in front of the first whole unit stands for messages that are gone as well.
        while low < self.max_offset and not _is_whole(self.unit(low)):
            low += 1
        moved = low != self.min_offset
        self.min_offset = low
        return moved

    def _whole_unit_from(self, offset: int, end: int) -> tuple[int, int, int] | None:
        """The unit there or, where nothing was ever or is no longer written, the next one: holes know no place."""
        for at in range(offset, end):
            unit = self.unit(at)
            if _is_whole(unit):
                return unit
        return None

    def drop_old_files(self) -> int:
        """Deletes files that lie wholly below the minimum, never the last one."""
        victims = [
            b
            for b in self._series.bases[:-1]
            if (b + self._series.segment_bytes) // UNIT_BYTES <= self.min_offset
        ]
        for base in victims:
            self._series.remove(base)
        return len(victims)

    def _touch(self, offset: int) -> None:
        self._unsynced_from = min(self._unsynced_from, offset) if self.unsynced else offset
        self.unsynced = True

    def take_unsynced_paths(self) -> list[str]:
        """Files to bring to the device: all that were written since the last time."""
        self.unsynced = False
        written = self._unsynced_from * UNIT_BYTES
        series = self._series
        return [series.path(base) for base in series.bases if base + series.segment_bytes > written]

    def drop_window(self) -> None:
        self._window = (0, b"")

    def destroy(self) -> None:
        self._series.destroy()
        self.drop_window()
        self._buffer.clear()

    def close(self) -> None:
        self._series.close()


def _is_whole(unit: tuple[int, int, int] | None) -> TypeGuard[tuple[int, int, int]]:
    """Whether it stands for a message: not a hole, and not the filler before a queue's first one."""
    return unit is not None and 0 < unit[1] < 0x7FFFFFFF
