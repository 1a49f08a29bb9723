"""One measurement, and the watch that takes it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from bench.clients.stopwatch import machine_cpu_s, process_cpu_s
from bench.spark.processes import MemoryPeak, family_cpu_s


@dataclass(frozen=True, slots=True)
class Figure:
    side: str
    row: str
    size: int
    messages: int
    seconds: float
    cpu_s: float
    """Of the driver, its Java and its Python workers."""
    broker_cpu_s: float
    other_cores: float
    java_mb: float
    python_mb: float
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def per_cpu_s(self) -> float:
        """Messages for a second of everybody's CPU, the broker's included."""
        return self.messages / (self.cpu_s + self.broker_cpu_s)

    @property
    def per_spark_cpu_s(self) -> float:
        return self.messages / self.cpu_s

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        return cls(**fields)


class Watch:
    """Runs while it is entered; `figure` tells what it saw."""

    def __init__(self, side: str, row: str, size: int, broker_pid: int) -> None:
        self._names = side, row, size
        self._broker_pid = broker_pid
        self._memory = MemoryPeak(os.getpid())
        self._begun = self._ended = (0.0, 0.0, 0.0, 0.0)

    def __enter__(self) -> Self:
        self._memory.__enter__()
        self._begun = self._now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = self._now()
        self._memory.__exit__(kind, error, trace)

    def _now(self) -> tuple[float, float, float, float]:
        broker = process_cpu_s(self._broker_pid) if self._broker_pid else 0.0
        return time.perf_counter(), family_cpu_s(os.getpid()), broker, machine_cpu_s()

    def figure(self, messages: int, latencies_s: Sequence[float] = ()) -> Figure:
        seconds, cpu, broker, machine = (
            after - before for before, after in zip(self._begun, self._ended, strict=True)
        )
        ordered = sorted(latencies_s)
        return Figure(
            *self._names,
            messages,
            seconds,
            cpu,
            broker,
            max(0.0, (machine - cpu - broker) / seconds),
            self._memory.java_mb,
            self._memory.python_mb,
            _quantile_ms(ordered, 0.50),
            _quantile_ms(ordered, 0.99),
        )


def _quantile_ms(ordered: Sequence[float], quantile: float) -> float | None:
    return ordered[int((len(ordered) - 1) * quantile)] * 1e3 if ordered else None
