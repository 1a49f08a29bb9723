"""Reading a queue: which records a pull gets, and where it goes on.

A run of neighbouring records is one slice of the mapped log. Units that point at something else than a whole record
(damage on the disk since it was written) are left out with a report, never sent: a client would stop reading there.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from orbitmq.accel import gather, pick
from orbitmq.store.commit_log import CommitLog
from orbitmq.store.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from orbitmq.store.picking import Unchecked, pick_records
from orbitmq.store.selection import EVERYTHING, Selection
from orbitmq.wire.message import (
    HEADS,
    MAGIC_AT,
    MESSAGE_MAGIC_V2,
    SYS_FLAG_AT,
    RecordKind,
    check_record,
)

log = logging.getLogger("orbitmq.store")

FOUND = "FOUND"
NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"

MOST_PAGE_BYTES = 8 << 20
MOST_PAGE_COUNT = 8192
"""Bounds of the pages that native readers ask for: one answer must not hold the loop or a connection for long."""

SCAN_UNITS = 800
"""Units looked at by one filtered pull, so that a rare tag does not hold the loop."""

_MAGIC_V2 = MESSAGE_MAGIC_V2.to_bytes(4, "big")
_iter_units = UNIT.iter_unpack
_LOG_OFFSET = Struct(">q")


Place = tuple[bytes, mmap.mmap, int, int, int, int, Unchecked | None]
"""(units, mapped log file, its first offset, the log's end, most messages, most bytes, what is to be checked)"""


class ReadResult(NamedTuple):
    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    chunks: list[bytes]
    messages: int
    size: int


class ReadLimits(NamedTuple):
    """At most this much per pull, from memory and from disk; one message is always allowed."""

    memory_bytes: int = 1 << 18
    memory_count: int = 32
    disk_bytes: int = 1 << 16
    disk_count: int = 8


class QueueReader:
    __slots__ = ("_in_memory_bytes", "_log", "limits")

    def __init__(self, commit_log: CommitLog, in_memory_bytes: int, limits: ReadLimits) -> None:
        self._log = commit_log
        self._in_memory_bytes = in_memory_bytes
        self.limits = limits

    def read(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        max_count: int,
        wanted: Selection = EVERYTHING,
        page_bytes: int = 0,
    ) -> ReadResult:
        """With `page_bytes` the reader's own limits hold instead of the configured ones, within bounds."""
        if queue is None:
            return ReadResult(NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [], 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if offset >= high or offset < low:
            return ReadResult(*_outside(offset, low, high), low, high, [], 0, 0)
        max_count = max(1, max_count)  # the Go client's poll asks for 0, and one message is always allowed
        most_count = MOST_PAGE_COUNT if page_bytes > 0 else self.limits.memory_count
        scan = min(max_count, most_count) if wanted.is_everything else SCAN_UNITS
        units = queue.read_units(offset, scan)
        if not units:
            return ReadResult(OFFSET_FOUND_NULL, queue.next_file_offset(offset), low, high, [], 0, 0)
        max_count, max_bytes = self._bounds(UNIT.unpack_from(units, 0)[0], max_count, page_bytes)
        unchecked = None
        if offset < queue.checked_from:
            unchecked = (queue.topic_part, queue.queue_id, offset, queue.checked_from - offset)
        if wanted.is_everything:
            chunks, count, size = self._plain_run(units, max_count, max_bytes, unchecked)
            if count:
                return ReadResult(FOUND, offset + count, low, high, chunks, count, size)
        elif pick is not None and wanted.is_quick:
            picked = pick_records(pick, self._log, units, max_count, max_bytes, wanted, unchecked)
            if picked is not None:
                chunks, count, size, seen = picked
                status = FOUND if count else NO_MATCHED_MESSAGE
                return ReadResult(status, offset + seen, low, high, chunks, count, size)
        return self._picked(queue, units, offset, max_count, max_bytes, wanted)

    def place(self, queue: ConsumeQueue, offset: int, max_count: int, page_bytes: int) -> Place | None:
        """Where an accelerated pull of everything finds its records; None when `read` has to look, or tell why."""
        if not queue.min_offset <= offset < queue.max_offset:
            return None
        limits = self.limits
        most_count = MOST_PAGE_COUNT if page_bytes > 0 else limits.memory_count
        if max_count > most_count:
            max_count = most_count
        units = queue.read_units(offset, max_count)
        if not units:
            return None
        series, end = self._log.series, self._log.position
        (first,) = _LOG_OFFSET.unpack_from(units)
        base = first - first % series.segment_bytes
        mapped = series.maps.get(base)
        if mapped is None:  # not read before, or not there
            if series.base_of(first) is None:
                return None
            mapped = series.map(base)
        max_bytes = limits.memory_bytes
        if page_bytes > 0 or end - first > self._in_memory_bytes:
            max_count, max_bytes = self._bounds(first, max_count, page_bytes)
        unchecked = None
        if offset < queue.checked_from:
            unchecked = (queue.topic_part, queue.queue_id, offset, queue.checked_from - offset)
        return units, mapped, base, end, max_count, max_bytes, unchecked

    def _bounds(self, first: int, max_count: int, page_bytes: int) -> tuple[int, int]:
        """How many messages and bytes a pull gets that begins at this place of the log."""
        limits = self.limits
        if page_bytes > 0:
            return min(max_count, MOST_PAGE_COUNT), min(page_bytes, MOST_PAGE_BYTES)
        if self._log.position - first > self._in_memory_bytes:
            return min(max_count, limits.disk_count), limits.disk_bytes
        return min(max_count, limits.memory_count), limits.memory_bytes

    def _plain_run(
        self, units: bytes, max_count: int, max_bytes: int, unchecked: Unchecked | None = None
    ) -> tuple[list[bytes], int, int]:
        """Everything from the first unit on: neighbours in the log become one slice."""
        if gather is not None:
            return self._gathered(gather, units, max_count, max_bytes, unchecked)
        if unchecked is not None:
            return [], 0, 0
        chunks: list[bytes] = []
        count = total = 0
        run_start = run_end = -1
        for position, size, _ in _iter_units(units):
            if count and (count >= max_count or total + size > max_bytes):
                break
            if position != run_end:
                if run_end > run_start:
                    chunks.append(self._log.read(run_start, run_end - run_start))
                run_start = run_end = position
            run_end += size
            total += size
            count += 1
        if run_end > run_start:
            chunks.append(self._log.read(run_start, run_end - run_start))
        if sum(map(len, chunks)) != total:
            return [], 0, 0
        return chunks, count, total

    def _gathered(
        self,
        gather_records: Callable[..., tuple[bytes, int]],
        units: bytes,
        max_count: int,
        max_bytes: int,
        unchecked: Unchecked | None,
    ) -> tuple[list[bytes], int, int]:
        """The same by the accelerator, within one log file: a pull at a file border gets the rest next time."""
        commit_log = self._log
        position = UNIT.unpack_from(units, 0)[0]
        base = commit_log.series.base_of(position)
        if base is None:
            return [], 0, 0
        segment = commit_log.series.map(base)
        records, count = gather_records(
            units, segment, base, commit_log.position, max_count, max_bytes, unchecked
        )
        return [records], count, len(records)

    def _picked(
        self,
        queue: ConsumeQueue,
        units: bytes,
        offset: int,
        max_count: int,
        max_bytes: int,
        wanted: Selection,
    ) -> ReadResult:
        """One by one: filtered, or from a part of the log that nobody has checked since it was written."""
        chunks: list[bytes] = []
        total = scanned = 0
        removed = False
        tag_codes, accept = wanted.tag_codes, wanted.accept
        for position, size, code in _iter_units(units):
            if len(chunks) >= max_count or (chunks and total + size > max_bytes):
                break
            scanned += 1
            if tag_codes is not None and code not in tag_codes:
                continue
            record = self._log.read(position, size)
            if not record:
                if 0 <= position < self._log.start:
                    removed = True
                else:
                    self._report(queue, offset + scanned - 1, position, "no record lies there")
                continue
            if offset + scanned <= queue.checked_from:
                problem = _mismatch(record, queue, offset + scanned - 1, position)
                if problem:
                    self._report(queue, offset + scanned - 1, position, problem)
                    continue
            if accept is not None and not accept(record):
                continue
            chunks.append(record)
            total += size
        status = FOUND if chunks else MESSAGE_WAS_REMOVING if removed else NO_MATCHED_MESSAGE
        return ReadResult(
            status, offset + scanned, queue.min_offset, queue.max_offset, chunks, len(chunks), total
        )

    @staticmethod
    def _report(queue: ConsumeQueue, queue_offset: int, position: int, problem: str) -> None:
        log.error(
            "%s queue %d offset %d is left out: its unit points at log offset %d, where %s; "
            "run `orbitmq store verify` on the stopped store",
            queue.topic,
            queue.queue_id,
            queue_offset,
            position,
            problem,
        )


def _outside(offset: int, low: int, high: int) -> tuple[str, int]:
    if high == 0:
        return NO_MESSAGE_IN_QUEUE, 0
    if offset < low:
        return OFFSET_TOO_SMALL, low
    if offset == high:
        return OFFSET_OVERFLOW_ONE, offset
    return OFFSET_OVERFLOW_BADLY, high


def _mismatch(record: bytes, queue: ConsumeQueue, queue_offset: int, position: int) -> str:
    """Why this record is not the one that the queue's unit stands for; empty when it is."""
    check = check_record(record, 0, len(record), True)
    if check.kind is not RecordKind.MESSAGE:
        return check.reason or "no message lies there"
    if check.size != len(record):
        return f"a record of {check.size} bytes lies there instead of {len(record)}"
    if int.from_bytes(record[28:36], "big") != position:
        return "the record names another place as its own"
    place = int.from_bytes(record[12:16], "big"), int.from_bytes(record[20:28], "big")
    if place != (queue.queue_id, queue_offset) or not _is_of_topic(record, queue):
        return "a record of another queue or offset lies there"
    return ""


def _is_of_topic(record: bytes, queue: ConsumeQueue) -> bool:
    """For a record that is known to be whole."""
    body_at = HEADS[(record[SYS_FLAG_AT + 3] & 0x30) >> 4].size
    topic_at = body_at + int.from_bytes(record[body_at - 4 : body_at], "big")
    if record[MAGIC_AT : MAGIC_AT + 4] == _MAGIC_V2:
        topic_at += 1  # its length takes two bytes there
    return record.startswith(queue.topic_part, topic_at)


def units_of(data: bytes) -> int:
    return len(data) // UNIT_BYTES
