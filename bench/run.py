"""Runs the comparison: `python -m bench.run [--quick] [--scenarios sync,push] [--sizes 128] [--rounds 3]`.

In a round both brokers live side by side, each on a fresh store with the same settings and with a client of its own,
and take turns, pass by pass: what disturbs one meets the other as well, and turns that the host disturbs are taken
again. The cores are kept awake if the system agrees (`bench/awake.py`). The table has the medians over quiet passes
and rounds. The `pair-` scenarios have a life with a slave for each, one after the other.
Raw lines go to `bench/results/`, the table of ratios to the screen and, after a full run, into
`docs/performance.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import plan, report
from bench.awake import awake_cores
from bench.brokers import Broker, JavaBroker, OrbitBroker, anonymous_memory_mb
from bench.memory_limit import fill_memory, memory_limit
from bench.pairs import JavaPair, OrbitPair, SlaveWatch
from bench.turns import PATIENCE, QUIET_CORES, client_command, taking_turns

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "performance.md"
BROKERS = (OrbitBroker, JavaBroker)
PAIRS = (OrbitPair, JavaPair)
SETTLE_S = 10


def measure(args: argparse.Namespace, scratch: Path) -> Iterator[dict[str, Any]]:
    for round_number in range(1, args.rounds + 1):
        for life in plan.lives(args.scenarios, args.sizes, args.effort):
            about = {"round": round_number, "flush": life.flush}
            settings = {**plan.SETTINGS, "flushDiskType": life.flush}
            with tempfile.TemporaryDirectory(prefix=f"{life.name}-", dir=scratch) as stores:
                if life.role:
                    lines = one_after_the_other(life, Path(stores), settings)
                else:
                    lines = side_by_side(life, Path(stores), settings, args.memory << 30)
                for line in lines:
                    yield {**line, **about}
            # The memory of what was deleted is on its way back to the host: the next start is not to meet that.
            time.sleep(SETTLE_S)


def side_by_side(
    life: plan.Life, stores: Path, settings: dict[str, str], cached_bytes: int
) -> Iterator[dict[str, Any]]:
    with ExitStack() as running:
        brokers: list[Broker] = []
        for kind in BROKERS:
            broker = kind(stores / kind.label, settings)
            broker.start()
            running.callback(broker.stop)
            # Java allocates on while it looks idle; a moment later the figure has settled for both.
            time.sleep(2)
            yield {
                "scenario": "process",
                "label": broker.label,
                "ready_ms": broker.ready_ms,
                "idle_anon_mb": anonymous_memory_mb(broker.pid),
            }
            brokers.append(broker)
        fill_memory(cached_bytes, stores)
        for run in life.runs:
            yield from taking_turns([client_command(broker, run) for broker in brokers], life.passes)


def one_after_the_other(life: plan.Life, stores: Path, settings: dict[str, str]) -> Iterator[dict[str, Any]]:
    for kind in PAIRS:
        pair = kind(stores / kind.label, {**settings, "brokerRole": life.role})
        for line in one_life_of_two(pair, life):
            yield {**line, "role": life.role}


def one_life_of_two(pair: OrbitPair | JavaPair, life: plan.Life) -> Iterator[dict[str, Any]]:
    """Only what the client measures: how long a single process takes to start is told elsewhere."""
    pair.start()
    try:
        with SlaveWatch(pair) as watch:
            for run in life.runs:
                for line in taking_turns([client_command(pair, run)], life.passes):
                    yield watch.completed(line)
    finally:
        pair.stop()


def setting_of(args: argparse.Namespace) -> str:
    machine = f"{os.cpu_count()} cores ({cpu_model()}), {platform.system()} {platform.release()}"
    versions = f"CPython {platform.python_version()}, Java broker 4.9.7, official client 4.9.8"
    effort = (
        f"{args.effort.passes} quiet passes of {args.effort.duration_s} s after {args.effort.warmup_s} s of warm-up, "
        f"of which the host takes at most {QUIET_CORES} cores, or up to {args.effort.passes * PATIENCE} passes"
    )
    if args.awake:
        machine += ", kept awake"
    if args.memory:
        machine += f", {args.memory} GB of memory for brokers, client and page cache"
    return (
        f"{time.strftime('%Y-%m-%d')}, {args.rounds} rounds on {machine}; {versions}; {effort}; drains of "
        f"{args.effort.drain_count:,} messages, behind a filter {args.effort.filter_count:,}; at most "
        f"{args.effort.delayed_count:,} delayed messages; log files of {plan.SEGMENT_BYTES >> 20} MiB; "
        "ASYNC_FLUSH unless said."
    )


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="short figures, for a look and not for the record"
    )
    parser.add_argument("--scenarios", type=names, default=plan.SCENARIOS, help=",".join(plan.SCENARIOS))
    parser.add_argument("--sizes", type=numbers, default=plan.SIZES, help="body sizes in bytes")
    parser.add_argument("--rounds", type=int, default=2, help="lives of each broker (2)")
    parser.add_argument("--passes", type=int, help="of each figure, instead of the plan's")
    parser.add_argument("--duration", type=int, help="seconds a figure, instead of the plan's")
    parser.add_argument("--warmup", type=int, help="seconds of warm-up, instead of the plan's")
    parser.add_argument(
        "--store-dir", type=Path, default=None, help="where stores are made (needs about 20 GB)"
    )
    parser.add_argument(
        "--memory",
        type=int,
        default=0,
        metavar="GB",
        help="for brokers, client and page cache together (no limit)",
    )
    parser.add_argument(
        "--from",
        dest="raw",
        type=Path,
        nargs="+",
        help="only make the table, from the raw lines of these runs",
    )
    parser.add_argument(
        "--docs", action="store_true", help="write docs/performance.md even after a partial run"
    )
    args = parser.parse_args(argv)
    effort = plan.QUICK if args.quick else plan.FULL
    args.effort = dataclasses.replace(
        effort,
        passes=args.passes or effort.passes,
        duration_s=args.duration or effort.duration_s,
        warmup_s=args.warmup or effort.warmup_s,
    )
    full = (args.scenarios, args.sizes, args.quick) == (
        plan.SCENARIOS,
        plan.SIZES,
        False,
    ) and args.rounds >= 2
    args.awake = False
    args.write_docs = args.docs or (full and args.raw is None)
    return args


def names(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if unknown := set(chosen) - set(plan.SCENARIOS):
        raise argparse.ArgumentTypeError(f"no such scenario: {', '.join(sorted(unknown))}")
    return chosen


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def main() -> int:
    args = parse()
    # Ended from outside, it leaves no broker or client behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if args.raw:
        lines = [json.loads(text) for raw in args.raw for text in raw.read_text().splitlines()]
        args.awake = all(line.get("awake") for line in lines)
    else:
        RESULTS.mkdir(exist_ok=True)
        raw = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        lines = []
        with (
            awake_cores() as args.awake,
            memory_limit(args.memory),
            tempfile.TemporaryDirectory(prefix="orbitmq-bench-", dir=args.store_dir) as scratch,
            raw.open("w") as out,
        ):
            for line in measure(args, Path(scratch)):
                line["awake"] = args.awake
                text = json.dumps(line)
                print(text, flush=True)
                print(text, file=out, flush=True)
                lines.append(line)
    section = report.markdown(lines, setting_of(args))
    print(f"\n{section}")
    if args.write_docs:
        PAGE.write_text(report.with_section(PAGE.read_text("utf-8"), section), "utf-8")
        print(f"written to {PAGE.relative_to(HERE.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
