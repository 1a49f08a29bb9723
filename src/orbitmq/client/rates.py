"""Messages per second of a consumer, over the time between the last two looks at its counts."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from orbitmq.client.holding import Holding, Tally


class Rates:
    def __init__(self) -> None:
        self.pulled = 0.0
        self.finished = 0.0
        self.failed = 0.0
        self._at: float | None = None
        self._pulled = 0
        self._failed = 0
        self._seen: WeakKeyDictionary[Holding, int] = WeakKeyDictionary()

    def sample(self, now: float, tally: Tally, holdings: Iterable[Holding]) -> None:
        finished = 0
        for holding in holdings:
            count = holding.unfinished.finished
            finished += count - self._seen.get(holding, 0)
            self._seen[holding] = count
        if self._at is not None and now > self._at:
            span_s = now - self._at
            self.pulled = (tally.pulled - self._pulled) / span_s
            self.failed = (tally.failed - self._failed) / span_s
            self.finished = finished / span_s
        self._at, self._pulled, self._failed = now, tally.pulled, tally.failed
