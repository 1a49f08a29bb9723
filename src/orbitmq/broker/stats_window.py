"""A growing counter seen over the last minute, hour and day.

Samples are sparse: a sample is only kept when the counter moved, because the counter's value at any time is
that of the last sample before it. Thousands of idle topics then cost one comparison each per round, and no
memory.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

MINUTE_STEP_MS: Final = 10_000
HOUR_STEP_MS: Final = 600_000
DAY_STEP_MS: Final = 3_600_000

# Step between samples and how many of them are kept besides the base.
_LEVELS: Final = ((MINUTE_STEP_MS, 6), (HOUR_STEP_MS, 6), (DAY_STEP_MS, 24))
MINUTE, HOUR, DAY = range(3)


class Sample(NamedTuple):
    at_ms: int
    value: int
    times: int


class Rate(NamedTuple):
    """What happened in a window: the sum, per second, and on average per request."""

    sum: int
    tps: float
    avgpt: float

    def to_json(self) -> dict[str, object]:
        return {"avgpt": self.avgpt, "sum": self.sum, "tps": self.tps}


NO_RATE: Final = Rate(0, 0.0, 0.0)


class Window:
    """One counter's samples on three levels. `value` and `times` only ever grow."""

    __slots__ = ("_levels", "born_ms", "moved_ms", "times", "value")

    def __init__(self, now_ms: int) -> None:
        self.value = 0
        self.times = 0
        self.born_ms = now_ms
        self.moved_ms = now_ms
        zero = Sample(now_ms, 0, 0)
        self._levels = tuple(deque((zero,), maxlen=keep + 2) for _, keep in _LEVELS)

    def sample(self, level: int, now_ms: int) -> None:
        samples = self._levels[level]
        if samples[-1].value != self.value or samples[-1].times != self.times:
            samples.append(Sample(now_ms, self.value, self.times))
            self.moved_ms = now_ms

    def rate(self, level: int, last_tick_ms: int) -> Rate:
        """Change between the last sampling round and one window before it, or the counter's birth."""
        samples = self._levels[level]
        step_ms, keep = _LEVELS[level]
        from_ms = max(last_tick_ms - step_ms * keep, self.born_ms)
        last = samples[-1]
        base = samples[0]
        for sample in samples:
            if sample.at_ms > from_ms:
                break
            base = sample
        elapsed_ms = last_tick_ms - from_ms
        total = last.value - base.value
        times = last.times - base.times
        if elapsed_ms <= 0 or total == 0:
            return NO_RATE
        return Rate(total, total * 1000.0 / elapsed_ms, total / times if times else 0.0)
