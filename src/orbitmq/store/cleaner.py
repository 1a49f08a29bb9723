"""Carrying out what the retention rules say: log files go first, then the queue and index files that only
pointed there.

A crash at any point leaves a store that opens: the log loses files only from its beginning, and whatever
still points below its start is recognised by that and dropped by the next round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.store.retention import LogFile, RetentionRules, Why, refuses_writes, up_to, victims, why_clean

if TYPE_CHECKING:
    from orbitmq.store.consume_queue import ConsumeQueue
    from orbitmq.store.flush import Runner
    from orbitmq.store.message_store import MessageStore

log = logging.getLogger("orbitmq.store")

DISK_FULL = "the disk is fuller than diskSpaceWarningLevelRatio"
QUEUES_PER_STEP: Final = 2000
"""Queues brought in line at once; with more of them the rest follows bit by bit, so that nobody waits."""


class Cleaned(NamedTuple):
    why: Why
    log_files: int
    queue_files: int
    index_files: int


class Hold(NamedTuple):
    """Somebody still needs the log from an offset on."""

    log_offset: int
    reason: str


class Cleaner:
    def __init__(self, store: MessageStore, rules: RetentionRules, runner: Runner) -> None:
        self._store = store
        self._runner = runner
        self.rules = rules
        self.guards: list[Callable[[int], bool]] = []
        """Asked whether the log before an offset may go; one that says no has to bring about a yes."""
        self.holders: list[Callable[[], Hold | None]] = []
        """What should stay although it expired; not asked when the disk is dangerously full."""
        self._kept: list[int] = []
        self.postponed_by_hand = False
        """Whether files stayed that a request wanted to be gone; the guard repeats the round when it can."""
        self._reported: Hold | None = None
        self._followed = -1
        self._behind: Iterator[ConsumeQueue] = iter(())

    def run(self, manual: bool = False) -> Cleaned:
        """One round. Also decides whether the store takes writes at this fill of the disk."""
        store = self._store
        used = store.disk_ratio()
        now = store.clock()
        why = why_clean(self.rules, used, time.localtime(now / 1000).tm_hour, manual)
        wanted = victims(self.rules, self._files(), why, now, manual=manual)
        chosen = self._released([file.base for file in self._not_held(wanted, why)])
        self.postponed_by_hand = manual and bool(self._kept)
        self._remove(chosen)
        queue_files, index_files = self.follow()
        if chosen:
            log.warning(
                "cleaned %d log files up to offset %d (%s), %d queue and %d index files followed",
                len(chosen),
                store.log.start,
                why.value,
                queue_files,
                index_files,
            )
        self._watch_level(store.disk_ratio() if chosen else used)
        return Cleaned(why, len(chosen), queue_files, index_files)

    def _files(self) -> list[LogFile]:
        """Those with messages in them, all of which are on the device, and the one being written."""
        store = self._store
        series = store.log.series
        size = series.segment_bytes
        # A file that a flush may be working on stays, as does the one made ahead of time, which is still
        # empty.
        flushed = store.durability.offset
        bases = [base for base in series.bases if base <= store.log.position]
        return [
            LogFile(base, base + size, series.last_modified_ms(base))
            for base in bases
            if base + size <= flushed or base == bases[-1]
        ]

    def _not_held(self, wanted: list[LogFile], why: Why) -> list[LogFile]:
        if not wanted or why is Why.FORCED:
            return wanted
        holds = [hold for holder in self.holders if (hold := holder()) is not None]
        first = min(holds, default=None)
        free = wanted if first is None else up_to(wanted, first.log_offset)
        if first is not None and len(free) < len(wanted):
            if first != self._reported:
                log.warning("%d expired log files stay: %s", len(wanted) - len(free), first.reason)
            self._reported = first
        return free

    def _released(self, wanted: list[int]) -> list[int]:
        """The files up to the first that is needed. All are asked for, so that guards can work ahead."""
        size = self._store.log.series.segment_bytes
        needed = [base for base in wanted if not self._is_free(base + size)]
        self._kept = [base for base in wanted if needed and base >= needed[0]]
        return [base for base in wanted if not needed or base < needed[0]]

    def _is_free(self, log_end: int) -> bool:
        answers = [guard(log_end) for guard in self.guards]
        return all(answers)

    def _remove(self, bases: list[int]) -> None:
        """Nobody finds them from now on; the deletion itself may take long and is left to the disk thread."""
        store = self._store
        series = store.log.series
        paths = [series.release(base) for base in bases]

        def job() -> None:
            # In their order, and none after one that could not be deleted: the log must not get holes.
            for path in paths:
                store.disk.unlink(path)

        def done(error: BaseException | None) -> None:
            if error is not None:
                log.error("old log files could not be deleted, the next start will find them: %s", error)

        if paths:
            self._runner.submit(job, done)

    def follow(self) -> tuple[int, int]:
        """Queue and index files below the log's start go; how many went just now."""
        store = self._store
        start = store.log.start
        if start != self._followed:
            self._followed = start
            self._behind = iter(list(store.all_queues()))
        index = store.index
        return self.step(), index.delete_before(start) if index is not None else 0

    def step(self) -> int:
        """Brings some more queues in line with the log's start; the number of files that went."""
        start = self._followed
        dropped = 0
        for queue in islice(self._behind, QUEUES_PER_STEP):
            queue.raise_minimum(start)
            dropped += queue.drop_old_files()
        return dropped

    def clean_queues(self) -> int:
        """Looks at every queue again, by request."""
        self._followed = -1
        return self.follow()[0]

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
