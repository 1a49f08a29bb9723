"""`python -m bench.spark [--messages 2000000] [--rounds 2] [--sides orbitmq,kafka] [--rows count] [--docs]`.

Both brokers are filled once. Each round starts a driver for every side, and these take turns, figure by figure. The
tables have the medians over rounds and repetitions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyspark

from bench import plan
from bench.awake import awake_cores
from bench.brokers import OrbitBroker
from bench.clients.servers import KAFKA_VERSION, Kafka
from bench.clients.table import with_section
from bench.run import PAGE, cpu_model
from bench.spark import fill, table
from bench.spark.driver_process import DriverProcess
from bench.spark.figure import Figure
from bench.spark.jars import client_version, connector_jars
from bench.spark.job import FILL, MOST_ROUNDS, ROUND_RUNS, SETTLED_SHARE
from bench.spark.load import (
    ABSENT,
    BATCHES,
    FLOOR,
    GROWTH,
    KAFKA,
    LATENCY,
    QUERIES,
    SIDES,
    SOURCE,
    STORE,
    STREAM,
    WARM_RUNS,
    WRITE,
    Load,
    Step,
    Work,
    steps,
    topics,
)

ROWS = (*QUERIES, STREAM, BATCHES, GROWTH, WRITE, LATENCY)
FULL = Load()


def measure(args: argparse.Namespace, scratch: Path) -> Iterator[Figure]:
    load: Load = args.load
    with ExitStack() as stack:
        addresses: dict[str, tuple[str, int]] = {}
        store = scratch / "orbitmq"
        if set(args.sides) & {SOURCE, STORE}:
            broker = OrbitBroker(store, {**plan.SETTINGS, "flushDiskType": plan.ASYNC})
            broker.start()
            stack.callback(broker.stop)
            fill.fill_orbitmq(broker.namesrv, topics(load, growth=GROWTH in args.rows))
            addresses |= dict.fromkeys((SOURCE, STORE), (broker.namesrv, broker.pid))
        addresses[FLOOR] = ("", 0)
        if KAFKA in args.sides:
            server = stack.enter_context(Kafka(scratch / "kafka"))
            addresses[KAFKA] = (server.addr, server.pid)
            with DriverProcess(Work(KAFKA, server.addr, server.pid, str(scratch), "", load)) as filling:
                list(filling.figures(Step(FILL, 0, 0)))
        os.sync()  # what waits to be written would be written during the first figures
        for _ in range(args.rounds):
            with ExitStack() as lives:
                drivers = {
                    side: lives.enter_context(
                        DriverProcess(Work(side, *addresses[side], str(scratch), str(store), load))
                    )
                    for side in args.sides
                }
                for step in steps(load, args.rows):
                    for side in args.sides:
                        if step.row not in ABSENT.get(side, ()):
                            yield from drivers[side].figures(step)


def setting_of(args: argparse.Namespace) -> str:
    machine = f"{os.cpu_count()} cores ({cpu_model()}), {platform.system()} {platform.release()}"
    if args.awake:
        machine += ", kept awake"
    versions = [f"CPython {platform.python_version()}", f"Spark {pyspark.__version__} with 2 cores"]
    if KAFKA in args.sides:
        client = client_version(connector_jars(pyspark.__version__))
        versions.append(f"Kafka {KAFKA_VERSION} with Spark's connector and client {client}")
    return (
        f"{time.strftime('%Y-%m-%d')}, {args.rounds} round{'s' if args.rounds > 1 else ''} on {machine}; "
        f"{', '.join(versions)}; "
        f"{args.load.messages:,} messages a query, 8 queues or partitions; nobody is told which columns a query needs, "
        f"but for our streams; before its figures every side runs a query {WARM_RUNS} times on a small topic and on "
        f"until Java's compiler takes less than {SETTLED_SHARE:.0%} of the CPU ({MOST_ROUNDS * ROUND_RUNS} times more "
        "at most), likewise on its own topic, and once more on the small one before each figure. CPU is that of "
        "driver, Java and Python workers, and of the broker."
    )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=FULL.messages, help="per topic (2,000,000)")
    parser.add_argument("--rounds", type=int, default=2, help="drivers' lives for each side (2)")
    parser.add_argument(
        "--repeats", type=int, default=FULL.repeats, help="runs of a query in a driver's life (2)"
    )
    parser.add_argument("--sides", type=_names, default=SIDES, help=", ".join(SIDES))
    parser.add_argument("--rows", type=_names, default=ROWS, help=", ".join(ROWS))
    parser.add_argument(
        "--scratch", type=Path, help="where stores are made (the full load needs about 10 GB)"
    )
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/performance.md")
    args = parser.parse_args(argv)
    if unknown := {*args.sides, *args.rows} - {*SIDES, *ROWS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    share = args.messages / FULL.messages
    args.load = Load(
        messages=args.messages,
        growth=tuple(round(count * share) for count in FULL.growth),
        repeats=args.repeats,
        written=round(FULL.written * min(share, 1.0)),
    )
    return args


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def main() -> int:
    args = parse()
    figures = []
    with (
        awake_cores() as args.awake,
        tempfile.TemporaryDirectory(prefix="orbitmq-spark-", dir=args.scratch) as scratch,
    ):
        for figure in measure(args, Path(scratch)):
            print(json.dumps(figure.as_json()), flush=True)
            figures.append(figure)
    section = table.markdown(figures, setting_of(args))
    print(f"\n{section}")
    if args.docs:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(with_section(page, section, table.BEGIN, table.END), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
