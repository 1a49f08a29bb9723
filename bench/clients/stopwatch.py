"""What one measurement says: messages, time, the client's CPU, and how much of the machine others took meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Figure:
    client: str
    row: str
    messages: int
    seconds: float
    cpu_s: float
    other_cores: float
    """CPU that neither this client nor its broker used: how much a busy machine spoiled the figure."""
    p50_us: float | None = None
    p99_us: float | None = None

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.messages * 1e6

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        return cls(**fields)


class Stopwatch:
    """Runs from its making. `stop` gives the figure."""

    def __init__(self, client: str, row: str, broker_pid: int) -> None:
        self._client = client
        self._row = row
        self._broker_pid = broker_pid
        self._broker = process_cpu_s(broker_pid)
        self._machine = machine_cpu_s()
        self._cpu = time.process_time()
        self._began = time.perf_counter()

    def stop(self, messages: int, latencies_s: Sequence[float] = ()) -> Figure:
        seconds = time.perf_counter() - self._began
        cpu = time.process_time() - self._cpu
        broker = process_cpu_s(self._broker_pid) - self._broker
        others = machine_cpu_s() - self._machine - broker - cpu
        ordered = sorted(latencies_s)
        return Figure(
            self._client,
            self._row,
            messages,
            seconds,
            cpu,
            max(0.0, others / seconds),
            _quantile_us(ordered, 0.50),
            _quantile_us(ordered, 0.99),
        )


def process_cpu_s(pid: int) -> float:
    """User and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def machine_cpu_s() -> float:
    """User, nice and system time of all processes."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(int(field) for field in fields[1:4]) / _TICKS


def _quantile_us(ordered: Sequence[float], quantile: float) -> float | None:
    return ordered[int((len(ordered) - 1) * quantile)] * 1e6 if ordered else None
