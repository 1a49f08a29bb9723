"""The official Java client of Apache RocketMQ, driven by the programs in `bench/client`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from bench.clients.load import AWAITED, BODY_BYTES, ITERATE, PAGES, ROWS, STREAM, TASKS, Load
from bench.clients.stopwatch import Figure

NAME = "Java client"
CALLS = {
    STREAM: "`send` of lists of 100",
    AWAITED: "`send`, 64 threads",
    ITERATE: "push, 20 threads",
    PAGES: "`pull`, 8 threads",
}
_CLIENT = Path(__file__).resolve().parents[1] / "client" / "bench.sh"
_SCENARIOS = {STREAM: "batch", AWAITED: "sync", ITERATE: "push", PAGES: "pull"}
_ROWS = {"batch": STREAM, "sync": AWAITED, "push_drain": ITERATE, "pull_drain": PAGES}
LIMIT_S: Final = 600


def figures(
    addr: str, broker_pid: int, load: Load, rows: frozenset[str], *, warmup_s: int, duration_s: int
) -> list[Figure]:
    """A JVM needs a long warm-up, so its sends are measured by time; the drains by number, like everybody's."""
    command = [str(_CLIENT), "-n", addr, "--broker-pid", str(broker_pid), "--size", str(BODY_BYTES)]
    command += ["--scenario", ",".join(_SCENARIOS[row] for row in ROWS if row in rows)]
    command += ["--warmup", str(warmup_s), "--duration", str(duration_s), "--count", str(load.stream)]
    command += ["--threads", str(TASKS), "--batches", "100", "--pull-batches", "32"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"the Java client ended with status {done.returncode}: {' '.join(command)}")
    return [_figure(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def _figure(line: dict[str, Any]) -> Figure:
    seconds = float(line["seconds"])
    return Figure(
        NAME,
        _ROWS[line["scenario"]],
        round(line["msg_s"] * seconds),
        seconds,
        line["client_cores"] * seconds,
        line.get("other_cores", 0.0),
        line.get("lat_p50_us"),
        line.get("lat_p99_us"),
    )
