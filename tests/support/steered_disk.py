"""A disk that is as full, and whose files are as old, as the test says."""

from __future__ import annotations

import os
from collections.abc import Callable

from orbitmq.store.disk import Disk

HOUR_MS = 3_600_000


class SteeredDisk(Disk):
    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__()
        self.clock = clock
        self.used = 0.1
        self.age_ms = 0
        self.unlinks_left = 1_000_000
        """So many deletions work; the next ones fail."""

    def disk_usage(self, path: str | os.PathLike[str]) -> float:
        return self.used

    def mtime_ms(self, path: str | os.PathLike[str]) -> int:
        return self.clock() - self.age_ms

    def unlink(self, path: str | os.PathLike[str]) -> None:
        self.unlinks_left -= 1
        if self.unlinks_left < 0:
            raise OSError(5, "Input/output error", os.fspath(path))
        super().unlink(path)
