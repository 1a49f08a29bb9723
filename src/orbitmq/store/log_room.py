"""Blocks of the disk for a log that grows fast, reserved ahead of its writer.

A write into a hole of a file makes the file system look for blocks and book them, page by page: a quarter of what the
write costs. A broker with little to do reserves nothing, since its disk would look fuller than it is.
"""

from __future__ import annotations

import logging
from typing import Final

from orbitmq.store.commit_log import CommitLog
from orbitmq.store.disk import Disk
from orbitmq.store.flush import Runner

log = logging.getLogger("orbitmq.store")

FAST_BYTES: Final = 2 << 20
"""Growth between two looks, a tenth of a second apart, from which on it is worth it."""
LOOKS_AHEAD: Final = 10
LEAST_BYTES: Final = 64 << 20
MOST_BYTES: Final = 512 << 20
ROOMY: Final = 0.7
"""On a disk that is fuller, space is left to whoever needs it now."""


class LogRoom:
    def __init__(self, log: CommitLog, disk: Disk, runner: Runner) -> None:
        self._log = log
        self._disk = disk
        self._runner = runner
        self._seen: int | None = None
        self._reserved_to = 0
        self._under_way = False

    def look(self) -> None:
        """Call it about ten times a second."""
        series, position = self._log.series, self._log.position
        grown = 0 if self._seen is None else position - self._seen
        self._seen = position
        if grown < FAST_BYTES or self._under_way:
            return
        wanted = min(max(grown * LOOKS_AHEAD, LEAST_BYTES), MOST_BYTES)
        start = max(self._reserved_to, position)
        base = series.base_of(start)
        if base is None or start - position > wanted // 2 or self._disk.disk_usage(series.directory) > ROOMY:
            return
        path = series.path(base)
        file_end = base + series.segment_bytes
        end = min(position + wanted, file_end)
        self._under_way = True

        def job() -> None:
            fd = self._disk.open_rw(path)
            try:
                self._disk.fallocate(fd, start - base, end - start)
            finally:
                self._disk.close(fd)

        def done(error: BaseException | None) -> None:
            self._under_way = False
            if error is not None:
                log.info("no room is reserved in this file of the log: %s", error)
            # Where it did not work it is not tried again before the next file: the log gets on without.
            self._reserved_to = end if error is None else file_end

        self._runner.submit(job, done)
