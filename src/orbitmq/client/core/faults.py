"""Which brokers to leave alone for a while: the slow ones a little, the silent ones longer.

Sans-io: the time is a parameter, in seconds of any clock that does not jump.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# From this latency on (ms) a broker is avoided for this long (ms).
Steps = tuple[tuple[int, int], ...]
STEPS: Final[Steps] = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
)
# The table of clients before 5.0, whose pauses are long enough to be noticed by people.
LONG_STEPS: Final[Steps] = (
    (15_000, 600_000),
    (3_000, 180_000),
    (2_000, 120_000),
    (1_000, 60_000),
    (550, 30_000),
)
ISOLATION_MS: Final = 10_000
# How much one answer counts in the running mean of a broker's latency.
WEIGHT: Final = 0.1
# A broker that was not asked for this long is taken to be half as slow as it was: else it is never tried again.
HALF_LIFE_S: Final = 2.0


class Faults:
    """`slow_s` is the latency from which `note` must be called; below, calling it only feeds the mean."""

    def __init__(self, steps: Steps = STEPS, isolation_ms: int = ISOLATION_MS) -> None:
        self._steps = steps
        self._isolation_s = isolation_ms / 1000
        self.slow_s = min(latency for latency, pause in steps if pause) / 1000
        self._avoid_until: dict[str, float] = {}
        self._means: dict[str, tuple[float, float]] = {}

    @property
    def any(self) -> bool:
        """Whether some broker may have to be avoided: False lets callers skip the question."""
        return bool(self._avoid_until)

    def note(self, broker: str, latency_s: float, now: float) -> None:
        """An answer came after this long."""
        mean = self.expected_s(broker, now)
        self._means[broker] = (mean + (latency_s - mean) * WEIGHT if mean else latency_s, now)
        if latency_s < self.slow_s:
            # An answer in time: the broker is well again, whatever was thought of it.
            self._avoid_until.pop(broker, None)
            return
        pause_s = next((pause for latency, pause in self._steps if latency_s * 1000 >= latency), 0) / 1000
        self._avoid_until[broker] = now + pause_s

    def isolate(self, broker: str, now: float) -> None:
        """No answer came."""
        self._avoid_until[broker] = now + self._isolation_s

    def forgive(self, broker: str) -> None:
        """Another process has taken this broker's place."""
        self._avoid_until.pop(broker, None)
        self._means.pop(broker, None)

    def avoided(self, broker: str, now: float) -> bool:
        until = self._avoid_until.get(broker)
        if until is None:
            return False
        if now < until:
            return True
        del self._avoid_until[broker]
        return False

    def healthy(self, brokers: Iterable[str], now: float) -> list[str]:
        return [broker for broker in brokers if not self.avoided(broker, now)]

    def expected_s(self, broker: str, now: float) -> float:
        """How long this broker probably takes; 0 when nothing is known."""
        known = self._means.get(broker)
        if known is None:
            return 0.0
        mean, when = known
        return float(mean * 0.5 ** (max(now - when, 0.0) / HALF_LIFE_S))
