"""The sentences of the Spark benchmark: the worst query decides about a bar, and beside it stands what Spark costs."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from bench.spark.figure import Figure
from bench.spark.load import (
    COUNT,
    FLOOR,
    GROUP,
    GROWTH,
    KAFKA,
    LATENCY,
    LATENCY_HASTY,
    SIZES,
    SOURCE,
    STORE,
    STREAM,
    SUM,
)
from bench.spark.table import markdown, verdicts

MESSAGES = 1000


def figure(side: str, row: str, size: int, cpu_s: float, broker_cpu_s: float = 0.0) -> Figure:
    return Figure(side, row, size, MESSAGES, cpu_s, cpu_s, broker_cpu_s, 0.0, 100.0, 50.0)


def batches(side: str, cpu_s: float, broker_cpu_s: float = 0.0) -> list[Figure]:
    return [figure(side, row, size, cpu_s, broker_cpu_s) for row in (COUNT, SUM, GROUP) for size in SIZES]


def test_a_bar_that_every_query_reaches() -> None:
    figures = [*batches(SOURCE, 4.0, 1.0), *batches(STORE, 2.5), *batches(KAFKA, 8.0, 2.0)]
    source, store = verdicts(figures)
    assert source.startswith(
        "`orbitmq`: 2.00 to 2.00 times Kafka's rows per CPU second in batches, bar 2: reached"
    )
    assert store.startswith("`orbitmq-store`: 4.00 to 4.00 times") and "bar 4: reached" in store


def test_the_worst_query_decides_and_is_named() -> None:
    slow = [f for f in batches(STORE, 2.0) if (f.row, f.size) != (SUM, 1024)] + [
        figure(STORE, SUM, 1024, 4.0)
    ]
    (store,) = verdicts([*slow, *batches(KAFKA, 8.0, 2.0)])
    assert "2.50 to 5.00 times" in store
    assert "bar 4: **missed** (least: `sum(length(body))`, 1024 B)" in store
    assert "4.29 times over all of them together" in store  # six queries in 14 s instead of 60


def test_a_source_that_reads_nothing_shows_the_most_that_any_can_reach() -> None:
    floor = [figure(FLOOR, SUM, 128, 2.0), figure(FLOOR, SUM, 1024, 4.0)]
    _, most = verdicts([*batches(STORE, 4.0), *floor, *batches(KAFKA, 8.0, 2.0)])
    assert most.startswith("a Python source that reads nothing, in rows: the most that any reaches so")
    assert most.endswith("5.00 (`sum(length(body))`, 128 B), 2.50 (`sum(length(body))`, 1024 B)")


def test_streams_are_judged_by_their_time_and_triggers_by_their_delay() -> None:
    streams = [
        figure(side, STREAM, size, cpu) for side, cpu in ((SOURCE, 4.0), (KAFKA, 5.0)) for size in SIZES
    ]
    delays = [
        Figure(side, LATENCY, 0, MESSAGES, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, p50_ms, 2 * p50_ms)
        for side, p50_ms in ((SOURCE, 100.0), (KAFKA, 200.0))
    ]
    stream, delay = verdicts([*streams, *delays])
    assert stream.startswith(
        "`orbitmq`: 1.25 to 1.25 times Kafka's rows per second in streams, bar 1.5: **missed**"
    )
    assert delay == "small triggers: 0.50 of Kafka's shortest latency, bar 1: reached"


def test_kafka_s_latency_counts_as_it_is_with_the_better_setting() -> None:
    delays = [
        Figure(side, row, 0, MESSAGES, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, p50_ms, 2 * p50_ms)
        for side, row, p50_ms in (
            (SOURCE, LATENCY, 100.0),
            (KAFKA, LATENCY, 1000.0),
            (KAFKA, LATENCY_HASTY, 80.0),
        )
    ]
    (delay,) = verdicts(delays)
    assert delay == "small triggers: 1.25 of Kafka's shortest latency, bar 1: **missed**"
    assert "| Kafka, `fetch.max.wait.ms` 10 instead of 500 | 80 | 160 | 1.00 |" in markdown(delays, "")


def test_growth_is_judged_by_the_query_that_grows_most() -> None:
    def growing(row: str, messages: int, cpu_s: float, java_mb: float) -> Figure:
        return Figure(SOURCE, f"{GROWTH} {row}", 128, messages, 1.0, cpu_s, 0.0, 0.0, java_mb, 0.0)

    steady = [growing(COUNT, 1000, 1.0, 100.0), growing(COUNT, 8000, 8.0, 110.0)]
    (linear,) = verdicts([*steady, growing(COUNT, 4000, 9.0, 500.0)])
    assert linear == (
        "`orbitmq`: from 1,000 to 8,000 messages CPU a row grows by a factor of 1.00 and memory by 1.10 at most, "
        "bar 1.25: reached"
    )
    (steep,) = verdicts([*steady, growing(SUM, 1000, 1.0, 100.0), growing(SUM, 8000, 12.0, 100.0)])
    assert "a factor of 1.50 " in steep
    assert "**missed**" in steep


def test_figures_taken_while_others_worked_are_doubted() -> None:
    busy = Figure(SOURCE, COUNT, 128, MESSAGES, 1.0, 1.0, 0.0, 0.5, 0.0, 0.0)
    page = markdown([busy, *batches(KAFKA, 8.0)], "somewhere")
    assert page.startswith("somewhere\n\n| query |")
    assert "- To be read with care: other processes used up to 0.5 cores during 1 of 7 figures." in page
