"""One file of the key index: a hash table of chains, mapped into memory (Java's IndexFile and IndexHeader).

| part | bytes |
|---|---|
| header | beginTimestamp 8, endTimestamp 8, beginPhyOffset 8, endPhyOffset 8, used slots 4, entry count 4 |
| slots | 4 each: number of the newest entry of the slot, 0 = none |
| entries | 20 each: key hash 4, physical offset 8, seconds since begin 4, number of the previous entry 4 |

Entry 0 is never used, so the count starts at 1 and is the number of the next entry. `put` is the plain twin
of `put_columns`: the same rows give the same bytes, also the same as Java's.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import TYPE_CHECKING

from orbitmq.accel import put_index
from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreDamaged, WrongFileSize
from orbitmq.wire.numeric import np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
MAX_SECONDS = 0x7FFFFFFF

# Blocks are reserved this far ahead of the writer: a full disk then is an error of fallocate, while a write
# through the map to a block that cannot be had would kill the process.
RESERVE_BYTES = 1 << 20

_CUT_ENTRIES = 1 << 16

HEADER = struct.Struct(">qqqqii")
SLOT = struct.Struct(">i")
ENTRY = struct.Struct(">iqii")
ENTRY_DTYPE = [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]


def file_bytes(slots: int, entries: int) -> int:
    return HEADER_BYTES + slots * SLOT_BYTES + entries * ENTRY_BYTES


def link_chains(slots: Ints, first_number: int) -> tuple[Ints, npt.NDArray[np.bool_], Ints]:
    """Rows ordered by slot: (order, which of them open their slot's chain, their entry numbers)."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    opens = np.empty(len(order), dtype=np.bool_)
    opens[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=opens[1:])
    return order, opens, order + first_number


class IndexFile:
    """An open index file. The header lives in attributes and is written with each put."""

    def __init__(self, disk: Disk, path: str, slots: int, entries: int) -> None:
        """Open a file of the right size; use `create` for a new one."""
        size = file_bytes(slots, entries)
        actual = disk.size(path)
        if actual != size:
            raise WrongFileSize(path, actual, size, "maxHashSlotNum and maxIndexNum")
        self.path = path
        self.slots = slots
        self.entries = entries
        self._disk = disk
        self._fd = disk.open_rw(path)
        try:
            self._map = disk.map_rw(self._fd, size)
        except BaseException:
            disk.close(self._fd)
            raise
        self._entries_at = HEADER_BYTES + slots * SLOT_BYTES
        self._slot_view = np.frombuffer(self._map, dtype=">i4", count=slots, offset=HEADER_BYTES)
        self._entry_view = np.frombuffer(self._map, dtype=ENTRY_DTYPE, count=entries, offset=self._entries_at)
        self.begin_ms: int
        self.end_ms: int
        self.begin_offset: int
        self.end_offset: int
        self.used_slots: int
        self.count: int
        self._reserved_end = 0
        self._closed = False
        self._read_header()
        self.synced_count = self.count

    @classmethod
    def create(
        cls, disk: Disk, path: str, slots: int, entries: int, end_offset: int, end_ms: int
    ) -> IndexFile:
        """A new file that continues one ending at (end_offset, end_ms); a full disk leaves nothing behind."""
        fd = disk.open_rw(path, create=True, size=file_bytes(slots, entries))
        disk.close(fd)
        try:
            file = cls(disk, path, slots, entries)
        except BaseException:
            disk.unlink(path)
            raise
        try:
            file._reserve(1)
        except BaseException:
            file.close()
            disk.unlink(path)
            raise
        file.begin_offset = file.end_offset = max(end_offset, 0)
        file.begin_ms = file.end_ms = max(end_ms, 0)
        file._write_header()
        file.synced_count = 0
        return file

    def _read_header(self) -> None:
        (
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            count,
        ) = HEADER.unpack_from(self._map, 0)
        self.count = max(count, 1)

    def _write_header(self) -> None:
        HEADER.pack_into(
            self._map,
            0,
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        )

    @property
    def room(self) -> int:
        """Entries that still fit."""
        return max(self.entries - self.count, 0)

    @property
    def is_empty(self) -> bool:
        return self.count <= 1

    @property
    def views(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int32]]:
        """(entries, slots) as arrays over the map, for checking. Drop them before close."""
        return self._entry_view, self._slot_view

    def check_header(self) -> None:
        if self.count > self.entries or not 0 <= self.used_slots <= self.slots:
            raise StoreDamaged(
                self.path,
                0,
                f"the header counts {self.count} entries and {self.used_slots} used slots, "
                f"but the file holds {self.entries} entries and {self.slots} slots",
                "start the broker: it drops this file and those after it, and rebuilds them from the log",
            )

    def _reserve(self, rows: int) -> None:
        """Have blocks for the header, the slots and `rows` more entries."""
        needed = self._entries_at + (self.count + rows) * ENTRY_BYTES
        if needed <= self._reserved_end:
            return
        start = self._reserved_end
        if not start:
            self._disk.fallocate(self._fd, 0, self._entries_at)
            start = self._entries_at + (self.count - 1) * ENTRY_BYTES
        end = min(needed + RESERVE_BYTES, len(self._map))
        if end > start:
            self._disk.fallocate(self._fd, start, end - start)
        self._reserved_end = end

    def put(self, key_hash: int, offset: int, store_ms: int) -> None:
        """Add one entry. The caller has seen to it that there is room."""
        self._reserve(1)
        number = self.count
        slot_at = HEADER_BYTES + key_hash % self.slots * SLOT_BYTES
        (previous,) = SLOT.unpack_from(self._map, slot_at)
        if previous <= 0 or previous > number:
            previous = 0
            self.used_slots += 1
        seconds = 0
        if self.begin_ms > 0:
            seconds = min(max((store_ms - self.begin_ms) // 1000, 0), MAX_SECONDS)
        ENTRY.pack_into(
            self._map, self._entries_at + number * ENTRY_BYTES, key_hash, offset, seconds, previous
        )
        SLOT.pack_into(self._map, slot_at, number)
        if number <= 1:
            self.begin_offset = offset
            self.begin_ms = store_ms
        self.count = number + 1
        self.end_offset = offset
        self.end_ms = store_ms
        self._write_header()

    def put_columns(self, hashes: Ints, offsets: Ints, store_ms: Ints) -> None:
        """Add entries in row order, at least one; the caller has seen to it that there is room for all."""
        rows = len(hashes)
        self._reserve(rows)
        first = self.count
        if put_index is not None and first > 1:
            # The first entry of a file is special (as in Java its time counts from the file before): plain twin.
            self.used_slots += put_index(
                self._map, self._entries_at, self.slots, first, self.begin_ms, hashes, offsets, store_ms
            )
            self._added(rows, offsets, store_ms)
            return
        slots = hashes % self.slots
        order, opens, numbers = link_chains(slots, first)
        previous = np.empty(rows, dtype=np.int64)
        previous[1:] = numbers[:-1]
        opening_slots = slots[order[opens]]
        heads = self._slot_view[opening_slots].astype(np.int64)
        heads[(heads <= 0) | (heads > numbers[opens])] = 0
        previous[opens] = heads

        block = np.empty(rows, dtype=ENTRY_DTYPE)
        block["hash"] = hashes
        block["offset"] = offsets
        block["seconds"] = self._seconds(store_ms)
        block["previous"][order] = previous
        self._entry_view[first : first + rows] = block
        closes = np.empty(rows, dtype=np.bool_)
        closes[-1] = True
        closes[:-1] = opens[1:]
        self._slot_view[opening_slots] = numbers[closes]

        if first <= 1:
            self.begin_offset = int(offsets[0])
            self.begin_ms = int(store_ms[0])
        self.used_slots += int(np.count_nonzero(heads == 0))
        self._added(rows, offsets, store_ms)

    def _added(self, rows: int, offsets: Ints, store_ms: Ints) -> None:
        self.count += rows
        self.end_offset = int(offsets[-1])
        self.end_ms = int(store_ms[-1])
        self._write_header()

    def _seconds(self, store_ms: Ints) -> Ints:
        begin_ms = self.begin_ms if self.count > 1 else int(store_ms[0])
        seconds: Ints = np.clip((store_ms - begin_ms) // 1000, 0, MAX_SECONDS)
        if begin_ms <= 0:
            seconds[:] = 0
        if self.count <= 1:
            # As in Java, the first entry still counts from the end of the file before.
            since_ms = begin_ms - self.begin_ms if self.begin_ms > 0 else 0
            seconds[0] = min(max(since_ms // 1000, 0), MAX_SECONDS)
        return seconds

    def trailing(self, offset: int) -> int:
        """How many entries at the end are of the record at this offset."""
        number = self.count - 1
        while number > 0 and int(self._entry_view[number]["offset"]) == offset:
            number -= 1
        return self.count - 1 - number

    def cut(self, offset: int) -> None:
        """Forget entries of records at `offset` and behind it, which the log has lost."""
        offsets = self._entry_view["offset"]
        first = bisect_left(range(self.count), offset, lo=1, key=lambda number: int(offsets[number]))
        while self.count > first:
            # From the end back: the entry in front of what goes becomes its slot's newest again.
            start = max(first, self.count - _CUT_ENTRIES)
            block = self._entry_view[start : self.count]
            slots = block["hash"].astype(np.int64) % self.slots
            order, opens, _ = link_chains(slots, start)
            oldest = order[opens]
            heads = block["previous"][oldest].astype(np.int64)
            self._slot_view[slots[oldest]] = heads
            self.used_slots -= int(np.count_nonzero(heads == 0))
            block[:] = np.zeros(1, dtype=ENTRY_DTYPE)
            self.count = start
        if self.count > 1:
            _, self.end_offset, seconds, _ = ENTRY.unpack_from(
                self._map, self._entries_at + (self.count - 1) * ENTRY_BYTES
            )
            # The entry only knows whole seconds; rather too late than too early, or a query would miss it.
            self.end_ms = min(self.end_ms, self.begin_ms + seconds * 1000 + 999)
        self._write_header()
        self.synced_count = 0

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        return not self.is_empty and begin_ms <= self.end_ms and end_ms >= self.begin_ms

    def select(
        self, key_hash: int, begin_ms: int, end_ms: int, found: dict[int, None], max_num: int, steps: int
    ) -> int:
        """Add offsets of matching entries to `found`, newest first, up to max_num; returns the steps left.

        Entries keep whole seconds, so a match may be up to a second too early: the caller sees the exact time
        in the record. A damaged chain ends the walk: numbers must fall, so it can never go round.
        """
        count = self.count
        (number,) = SLOT.unpack_from(self._map, HEADER_BYTES + key_hash % self.slots * SLOT_BYTES)
        limit = min(count, self.entries)
        while 0 < number < limit and steps > 0 and len(found) < max_num:
            steps -= 1
            entry_hash, offset, seconds, previous = ENTRY.unpack_from(
                self._map, self._entries_at + number * ENTRY_BYTES
            )
            if seconds < 0:
                break
            entry_ms = self.begin_ms + seconds * 1000
            if entry_ms + 999 < begin_ms:
                break
            if entry_hash == key_hash and entry_ms <= end_ms:
                found[offset] = None
            limit = number
            number = previous
        return steps

    def sync(self) -> int:
        """Flush to the device; returns the store time up to which entries are safe."""
        count, end_ms = self.count, self.end_ms
        if count != self.synced_count:
            self._disk.sync_map(self._fd, self._map)
            self.synced_count = count
        return end_ms

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        del self._slot_view, self._entry_view
        self._map.close()
        self._disk.close(self._fd)
