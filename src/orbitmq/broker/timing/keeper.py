"""The runs on disk: when timers in memory become one, which of them are merged, and what a start finds of
them.

Every change is a job in the disk thread that ends with a new list of runs, written atomically; files that are
not in the list are leftovers. A `Mark` (indexed, bound) says: of the timers before this queue offset, those
at or above this key are in runs. Once everything below the mark's key is delivered, a start need not read the
queue before its offset.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from orbitmq.broker.timing.agenda import Agenda
from orbitmq.broker.timing.checkpoint import Progress
from orbitmq.broker.timing.runs import Key, Run, merged, open_run, write_run
from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreDamaged
from orbitmq.store.flush import Runner

log = logging.getLogger("orbitmq.broker")

FLUSH_EVERY: Final = 1 << 16
"""Timers that a start may have to look at again, and the most that wait unordered in memory."""
MERGE_COUNT: Final = 8
_SMALLEST_TIER: Final = 1 << 13
_LIST: Final = "runs.json"
_RETRY_MS: Final = 5_000


class Mark(NamedTuple):
    indexed: int
    bound: Key


class _Saved(msgspec.Struct):
    runs: list[int] = []
    marks: list[Mark] = []
    scan_from: int = 0
    rolled: int = 0
    next_number: int = 1
    cancelled: bytes = b""


class Keeper:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        runner: Runner,
        agenda: Agenda,
        cancelled: Callable[[], bytes],
        flush_every: int = FLUSH_EVERY,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._runner = runner
        self._agenda = agenda
        self._cancelled = cancelled
        self._flush_every = flush_every
        self.marks: list[Mark] = []
        self.scan_from = 0
        self._next_number = 1
        self._busy = False
        self._retry_at_ms = 0
        self._flushed_up_to = 0
        self._cut: tuple[int, int] | None = None

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"run-{number:012d}")

    # --- starting -------------------------------------------------------------------------------------------

    def load(self, queue_end: int, progress: Progress) -> bytes:
        """Opens the runs, or drops them all when they do not belong to this queue; returns the saved
        cancellations.
        """
        self._disk.makedirs(self._directory)
        saved = self._read_list()
        runs: list[Run] = []
        try:
            if max([saved.scan_from, *(mark.indexed for mark in saved.marks)]) > queue_end:
                raise StoreDamaged(
                    self._directory, None, "the timer queue is shorter than when they were made"
                )
            runs = [open_run(self._disk, self._path(number), number) for number in saved.runs]
        except (OSError, StoreDamaged) as error:
            log.error("the index of timers is made anew from the timer queue: %s", error)
            saved, runs = _Saved(next_number=saved.next_number), []
        self._next_number = saved.next_number
        self.marks, self.scan_from = list(saved.marks), saved.scan_from
        self._flushed_up_to = max([saved.scan_from, *(mark.indexed for mark in saved.marks)])
        self._agenda.rolled = max(saved.rolled, progress.rolled)
        self._agenda.bound = (progress.delivered[0], progress.delivered[1] + 1)
        # A timer in a run lay above everything delivered when the run was made: what is below the bound is
        # done.
        for run in runs:
            self._agenda.add_run(run)
        self._remove_leftovers({self._path(run.number) for run in runs})
        return saved.cancelled

    def _read_list(self) -> _Saved:
        path = os.path.join(self._directory, _LIST)
        if not self._disk.exists(path):
            return _Saved()
        try:
            return msgspec.json.decode(self._disk.read_file(path), type=_Saved)
        except msgspec.DecodeError as error:
            log.error(
                "%s is damaged (%s): the index of timers is made anew from the timer queue", path, error
            )
            return _Saved()

    def _remove_leftovers(self, known: set[str]) -> None:
        for name in self._disk.listdir(self._directory):
            path = os.path.join(self._directory, name)
            if name.startswith("run-") and path not in known:
                self._next_number = max(self._next_number, int(name[4:]) + 1 if name[4:].isdigit() else 0)
                self._disk.unlink(path)

    def in_a_run(self, due: int, queue_offset: int) -> bool:
        """Whether a timer that is read again from the queue is known from a run already."""
        key = (due, queue_offset)
        return any(queue_offset < mark.indexed and key >= mark.bound for mark in self.marks)

    # --- going on -------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self._busy

    def tick(self, now_ms: int, indexed: int, log_end: int, durable_end: int, progress: Progress) -> None:
        """Starts one job if there is one to do. `progress` is what the checkpoint on the device says.

        The timers up to `indexed` lie in the log before `log_end`. They become a run when the log is on the
        device up to there: a run must not know of timers that a power cut takes back.
        """
        if self._busy or now_ms < self._retry_at_ms:
            return
        if self._cut is None and indexed - self._flushed_up_to >= self._flush_every:
            self._cut = (indexed, log_end)
        if self._cut is not None and self._cut[1] <= durable_end:
            self._flush(now_ms, self._cut[0], progress)
            self._cut = None
            return
        done = [
            run
            for run in self._agenda.runs
            if run.cursor == run.count
            and progress.is_done(run.last_key[0], run.last_queue_offset)
            and run.last_key <= progress.delivered
        ]
        if done:
            self._replace(now_ms, done, progress)
            return
        tier = self._full_tier()
        if tier:
            self._replace(now_ms, tier, progress)

    def _full_tier(self) -> list[Run]:
        tiers: dict[int, list[Run]] = {}
        for run in self._agenda.runs:
            left = run.count - run.cursor
            tiers.setdefault((left // _SMALLEST_TIER).bit_length() // 3, []).append(run)
        full = [runs for runs in tiers.values() if len(runs) >= MERGE_COUNT]
        return min(full, key=lambda runs: sum(run.count for run in runs), default=[])

    def _flush(self, now_ms: int, indexed: int, progress: Progress) -> None:
        frozen = self._agenda.freeze(indexed)
        mark = Mark(indexed, self._agenda.bound)
        before = self._flushed_up_to
        self._flushed_up_to = indexed
        number = self._take_number()
        self._settle(progress)
        self.marks.append(mark)
        runs = [run.number for run in self._agenda.runs]
        saved = self._saved([*runs, number] if frozen.rows else runs, progress)
        made: list[Run] = []

        def job() -> None:
            if frozen.rows:
                write_run(self._disk, self._path(number), (frozen.in_order(),), frozen.rows)
                made.append(open_run(self._disk, self._path(number), number))
            self._write_list(saved)

        def done(error: BaseException | None) -> None:
            if error is None:
                self._agenda.flushed(made[0] if made else None)
            else:
                self.marks.remove(mark)
                self._flushed_up_to = before
                self._agenda.flush_failed()
            self._finished(now_ms, error)

        self._busy = True
        self._runner.submit(job, done)

    def _replace(self, now_ms: int, old: list[Run], progress: Progress) -> None:
        """Writes what is left of several runs as one; nothing is left of those that are delivered."""
        after = (progress.delivered[0], progress.delivered[1] + 1)
        starts = [run.first_from(after) for run in old]
        most = sum(run.count - start for run, start in zip(old, starts, strict=True))
        number = self._take_number()
        self._settle(progress)
        kept = [run.number for run in self._agenda.runs if run not in old]
        saved = self._saved(kept, progress)
        made: list[Run] = []

        def job() -> None:
            if most and write_run(self._disk, self._path(number), merged(old, starts, progress.rolled), most):
                made.append(open_run(self._disk, self._path(number), number))
                saved.runs.append(number)
            self._write_list(saved)
            for run in old:
                self._remove(run.path)

        def done(error: BaseException | None) -> None:
            if error is None:
                self._agenda.replace_runs(old, made[0] if made else None)
            self._finished(now_ms, error)

        self._busy = True
        self._runner.submit(job, done)

    def _remove(self, path: str) -> None:
        try:
            self._disk.unlink(path)
        except OSError as error:
            log.warning(
                "%s is no longer needed, but cannot be removed before the next start: %s", path, error
            )

    def _finished(self, now_ms: int, error: BaseException | None) -> None:
        self._busy = False
        if error is not None:
            self._retry_at_ms = now_ms + _RETRY_MS
            log.error("the index of timers could not be written, it is tried again: %s", error)

    def _take_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def _settle(self, progress: Progress) -> None:
        """Marks whose timers are delivered as far as they are not in runs: no start has to look before them
        again.
        """
        reached = (progress.delivered[0], progress.delivered[1] + 1)
        settled = [m.indexed for m in self.marks if m.bound <= reached and m.indexed <= progress.indexed]
        self.scan_from = max([self.scan_from, *settled])
        self.marks = [mark for mark in self.marks if mark.indexed > self.scan_from]

    def _saved(self, runs: list[int], progress: Progress) -> _Saved:
        return _Saved(
            runs, list(self.marks), self.scan_from, progress.rolled, self._next_number, self._cancelled()
        )

    def _write_list(self, saved: _Saved) -> None:
        path = os.path.join(self._directory, _LIST)
        self._disk.write_atomic(path, msgspec.json.encode(saved), backup=False)
