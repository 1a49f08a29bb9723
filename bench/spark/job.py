"""One side's driver, in a process of its own: `python -m bench.spark.job WORK`.

It takes steps from its standard input, one JSON line each, and writes one JSON line per figure and an empty one behind
the last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyspark

from bench.spark import fill, sides
from bench.spark.figure import Figure, Watch
from bench.spark.jars import connector_jars
from bench.spark.load import (
    BATCHES,
    COUNT,
    FLOOR,
    GROUP,
    GROWTH,
    GROWTH_BYTES,
    GROWTH_TOPIC,
    KAFKA,
    LATENCY,
    LATENCY_HASTY,
    LATENCY_TOPIC,
    QUERIES,
    SIZES,
    STORE,
    STREAM,
    SUM,
    WARM_RUNS,
    WARM_TOPIC,
    WRITE,
    WRITE_ONCE,
    WRITE_TOPIC,
    Step,
    Work,
    topic_of,
    topics,
)
from bench.spark.processes import family_cpu_s

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STREAM_LIMIT_S = 600
ROUND_RUNS = 5
MOST_ROUNDS = 24
SETTLED_SHARE = 0.05
"""Java has settled when its compiler takes less of the CPU than this."""
FILL = "fill"


class Driver:
    """Does the steps that it is told."""

    def __init__(self, spark: SparkSession, work: Work) -> None:
        self._spark = spark
        self._work = work
        self._warm: set[str] = set()
        self._seen: set[tuple[str, int]] = set()

    def figures(self, step: Step) -> Iterator[Figure]:
        spark, work, row = self._spark, self._work, step.row
        if row not in self._warm:
            self._warm.add(row)
            warm_up(spark, work, row)
        if row in QUERIES:
            if (row, step.size) not in self._seen:
                self._seen.add((row, step.size))
                # A short query over millions of rows has Java compile anew what a small topic has settled.
                settle(spark, lambda: run_query(spark, work, row, topic_of(step.size)))
            # Spark ends Python workers that were idle for a minute, and the other sides' turns may take longer.
            run_query(spark, work, row, WARM_TOPIC)
            yield query_figure(spark, work, row, step.size)
        elif row in (STREAM, BATCHES):
            yield stream_figure(spark, work, step)
        elif row == GROWTH:
            yield from growth_figures(spark, work)
        elif row == WRITE:
            yield from write_figures(spark, work)
        else:
            for name, options in latency_ways(work).items():
                yield latency_figure(spark, work, name, options)


def warm_up(spark: SparkSession, work: Work, row: str) -> None:
    """The same, with less: what a driver's first runs of a kind cost says more about Java than about a reader.

    Java goes on compiling for dozens of queries, and a short query has less of its own to hide that in.
    """
    if row in QUERIES:
        for _ in range(WARM_RUNS):
            run_query(spark, work, row, WARM_TOPIC)
        settle(spark, lambda: run_query(spark, work, row, WARM_TOPIC))
    elif row in (STREAM, BATCHES):
        rows = sides.stream(spark, work, WARM_TOPIC, startingOffsets="earliest")
        started(rows, work, f"{row}-warm", lambda _: None, at_once=True).awaitTermination(STREAM_LIMIT_S)
    elif row == WRITE:
        for options in write_ways(work).values():
            sides.write(fill.rows(spark, 1000, SIZES[0]), work, WRITE_TOPIC, **options)


def settle(spark: SparkSession, run: Callable[[], object]) -> None:
    until_settled(run, lambda: compiling_s(spark), own_cpu_s)


def until_settled(
    run: Callable[[], object], compiling: Callable[[], float], cpu: Callable[[], float]
) -> None:
    """Goes on until Java's compiler has little left to do, within bounds: one rule for all sides."""
    for _ in range(MOST_ROUNDS):
        compiled, used = compiling(), cpu()
        for _ in range(ROUND_RUNS):
            run()
        if compiling() - compiled < SETTLED_SHARE * (cpu() - used):
            return


def compiling_s(spark: SparkSession) -> float:
    """How long Java has compiled so far."""
    java: Any = spark.sparkContext._jvm
    return (
        float(java.java.lang.management.ManagementFactory.getCompilationMXBean().getTotalCompilationTime())
        / 1e3
    )


def own_cpu_s() -> float:
    return family_cpu_s(os.getpid())


def run_query(spark: SparkSession, work: Work, row: str, topic: str, end: str = "latest") -> int:
    """Runs one query and returns the number that shows that it saw everything."""
    rows = sides.batch(spark, work, topic, end)
    if row == COUNT:
        return rows.count()
    if row == SUM:
        return int(rows.selectExpr(f"sum(length({sides.BODY[work.side]}))").collect()[0][0])
    if row == GROUP:
        return sum(int(found["count"]) for found in rows.groupBy(sides.LABEL[work.side]).count().collect())
    rows.write.format("noop").mode("overwrite").save()
    return 0


def query_figure(spark: SparkSession, work: Work, row: str, size: int) -> Figure:
    with watch(work, row, size) as seen:
        found = run_query(spark, work, row, topic_of(size))
    expected = {COUNT: work.load.messages, GROUP: work.load.messages, SUM: work.load.messages * size}
    check(work, row, found, expected.get(row, 0))
    return seen.figure(work.load.messages)


