"""The log's next file, made while half of the present one is left, so that no message waits for it."""

from __future__ import annotations

from orbitmq.store.commit_log import CommitLog
from orbitmq.store.disk import Disk
from orbitmq.store.flush import Runner


class NextSegment:
    def __init__(self, log: CommitLog, disk: Disk, runner: Runner) -> None:
        self._log = log
        self._disk = disk
        self._runner = runner
        self._under_way = False
        self.wanted = True

    def prepare(self) -> None:
        series = self._log.series
        if self._under_way or series.end - self._log.position > series.segment_bytes // 2:
            return
        base, path = series.end, series.path(series.end)
        self._under_way = True

        def job() -> None:
            self._disk.close(self._disk.open_rw(path, create=True, size=series.segment_bytes))
            self._disk.fsync_dir(series.directory)

        def done(error: BaseException | None) -> None:
            self._under_way = False
            if error is None and self.wanted and series.end == base:
                series.bases.append(base)

        self._runner.submit(job, done)
