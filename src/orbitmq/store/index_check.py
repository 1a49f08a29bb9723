"""Is an index file whole? Its slots and chains follow from its entries, so any torn page shows.

Used by verify and after a crash, when part of what was written through the map may not have reached the disk.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from orbitmq.store.index_file import IndexFile, link_chains

# Bounds memory: a full file has twenty million entries.
_CHUNK_ENTRIES = 1 << 16


def structure_problem(file: IndexFile) -> str | None:
    """What contradicts what in this file, or None when header, entries, chains and slots agree."""
    entries, slots = file.views
    return _structure_problem(file, entries, slots)


def _structure_problem(
    file: IndexFile, entries: npt.NDArray[np.void], slots: npt.NDArray[np.int32]
) -> str | None:
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
