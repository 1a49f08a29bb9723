"""Which mastership wrote which part of the log, so that two logs can be compared without reading them.

A mastership is counted by its epoch, and writes from where its log ended when it began. Two logs with a byte of one
epoch at one place have the same bytes up to there: whoever got it from that master first got what lies before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from orbitmq.store.disk import Disk, StrPath
from orbitmq.store.errors import StoreDamaged
from orbitmq.wire import fastjson
from orbitmq.wire.errors import WireError

FILE_NAME = "epochs.json"


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """(epoch, log offset at which it began), both growing; each lasts to the next one, the last to the log's end."""

    entries: tuple[tuple[int, int], ...] = ()

    @property
    def last_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else 0

    def begin(self, epoch: int, start: int) -> EpochHistory:
        """The history of a new master whose log ends at `start`. To be saved before it appends anything.

        What a log has from before its first epoch counts as part of it: others get it from this master only.
        """
        if epoch <= self.last_epoch:
            raise ValueError(f"epoch {epoch} cannot begin: epoch {self.last_epoch} has begun already")
        kept = self.cut(start).entries
        return EpochHistory((*kept, (epoch, start if kept else 0)))

    def cut(self, end: int) -> EpochHistory:
        """Of a log that ends at `end`: epochs of which it has no byte are none of its."""
        return EpochHistory(tuple(entry for entry in self.entries if entry[1] < end))

    def forget_before(self, log_start: int) -> EpochHistory:
        """Without epochs whose whole part was cleaned away; a log that ends there has to begin anew anyway."""
        later = tuple(entry for entry in self.entries if entry[1] > log_start)
        return EpochHistory(self.entries[-len(later) - 1 :] if len(later) < len(self.entries) else later)

    def ranges(self, end: int) -> Iterator[tuple[int, int, int]]:
        """(epoch, start, end) of what a log that ends at `end` has of each."""
        for (epoch, start), (_, limit) in pairwise((*self.cut(end).entries, (0, end))):
            yield epoch, start, limit

    def to_json(self) -> list[list[int]]:
        return [[epoch, start] for epoch, start in self.entries]

    @classmethod
    def from_json(cls, data: Any) -> EpochHistory:
        """ValueError when it is no list of pairs that grow."""
        if not isinstance(data, list):
            raise ValueError("a history of epochs is a list of [epoch, start]")
        entries: list[tuple[int, int]] = []
        for pair in data:
            if not isinstance(pair, list) or [type(part) for part in pair] != [int, int]:
                raise ValueError(f"{pair!r} in a history of epochs is not [epoch, start]")
            epoch, start = pair
            if epoch <= (entries[-1][0] if entries else 0) or start < (entries[-1][1] if entries else 0):
                raise ValueError(f"{pair!r} in a history of epochs does not follow what stands before it")
            entries.append((epoch, start))
        return cls(tuple(entries))

    @classmethod
    def load(cls, disk: Disk, path: StrPath) -> EpochHistory:
        """Empty when there is no file. No backup is asked: an older history would claim bytes for the wrong epoch."""
        try:
            data = disk.read_file(path)
        except FileNotFoundError:
            return cls()
        try:
            content = fastjson.loads(data)
            return cls.from_json(content.get("epochs") if isinstance(content, dict) else content)
        except (WireError, ValueError) as error:
            raise StoreDamaged(
                os.fspath(path),
                None,
                f"the history of epochs cannot be read: {error}",
                "empty this broker's store so that it takes everything from the master again, or restore the file",
            ) from error

    def save(self, disk: Disk, path: StrPath) -> None:
        """On the device when this returns."""
        disk.makedirs(os.path.dirname(os.fspath(path)) or ".")
        disk.write_atomic(path, fastjson.dumps({"epochs": self.to_json()}), backup=False)


def common_end(mine: EpochHistory, my_end: int, theirs: EpochHistory, their_end: int) -> int:
    """The largest offset up to which both logs are the same; 0 when they have no epoch in common."""
    their_limits = {(epoch, start): limit for epoch, start, limit in theirs.ranges(their_end)}
    shared = [
        min(limit, their_limits[epoch, start])
        for epoch, start, limit in mine.ranges(my_end)
        if (epoch, start) in their_limits
    ]
    return max(shared, default=0)
