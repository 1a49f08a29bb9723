"""Bringing written bytes to the device, outside the event loop's thread.

`os.fdatasync` releases the GIL, so one thread that does nothing else costs the loop nothing. At most one job is under
way; whatever was appended meanwhile is covered by the next one, which is what makes a group commit of it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from orbitmq.store.disk import Disk

Job = Callable[[], None]
Done = Callable[[BaseException | None], None]


class Runner(Protocol):
    """Runs disk jobs one after the other and reports each one's end on the store's own thread."""

    def submit(self, job: Job, done: Done) -> None: ...

    def soon(self, call: Callable[[], None]) -> None:
        """Calls it on the store's own thread when what has arrived there by now is handled."""

    def close(self) -> None: ...


class InlineRunner:
    """Runs each job at once: for tools and tests without an event loop."""

    def submit(self, job: Job, done: Done) -> None:
        done(outcome(job))

    def soon(self, call: Callable[[], None]) -> None:
        call()

    def close(self) -> None:
        return


def outcome(job: Job) -> BaseException | None:
    """Does the job; what went wrong, whatever it is: acks wait for its end, so that must be told."""
    try:
        job()
    except Exception as failure:
        return failure
    return None


class ThreadRunner:
    """One disk thread behind an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._soon: list[Callable[[], None]] = []
        self._jobs: queue.SimpleQueue[tuple[Job, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="orbitmq-disk", daemon=True)
        self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        self._jobs.put((job, done))

    def soon(self, call: Callable[[], None]) -> None:
        if not self._soon:
            self._loop.call_soon(self._turn_over)
        self._soon.append(call)

    def _turn_over(self) -> None:
        calls, self._soon = self._soon, []
        for call in calls:
            call()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            try:
                self._loop.call_soon_threadsafe(done, outcome(job))
            except RuntimeError:
                return  # the loop is gone, and with it everybody who would wait for the answer

    def close(self) -> None:
        """Waits for the jobs already given."""
        self._turn_over()
        self._jobs.put(None)
        self._thread.join(timeout=30)


def sync_files(disk: Disk, paths: Iterable[str]) -> None:
    """For the disk thread: opens the files by name, since the loop may close its own descriptors meanwhile."""
    for path in paths:
        if disk.exists(path):
            fd = disk.open_rw(path)
            try:
                disk.fdatasync(fd)
            finally:
                disk.close(fd)
