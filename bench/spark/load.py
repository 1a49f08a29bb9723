"""What is measured, the same for every side: topics, queries, how many messages, and the bars."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE: Final = "orbitmq"
STORE: Final = "orbitmq-store"
KAFKA: Final = "kafka"
FLOOR: Final = "floor"
SIDES: Final = (SOURCE, STORE, KAFKA, FLOOR)

COUNT: Final = "count"
SUM: Final = "sum"
GROUP: Final = "group"
WHOLE: Final = "whole"
STREAM: Final = "stream"
BATCHES: Final = "batches"
LATENCY: Final = "latency"
LATENCY_HASTY: Final = "latency-hasty"
"""Kafka's, told not to hold its fetches back for half a second when there is nothing new."""
WRITE: Final = "write"
WRITE_ONCE: Final = "write-once"
GROWTH: Final = "growth"

TITLES: Final = {
    COUNT: "`count`",
    SUM: "`sum(length(body))`",
    GROUP: "`groupBy(label)`",
    WHOLE: "every column",
    STREAM: "stream, all at once",
    BATCHES: "stream, ten batches",
    WRITE: "write, at least once",
    WRITE_ONCE: "write, exactly once",
}
QUERIES: Final = (COUNT, SUM, GROUP, WHOLE)
ABSENT: Final = {
    STORE: (STREAM, BATCHES, WRITE, LATENCY),
    KAFKA: (GROWTH,),
    FLOOR: (COUNT, GROUP, WHOLE, STREAM, BATCHES, GROWTH, WRITE, LATENCY),
}
"""What a side cannot do or is not asked for."""

SIZES: Final = (128, 1024)
QUEUES: Final = 8
LABELS: Final = 16
"""Different labels: a tag here, the record's key at Kafka."""
GROWTH_BYTES: Final = 128
CORES: Final = 2
WARM_RUNS: Final = 40
"""Of a query on a small topic before its first figure in a driver's life; more until Java's compiler has settled, then
some on the topic itself until it has settled there, and one more on the small topic before every figure."""


@dataclass(frozen=True, slots=True)
class Load:
    messages: int = 2_000_000
    growth: tuple[int, ...] = (1_000_000, 2_000_000, 4_000_000, 8_000_000)
    written: int = 100_000
    repeats: int = 2
    """How often a query is measured in the life of a driver, after those that only warm it."""
    latency_s: float = 30.0
    latency_rate: float = 10.0
    """Messages a second while the latency is measured."""


@dataclass(frozen=True, slots=True)
class Step:
    """What all sides do one after the other, so that a busy minute of the machine meets all of them."""

    row: str
    size: int
    number: int


def steps(load: Load, rows: tuple[str, ...]) -> list[Step]:
    sized = [row for row in (*QUERIES, STREAM, BATCHES) if row in rows]
    found = [Step(row, size, number) for row in sized for size in SIZES for number in range(load.repeats)]
    found += [Step(GROWTH, GROWTH_BYTES, 0)] if GROWTH in rows else []
    found += [Step(WRITE, SIZES[0], number) for number in range(load.repeats)] if WRITE in rows else []
    found += [Step(LATENCY, 0, 0)] if LATENCY in rows else []
    return found


@dataclass(frozen=True, slots=True)
class Work:
    """What a driver needs to know."""

    side: str
    addr: str
    """Of the name server, or of Kafka."""
    broker_pid: int
    scratch: str
    store: str
    load: Load

    def place(self, name: str) -> Path:
        return Path(self.scratch) / name


def topic_of(size: int) -> str:
    return f"bench-{size}"


GROWTH_TOPIC: Final = "bench-growth"
LATENCY_TOPIC: Final = "bench-latency"
WRITE_TOPIC: Final = "bench-write"
WARM_TOPIC: Final = "bench-warm"


def topics(load: Load, *, growth: bool) -> dict[str, tuple[int, int]]:
    """Every topic that is filled before, with how many messages of what size."""
    filled = {topic_of(size): (load.messages, size) for size in SIZES}
    filled[WARM_TOPIC] = (load.messages // 10, SIZES[0])
    if growth and load.growth:
        filled[GROWTH_TOPIC] = (max(load.growth), GROWTH_BYTES)
    return filled
