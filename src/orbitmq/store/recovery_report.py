"""What opening a store found and did, for the log and for whoever opened it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

log = logging.getLogger("orbitmq.store")


@dataclass(slots=True)
class Damage:
    start: int
    end: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    clean: bool
    scanned_from: int = 0
    log_end: int = 0
    last_store_ms: int = 0
    records: int = 0
    corrected_units: int = 0
    cut_units: int = 0
    cut_bytes: int = 0
    damage: list[Damage] = field(default_factory=list)
    dropped_index_files: list[str] = field(default_factory=list)
    tail_topics: dict[str, int] = field(default_factory=dict)
    """After a crash: topics with recent messages and how many queues; the broker may not have saved them yet."""
    why_whole: str = ""
    """Why the whole log was read: empty when its end was enough."""

    def write_to_log(self) -> None:
        if not self.clean:
            log.warning(
                "the broker was not stopped in good order: %d records from log offset %d on were checked again, "
                "the log ends at %d",
                self.records,
                self.scanned_from,
                self.log_end,
            )
        if self.why_whole:
            log.warning(
                "queues may have lost units (%s): the whole log was read to make them anew", self.why_whole
            )
        for damage in self.damage:
            log.error(
                "the commit log is damaged from offset %d to %d (%s): messages in there are lost, those behind "
                "it are kept; run `orbitmq store verify` for what they were, and restore them from a slave or "
                "a copy",
                damage.start,
                damage.end,
                damage.reason,
            )
        for path in self.dropped_index_files:
            log.warning(
                "the key index file %s was not whole; it was deleted and made anew from the log", path
            )
        if self.cut_bytes:
            log.warning("%d bytes of an unfinished write at the end of the log were cut off", self.cut_bytes)
        if self.corrected_units or self.cut_units:
            log.log(
                logging.WARNING if self.clean else logging.INFO,
                "consume queues: %d units written anew from the log, %d that pointed nowhere removed",
                self.corrected_units,
                self.cut_units,
            )
