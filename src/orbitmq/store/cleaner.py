"""Carrying out what the retention rules say: log files go first, then the queue and index files that only pointed there."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from orbitmq.store.retention import LogFile, RetentionRules, Why, refuses_writes, victims, why_clean

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore

log = logging.getLogger("orbitmq.store")

DISK_FULL = "the disk is fuller than diskSpaceWarningLevelRatio"


class Cleaned(NamedTuple):
    why: Why
    log_files: int
    queue_files: int
    index_files: int


class Cleaner:
    def __init__(self, store: MessageStore, rules: RetentionRules) -> None:
        self._store = store
        self.rules = rules

    def run(self, manual: bool = False) -> Cleaned:
        """One round. Also decides whether the store takes writes at this fill of the disk."""
        store = self._store
        used = store.disk_ratio()
        now = store.clock()
        why = why_clean(self.rules, used, time.localtime(now / 1000).tm_hour, manual)
        series = store.log.series
        # The next file is made ahead of time and still empty: it does not count as one of the log's.
        files = [
            LogFile(base, series.last_modified_ms(base))
            for base in series.bases
            if base <= store.log.position
        ]
        chosen = victims(self.rules, files, why, now)
        for base in chosen:
            series.remove(base)
        queue_files, index_files = self._follow() if chosen else (0, 0)
        if chosen:
            log.warning(
                "cleaned %d log files up to offset %d (%s), %d queue and %d index files followed",
                len(chosen),
                series.start,
                why.value,
                queue_files,
                index_files,
            )
        self._watch_level(store.disk_ratio() if chosen else used)
        return Cleaned(why, len(chosen), queue_files, index_files)

    def _follow(self) -> tuple[int, int]:
        store = self._store
        start = store.log.start
        dropped = 0
        for queue in store.all_queues():
            if queue.raise_minimum(start):
                dropped += queue.drop_old_files()
        return dropped, store.index.delete_before(start) if store.index is not None else 0

    def clean_queues(self) -> int:
        """Queue files below the log's start, by request."""
        return self._follow()[0]

    def _watch_level(self, used: float) -> None:
        store = self._store
        if refuses_writes(self.rules, used):
            if store.fault is None:
                log.error(
                    "the disk is %.0f %% full: messages are refused until there is room again", used * 100
                )
                store.refuse_writes(f"{DISK_FULL} ({used:.0%} used); free space or clean old messages")
        elif store.fault is not None and store.fault.reason.startswith(DISK_FULL):
            store.try_to_heal()
