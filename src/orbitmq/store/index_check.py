"""Is an index file whole? Its slots and chains follow from its entries, so any torn page shows.

Used by verify and after a crash, when part of what was written through the map may not have reached the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from orbitmq.store.index_file import (
    ENTRY,
    ENTRY_BYTES,
    ENTRY_DTYPE,
    HEADER,
    HEADER_BYTES,
    SLOT,
    SLOT_BYTES,
    link_chains,
)
from orbitmq.store.log_scan import FileBytes
from orbitmq.wire.numeric import np

if TYPE_CHECKING:
    import numpy.typing as npt

# Bounds memory: a full file has twenty million entries.
_CHUNK_ENTRIES = 1 << 16
# Java's proportion of slots to entries, for a file too empty to show its own.
_USUAL_ENTRIES_PER_SLOT = 4


class IndexContent(Protocol):
    """Header, entries and slots of an index file, however it is opened."""

    slots: int
    entries: int
    begin_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    count: int

    @property
    def views(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int32]]: ...


class IndexView:
    """An index file for looking only. Drop it before the map it was made from is closed."""

    def __init__(self, buf: FileBytes, slots: int, entries: int) -> None:
        self.slots = slots
        self.entries = entries
        self.begin_ms: int
        self.end_ms: int
        self.begin_offset: int
        self.end_offset: int
        self.used_slots: int
        (
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            count,
        ) = HEADER.unpack_from(buf, 0)
        self.count = max(int(count), 1)
        entries_at = HEADER_BYTES + slots * SLOT_BYTES
        self._slots = np.frombuffer(buf, dtype=">i4", count=slots, offset=HEADER_BYTES)
        self._entries = np.frombuffer(buf, dtype=ENTRY_DTYPE, count=entries, offset=entries_at)

    @property
    def views(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int32]]:
        return self._entries, self._slots


def structure_problem(file: IndexContent) -> str | None:
    """What contradicts what in this file, or None when header, entries, chains and slots agree."""
    entries, slots = file.views
    if file.count > file.entries:
        return f"the header counts {file.count} entries, the file has room for {file.entries}"
    newest = np.zeros(file.slots, dtype=np.int64)
    reached = file.begin_offset
    for start in range(1, file.count, _CHUNK_ENTRIES):
        chunk = entries[start : min(start + _CHUNK_ENTRIES, file.count)]
        problem = _chunk_problem(chunk, start, reached, newest)
        if problem is not None:
            return problem
        reached = int(chunk["offset"][-1])
    if file.count > 1 and reached != file.end_offset:
        return f"the header ends at offset {file.end_offset}, the last entry at {reached}"
    if file.count > 1 and int(entries["offset"][1]) != file.begin_offset:
        return f"the header begins at offset {file.begin_offset}, the first entry elsewhere"
    wrong = np.flatnonzero(slots != newest)
    if len(wrong):
        slot = int(wrong[0])
        return f"slot {slot} names entry {slots[slot]}, the newest entry of its chain is {newest[slot]}"
    used = int(np.count_nonzero(newest))
    if used != file.used_slots:
        return f"the header counts {file.used_slots} used slots, there are {used}"
    return None


def _chunk_problem(
    chunk: npt.NDArray[np.void], start: int, reached: int, newest: npt.NDArray[np.int64]
) -> str | None:
    """Check entries numbered from `start`; `newest`, the head of each slot's chain, is brought forward."""
    hashes = chunk["hash"].astype(np.int64)
    offsets = chunk["offset"].astype(np.int64)
    previous = chunk["previous"].astype(np.int64)
    bad = np.flatnonzero((hashes < 0) | (chunk["seconds"] < 0))
    if len(bad):
        return f"entry {start + int(bad[0])} has a negative hash or time"
    bad = np.flatnonzero(np.diff(offsets, prepend=reached) < 0)
    if len(bad):
        number = start + int(bad[0])
        return f"entry {number} points at offset {int(offsets[bad[0]])}, before the entry in front of it"
    chain_slots = hashes % len(newest)
    order, opens, numbers = link_chains(chain_slots, start)
    expected = np.empty(len(order), dtype=np.int64)
    expected[1:] = numbers[:-1]
    expected[opens] = newest[chain_slots[order[opens]]]
    bad = np.flatnonzero(previous[order] != expected)
    if len(bad):
        # The lowest number is the first broken link a reader of the file meets.
        first = bad[np.argmin(numbers[bad])]
        return (
            f"entry {int(numbers[first])} links to entry {int(previous[order[first]])}, "
            f"its chain goes on at {int(expected[first])}"
        )
    newest[chain_slots[order]] = numbers
    return None


def detect_shape(buf: FileBytes) -> tuple[int, int] | None:
    """(slots, entries) of a file that does not say: where its newest entry lies gives it away.

    That entry holds the header's last offset, and the slot of its hash names it; hardly any other split of
    the file fits both. A file without entries is taken to have the usual proportion.
    """
    if len(buf) < HEADER_BYTES:
        return None
    _, _, _, end_offset, _, count = HEADER.unpack_from(buf, 0)
    newest = count - 1
    if newest >= 1:
        needle = end_offset.to_bytes(8, "big", signed=True)
        hit = buf.find(needle, HEADER_BYTES)
        while hit >= 0:
            slot_bytes = hit - 4 - newest * ENTRY_BYTES - HEADER_BYTES
            if _fits(buf, slot_bytes, newest):
                return slot_bytes // SLOT_BYTES, (len(buf) - HEADER_BYTES - slot_bytes) // ENTRY_BYTES
            hit = buf.find(needle, hit + 1)
        return None
    slots, rest = divmod(len(buf) - HEADER_BYTES, SLOT_BYTES + _USUAL_ENTRIES_PER_SLOT * ENTRY_BYTES)
    return (slots, slots * _USUAL_ENTRIES_PER_SLOT) if slots and not rest else None


def _fits(buf: FileBytes, slot_bytes: int, newest: int) -> bool:
    entry_bytes = len(buf) - HEADER_BYTES - slot_bytes
    if slot_bytes <= 0 or slot_bytes % SLOT_BYTES or entry_bytes <= 0 or entry_bytes % ENTRY_BYTES:
        return False
    key_hash = ENTRY.unpack_from(buf, HEADER_BYTES + slot_bytes + newest * ENTRY_BYTES)[0]
    if key_hash < 0:
        return False
    slot = key_hash % (slot_bytes // SLOT_BYTES)
    return bool(SLOT.unpack_from(buf, HEADER_BYTES + slot * SLOT_BYTES)[0] == newest)
