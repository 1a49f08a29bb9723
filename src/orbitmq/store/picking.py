"""A filtered pull with the accelerator: it walks the units, and asks only about records it has not met the like of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orbitmq.store.commit_log import CommitLog
from orbitmq.store.consume_queue import UNIT, UNIT_BYTES
from orbitmq.store.selection import Selection

Pick = Callable[..., tuple[bytes, int, int, int, bytes | None]]
Unchecked = tuple[bytes, int, int, int]
"""Whose records are to be looked at before they are sent: the topic as records have it, queue, offset, how many."""

UNDECIDED: Final = 1
ODD: Final = 2


def pick_records(
    pick: Pick,
    log: CommitLog,
    units: bytes,
    max_count: int,
    max_bytes: int,
    wanted: Selection,
    unchecked: Unchecked | None = None,
) -> tuple[list[bytes], int, int, int] | None:
    """Records, how many, their bytes, and how many units were looked at.

    None when the first unit that counts is not for the accelerator. A later one only ends the pull: the next one
    begins with it.
    """
    base = log.series.base_of(UNIT.unpack_from(units, 0)[0])
    if base is None:
        return None
    segment = log.series.map(base)
    chunks: list[bytes] = []
    count = total = seen = 0
    while True:
        records, found, seen, state, key = pick(
            units,
            seen,
            segment,
            base,
            log.position,
            max_count,
            max_bytes,
            count,
            total,
            *_known(wanted),
            unchecked,
        )
        if found:
            chunks.append(records)
            count += found
            total += len(records)
        if state == UNDECIDED and key is not None and wanted.accept is not None:
            position, size, _ = UNIT.unpack_from(units, seen * UNIT_BYTES)
            wanted.remember(key, wanted.accept(log.read(position, size)))
            continue
        if state == ODD and not count:
            return None
        wanted.count(seen)
        return chunks, count, total, seen


def _known(wanted: Selection) -> tuple[bytes | None, tuple[bytes, ...] | None, dict[bytes, bool]]:
    return wanted.codes, wanted.names, wanted.verdicts