def growth_figures(spark: SparkSession, work: Work) -> Iterator[Figure]:
    """Of a topic that has been read once: what a first reading finds cold would look like growth."""
    run_query(spark, work, SUM, GROWTH_TOPIC)
    for count in work.load.growth:
        end, messages = sides.prefix(work, GROWTH_TOPIC, count / max(work.load.growth))
        for row in (COUNT, SUM):
            with watch(work, f"{GROWTH} {row}", GROWTH_BYTES) as seen:
                found = run_query(spark, work, row, GROWTH_TOPIC, end)
            check(work, GROWTH, found, messages if row == COUNT else messages * GROWTH_BYTES)
            yield seen.figure(messages)


def stream_figure(spark: SparkSession, work: Work, step: Step) -> Figure:
    row, size = step.row, step.size
    limit = {} if row == STREAM else {"maxOffsetsPerTrigger": str(work.load.messages // 10)}
    rows = sides.stream(spark, work, topic_of(size), startingOffsets="earliest", **limit)
    with watch(work, row, size) as seen:
        query = started(rows, work, f"{row}-{size}-{step.number}", lambda _: None, at_once=True)
        query.awaitTermination(STREAM_LIMIT_S)
    check(work, row, sum(int(p["numInputRows"]) for p in query.recentProgress), work.load.messages)
    return seen.figure(work.load.messages)


def started(
    rows: DataFrame, work: Work, name: str, take: Callable[[DataFrame], None], *, at_once: bool
) -> StreamingQuery:
    checkpoint = work.place(f"checkpoint-{work.side}-{name}-{time.time_ns()}".replace(" ", "-"))
    writer = rows.writeStream.option("checkpointLocation", str(checkpoint))
    if at_once:
        return writer.format("noop").trigger(availableNow=True).start()
    return writer.foreachBatch(lambda batch, number: take(batch)).start()


def latency_ways(work: Work) -> dict[str, dict[str, str]]:
    hasty = {LATENCY_HASTY: {"kafka.fetch.max.wait.ms": "10"}}
    return {LATENCY: {}, **(hasty if work.side == KAFKA else {})}


def latency_figure(spark: SparkSession, work: Work, name: str, options: dict[str, str]) -> Figure:
    """From the send to the function that `foreachBatch` calls with the rows. The first third is a warm-up."""
    load = work.load
    seen: list[tuple[float, float]] = []

    def take(batch: DataFrame) -> None:
        rows = batch.collect()
        now = time.time()
        seen.extend((now, now - float(bytes(row[0]))) for row in rows)

    rows = sides.stream(spark, work, LATENCY_TOPIC, startingOffsets="latest", **options)
    query = started(rows, work, name, take, at_once=False)
    command = [sys.executable, "-m", "bench.spark.sender", work.side, work.addr, str(load.latency_rate)]
    try:
        while not query.lastProgress:  # it stands at the end of the topic now
            time.sleep(0.1)
        with watch(work, name, 0) as watched:
            subprocess.run([*command, str(load.latency_s)], check=True, timeout=STREAM_LIMIT_S)
            sent = int(load.latency_rate * load.latency_s)
            deadline = time.monotonic() + 60
            while len(seen) < sent and time.monotonic() < deadline:
                time.sleep(0.05)
    finally:
        query.stop()
    check(work, name, len(seen), sent)
    return watched.figure(len(seen), [latency for _, latency in sorted(seen)[sent // 3 :]])


def write_ways(work: Work) -> dict[str, dict[str, str]]:
    return {WRITE: {}} if work.side == KAFKA else {WRITE: {"delivery": "at-least-once"}, WRITE_ONCE: {}}


def write_figures(spark: SparkSession, work: Work) -> Iterator[Figure]:
    made = fill.rows(spark, work.load.written, SIZES[0])
    for row, options in write_ways(work).items():
        with watch(work, row, SIZES[0]) as seen:
            sides.write(made, work, WRITE_TOPIC, **options)
        yield seen.figure(work.load.written)


def watch(work: Work, row: str, size: int) -> Watch:
    return Watch(work.side, row, size, 0 if work.side in (STORE, FLOOR) else work.broker_pid)


def check(work: Work, row: str, found: int, expected: int) -> None:
    if found != expected:
        raise SystemExit(f"{work.side}, {row}: {found} instead of {expected}: the figure would mean nothing")


def main(text: str) -> None:
    work = msgspec.json.decode(text, type=Work)
    jars = [str(jar) for jar in connector_jars(pyspark.__version__)] if work.side == KAFKA else []
    spark = sides.session(work, jars)
    driver = Driver(spark, work)
    try:
        print(flush=True)  # it is there
        for line in sys.stdin:
            step = msgspec.json.decode(line, type=Step)
            if step.row == FILL:
                fill.fill_kafka(spark, work, topics(work.load, growth=False))
            else:
                for figure in driver.figures(step):
                    print(json.dumps(figure.as_json()), flush=True)
            print(flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
