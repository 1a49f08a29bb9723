"""How many messages to handle at the same time: C × (T1 + T2) / T1.

T1 is the time a message keeps a processor busy, T2 the time it waits for something else (a database, another
service), C the number of processors. With that many at once the processors are just never idle; more only makes
every message slower. Both times are measured, and old measurements fade.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The newest of this many samples weigh about as much as all older ones together.
MEMORY_SAMPLES: Final = 256
MIN_SAMPLES: Final = 16
MOST: Final = 1000
# Below this a clock tells nothing any more.
MIN_BUSY_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Advice:
    """What was measured, and what follows from it."""

    busy_ms: float
    """T1: per message, a processor works."""
    waiting_ms: float
    """T2: per message, it waits."""
    processors: int
    concurrency: int
    samples: int

    def __str__(self) -> str:
        return (
            f"a message takes {self.busy_ms:.3g} ms of work and {self.waiting_ms:.3g} ms of waiting: "
            f"{self.concurrency} at the same time would keep {self.processors} processor(s) busy"
        )

    def differs_from(self, concurrency: int) -> bool:
        """Whether another setting is worth a word: twice as many, or half as many."""
        return self.concurrency >= 2 * concurrency or self.concurrency * 2 <= concurrency


class HandlingTimes:
    """Takes the times of single messages. One event loop runs handlers on one processor."""

    def __init__(self, processors: int = 1) -> None:
        self.processors = processors
        self.samples = 0
        self._busy_s = 0.0
        self._total_s = 0.0

    @property
    def mean_ms(self) -> float:
        """From beginning to end of a message, on average."""
        return self._total_s * 1000

    def record(self, busy_s: float, total_s: float) -> None:
        self.samples += 1
        weight = max(1 / self.samples, 1 / MEMORY_SAMPLES)
        busy_s = max(busy_s, 0.0)
        self._busy_s += weight * (busy_s - self._busy_s)
        self._total_s += weight * (max(total_s, busy_s) - self._total_s)

    def advice(self) -> Advice | None:
        """None until enough messages were measured."""
        if self.samples < MIN_SAMPLES:
            return None
        busy_s = max(self._busy_s, MIN_BUSY_S)
        wanted = self.processors * max(self._total_s, busy_s) / busy_s
        return Advice(
            busy_ms=self._busy_s * 1000,
            waiting_ms=max(0.0, self._total_s - self._busy_s) * 1000,
            processors=self.processors,
            concurrency=min(MOST, max(1, round(wanted))),
            samples=self.samples,
        )
