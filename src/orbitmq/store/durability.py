"""Group commit: who waits for which part of the log to be on the device, and who is told when it is.

Policy only; the flushing itself is a job for a `Runner`. A failed flush is final: the system may have dropped the
dirty pages, so no later success proves anything about them, and the store takes no more writes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from orbitmq.store.commit_log import CommitLog
from orbitmq.store.disk import Disk
from orbitmq.store.flush import Done, Job, Runner, outcome
from orbitmq.store.lone_flush import LoneFlush


class Durable(Enum):
    YES = "yes"
    TIMEOUT = "timeout"
    FAILED = "failed"
    COPY_TIMEOUT = "on the device here, but not confirmed by a slave in time"
    NO_COPY = "on the device here, and no slave is there to confirm it"


Waiter = Callable[[Durable], None]


class Copies(Protocol):
    """Whoever knows how much of the log other machines hold."""

    def after(self, end: int, waiter: Waiter) -> Waiter:
        """A waiter for the own device that, after it, waits for a copy up to `end`, and then tells the given one."""


class FlushJob:
    """Brings these files to the device, and remembers how long that took."""

    __slots__ = ("_descriptors", "_fdatasync", "seconds")

    def __init__(self, fdatasync: Callable[[int], None], descriptors: list[int]) -> None:
        self._fdatasync = fdatasync
        self._descriptors = descriptors
        self.seconds = 0.0

    def __call__(self) -> None:
        started = time.perf_counter()
        for fd in self._descriptors:
            self._fdatasync(fd)
        self.seconds = time.perf_counter() - started


class Durability:
    __slots__ = (
        "_busy",
        "_continuous",
        "_disk",
        "_elsewhere",
        "_log",
        "_on_failed",
        "_on_flushed",
        "_runner",
        "_timeout_ms",
        "_waiters",
        "failed",
        "lone",
        "offset",
    )

    def __init__(
        self,
        log: CommitLog,
        disk: Disk,
        runner: Runner,
        timeout_ms: int,
        on_flushed: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
        *,
        continuous: bool = False,
    ) -> None:
        """`continuous`: what was written during a flush is flushed next, though nobody waits: readers do."""
        self._continuous = continuous
        self._log = log
        self._disk = disk
        self._runner = runner
        self._timeout_ms = timeout_ms
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self.lone = LoneFlush()
        self._waiters: deque[tuple[int, int, Waiter]] = deque()
        self._busy = False
        self.failed = False
        self._elsewhere = False
        self.offset = log.position

    def when(self, end: int, now_ms: int, waiter: Waiter) -> None:
        """Calls the waiter once the log is on the device up to `end`, at once if it already is."""
        if end <= self.offset:
            waiter(Durable.YES)
        elif self.failed:
            waiter(Durable.FAILED)
        else:
            self._waiters.append((end, now_ms + self._timeout_ms, waiter))

    def kick(self) -> None:
        """Flushes everything written so far, unless a flush is under way: that one's end starts the next.

        It begins behind this turn of the loop, so that whatever else has arrived by now shares it.
        """
        if self._busy or self.failed or self._log.position <= self.offset:
            return
        self._busy = True
        self._runner.soon(self._start)

    def _start(self) -> None:
        if self.failed:
            return
        target = self._log.position
        job = self.flush_job()

        def done(error: BaseException | None) -> None:
            self.lone.took(job.seconds)
            self._finished(target, error)

        alone = len(self._waiters) == 1 and not self._elsewhere
        if alone and self.lone.is_welcome(target - self.offset):
            done(outcome(job))
        else:
            self._runner.submit(job, done)

    def flush_job(self) -> FlushJob:
        """What has to be done in the disk thread for all that is written now."""
        series = self._log.series
        first = self.offset - self.offset % series.segment_bytes
        descriptors = [series.fd(base) for base in series.bases if first <= base < self._log.position]
        return FlushJob(self._disk.fdatasync, descriptors)

    def _finished(self, target: int, error: BaseException | None) -> None:
        self._busy = False
        if error is not None:
            self.fail(error)
        if self.failed:
            return
        self.offset = target
        self._on_flushed(target)
        waiters = self._waiters
        while waiters and waiters[0][0] <= target:
            waiters.popleft()[2](Durable.YES)
        if waiters or self._continuous:
            self.kick()

    def submit(self, job: Job, done: Done) -> None:
        """A job that flushes the log among other things. The system tells a failure once, to whoever flushes first,
        so nothing is flushed on the loop until this one's end is known there."""

        def done_elsewhere(error: BaseException | None) -> None:
            self._elsewhere = False
            done(error)

        self._elsewhere = True
        self._runner.submit(job, done_elsewhere)

    def fail(self, error: BaseException) -> None:
        """Final: nothing that is not on the device by now is acknowledged any more."""
        self.failed = True
        self._on_failed(error)
        while self._waiters:
            self._waiters.popleft()[2](Durable.FAILED)

    def expire(self, now_ms: int) -> None:
        """Waiters stand in order of time, so the first one that may still wait ends the search."""
        while self._waiters and self._waiters[0][1] <= now_ms:
            self._waiters.popleft()[2](Durable.TIMEOUT)

    @property
    def busy(self) -> bool:
        return self._busy
