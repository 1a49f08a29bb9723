"""How long each delay level lasts, which the queues of delayed messages depend on and the log does not tell.

It is what the user says, or what the queues that the store still has show, or else the default of all brokers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from orbitmq.client.errors import BadRequest
from orbitmq.store.consume_queue import UNIT
from orbitmq.store.disk import Disk
from orbitmq.store.settings import DEFAULT_DELAY_LEVELS_MS
from orbitmq.store.store_files import (
    COMMIT_LOG,
    CONSUME_QUEUE,
    SEGMENT_NAME_DIGITS,
    LogReader,
    StoreFiles,
    segment_path,
    unmap,
)
from orbitmq.wire.topics import SCHEDULE_TOPIC

LOOKED_AT: Final = 100
"""Units at the end of each file; where the log was cleaned the first ones lead nowhere."""
_UNKNOWN_MS: Final = 1000
"""What brokers do with a level that they do not have."""
_DELAY: Final = re.compile(r"([0-9]+)([smhd])").fullmatch
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def said_levels_ms(text: str) -> tuple[int, ...]:
    found = [_DELAY(word) for word in text.split()]
    if not found or None in found:
        raise BadRequest(
            f"'{text}' is no list of delays",
            hint="write messageDelayLevel as the broker has it: 1s 5s 10m 2h",
        )
    return tuple(int(match[1]) * _UNITS_MS[match[2]] for match in found if match)


def seen_levels_ms(store: str) -> tuple[int, ...]:
    files = StoreFiles(Disk(), store)
    try:
        bases = files.bases(COMMIT_LOG)
        if not bases or not files.exists(f"{CONSUME_QUEUE}/{SCHEDULE_TOPIC}"):
            return DEFAULT_DELAY_LEVELS_MS
        log = LogReader(files, files.size(segment_path(COMMIT_LOG, bases[0])))
        seen = dict(_seen(files, log))
    finally:
        files.close()
    count = max(len(DEFAULT_DELAY_LEVELS_MS), *seen) if seen else len(DEFAULT_DELAY_LEVELS_MS)
    usual = dict(enumerate(DEFAULT_DELAY_LEVELS_MS, 1))
    return tuple(seen.get(level, usual.get(level, _UNKNOWN_MS)) for level in range(1, count + 1))


def _seen(files: StoreFiles, log: LogReader) -> Iterator[tuple[int, int]]:
    for topic, queue_id in files.queue_directories():
        if topic != SCHEDULE_TOPIC:
            continue
        directory = f"{CONSUME_QUEUE}/{topic}/{queue_id}"
        for name in reversed(files.names(directory, SEGMENT_NAME_DIGITS)):
            units = files.map(f"{directory}/{name}")
            try:
                delay_ms = _delay_ms(bytes(units), log, queue_id + 1)
            finally:
                unmap(units)
            if delay_ms is not None:
                yield queue_id + 1, delay_ms
                break


def _delay_ms(units: bytes, log: LogReader, level: int) -> int | None:
    whole = units[: len(units) // UNIT.size * UNIT.size]
    written = [unit for unit in UNIT.iter_unpack(whole) if unit[1]]
    for offset, size, due_ms in reversed(written[-LOOKED_AT:]):
        record = log.record(offset)
        if record is None or (record.topic, record.size) != (SCHEDULE_TOPIC, size):
            continue
        if record.delay_level == str(level).encode() and due_ms >= record.store_ms:
            return int(due_ms - record.store_ms)
    return None
