"""`python -m bench.clients [--quick] [--rounds 3] [--clients orbitmq,aiokafka] [--rows awaited] [--docs]`.

Each round gives every client a fresh broker, one after the other. The table has the medians over the rounds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench import plan
from bench.brokers import OrbitBroker
from bench.clients import java_client, kafka_client, nats_client, orbit_client, table
from bench.clients.load import QUICK, ROWS, Load
from bench.clients.servers import KAFKA_VERSION, CannotServe, ForeignServer, Kafka, Nats
from bench.clients.stopwatch import Figure
from bench.run import PAGE, cpu_model

CLIENTS = (orbit_client, kafka_client, nats_client, java_client)
CALLS = {module.NAME: module.CALLS for module in CLIENTS}
WORKER_LIMIT_S = 600
JAVA_WARMUP_S, JAVA_DURATION_S = 15, 6
JAVA_QUICK_S = 5


def measure(args: argparse.Namespace, scratch: Path) -> Iterator[Figure]:
    for number in range(1, args.rounds + 1):
        for name in args.clients:
            place = scratch / f"{name.replace(' ', '-')}-{number}"
            try:
                yield from one_client(name, place, args)
            except (CannotServe, ModuleNotFoundError) as problem:
                if args.docs:
                    raise SystemExit(f"{name} cannot be measured: {problem}") from problem
                print(f"{name} is left out: {problem}", file=sys.stderr)


def one_client(name: str, place: Path, args: argparse.Namespace) -> Iterator[Figure]:
    if name == kafka_client.NAME:
        kafka_client.library()
        yield from with_foreign(Kafka(place), name, args)
    elif name == nats_client.NAME:
        nats_client.library()
        yield from with_foreign(Nats(place), name, args)
    else:
        broker = OrbitBroker(place, {**plan.SETTINGS, "flushDiskType": plan.ASYNC})
        broker.start()
        try:
            if name == java_client.NAME:
                times = (JAVA_QUICK_S, JAVA_QUICK_S) if args.quick else (JAVA_WARMUP_S, JAVA_DURATION_S)
                yield from java_client.figures(
                    broker.namesrv,
                    broker.pid,
                    args.load,
                    args.rows,
                    warmup_s=times[0],
                    duration_s=times[1],
                )
            else:
                yield from worker(name, broker.namesrv, broker.pid, args)
        finally:
            broker.stop()


def with_foreign(server: ForeignServer, name: str, args: argparse.Namespace) -> Iterator[Figure]:
    with server:
        yield from worker(name, server.addr, server.pid, args)


def worker(name: str, addr: str, broker_pid: int, args: argparse.Namespace) -> Iterator[Figure]:
    load = msgspec.json.encode(args.load).decode()
    command = [sys.executable, "-m", "bench.clients.worker", name, addr, str(broker_pid), load]
    command.append(",".join(args.rows))
    if args.profile is not None:
        command += ["--profile", f"{args.profile}-{name}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=WORKER_LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"the client ended with status {done.returncode}: {' '.join(command)}")
    yield from (Figure.from_json(json.loads(line)) for line in done.stdout.splitlines())


def setting_of(args: argparse.Namespace) -> str:
    machine = f"{os.cpu_count()} cores ({cpu_model()}), {platform.system()} {platform.release()}"
    python = f"CPython {platform.python_version()} with uvloop {importlib.metadata.version('uvloop')}"
    others = [
        f"{package} {importlib.metadata.version(package)}"
        for package in ("aiokafka", "nats-py")
        if package in args.clients
    ]
    versions = ", ".join([python, *others, f"Kafka {KAFKA_VERSION}", "official Java client 4.9.8"])
    return (
        f"{time.strftime('%Y-%m-%d')}, {args.rounds} rounds on {machine}; {versions}; bodies of 128 bytes, "
        f"{args.load.stream:,} streamed and {args.load.awaited:,} awaited; no broker syncs before it acknowledges."
    )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round, for a look and not for the record"
    )
    parser.add_argument("--rounds", type=int, help="brokers' lives for each client (3)")
    parser.add_argument("--clients", default=",".join(CALLS), help=", ".join(CALLS))
    parser.add_argument("--rows", default=",".join(ROWS), help=", ".join(ROWS))
    parser.add_argument("--profile", help="profile the Python clients; statistics go to PROFILE-client")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/performance.md")
    args = parser.parse_args(argv)
    args.load = QUICK if args.quick else Load()
    args.rounds = args.rounds or (1 if args.quick else 3)
    args.clients = tuple(args.clients.split(","))
    args.rows = frozenset(args.rows.split(","))
    if unknown := {*args.clients, *args.rows} - {*CALLS, *ROWS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return args


def main() -> int:
    args = parse()
    figures = []
    with tempfile.TemporaryDirectory(prefix="orbitmq-clients-") as scratch:
        for figure in measure(args, Path(scratch)):
            print(json.dumps(figure.as_json()), flush=True)
            figures.append(figure)
    section = table.markdown(figures, CALLS, setting_of(args))
    print(f"\n{section}")
    if args.docs:
        PAGE.write_text(table.with_section(PAGE.read_text("utf-8"), section), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
