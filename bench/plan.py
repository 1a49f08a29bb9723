"""What is measured, as tables: scenarios, their client options, and the bar each figure has to reach."""

from __future__ import annotations

from dataclasses import dataclass

ASYNC = "ASYNC_FLUSH"
SYNC = "SYNC_FLUSH"

# `sync-flush` is the client's `sync` against brokers that flush before they acknowledge.
# `tx` comes after the drains: both brokers look over the half messages again every minute.
# `pair-async` and `pair-sync` are the client's `sync` and `async` against a master with a slave.
SCENARIOS = (
    "sync",
    "async",
    "batch",
    "push",
    "pull",
    "orderly",
    "tag",
    "sql",
    "delayed",
    "tx",
    "latency",
    "sync-flush",
    "pair-async",
    "pair-sync",
)
PAIR_ROLES = {"pair-async": "ASYNC_MASTER", "pair-sync": "SYNC_MASTER"}
SIZES = (128, 1024)
SEGMENT_BYTES = 1024 * 1024 * 1024

# Given to both brokers, so that neither rolls files or cleans more often than the other and both take SQL92.
SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "diskMaxUsedSpaceRatio": "95",
    "enablePropertyFilter": "true",
}
KIND_THREADS = 16


@dataclass(frozen=True, slots=True)
class Effort:
    """How long things take. The client's JVM needs about 30 s before its figures settle.

    A figure is measured in passes, and the brokers take turns at these: what disturbs one meets the other as well.
    There are more of them where the host disturbs (`bench.turns`).
    """

    passes: int = 4
    duration_s: int = 4
    warmup_s: int = 30
    latency_s: int = 10
    latency_warmup_s: int = 45
    """At a thousand messages a second the client's JVM still compiles during half a minute."""
    drain_count: int = 1_000_000
    delayed_count: int = 60_000

    @property
    def filter_count(self) -> int:
        """The backlog behind a tag or an expression; a quarter of it is delivered."""
        return self.drain_count // 2


FULL = Effort()
QUICK = Effort(passes=1, warmup_s=10, latency_warmup_s=10, drain_count=200_000, delayed_count=20_000)


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure's ratio, ours to Java's, and which way is better."""

    ratio: float
    higher_is_better: bool

    def reached(self, ratio: float) -> bool:
        return ratio >= self.ratio if self.higher_is_better else ratio <= self.ratio


THROUGHPUT_BARS = {
    "sync": Bar(1.3, True),
    "async": Bar(1.3, True),
    "batch": Bar(1.0, True),
    "push_drain": Bar(1.0, True),
    "pull_drain": Bar(1.0, True),
    "orderly_drain": Bar(1.0, True),
    "tag_drain": Bar(1.0, True),
    "sql_drain": Bar(1.0, True),
    "delayed": Bar(1.0, True),
    "delayed_arrival": Bar(1.0, True),
    "tx": Bar(1.0, True),
}
CPU_BAR = Bar(0.5, False)
CPU_BARS = dict.fromkeys(
    ("orderly_drain", "tag_drain", "sql_drain", "delayed", "delayed_arrival", "tx"), Bar(1.0, False)
)
"""Where another bar than CPU_BAR holds, by the scenario's name in the client's lines."""
PAIR_BAR = Bar(1.0, True)
PAIR_CPU_BAR = Bar(1.0, False)
P99_BAR = Bar(1.0, False)
READY_BAR = Bar(0.25, False)
MEMORY_BAR = Bar(0.1, False)


@dataclass(frozen=True, slots=True)
class Life:
    """What one life of each broker is for: its settings, whether it has a slave, and the client's command lines."""

    flush: str
    role: str
    """Of the master when there is a slave; empty for a broker alone."""
    runs: list[list[str]]
    passes: int

    @property
    def name(self) -> str:
        return "-".join(part for part in (self.flush, self.role) if part)


def lives(scenarios: tuple[str, ...], sizes: tuple[int, ...], effort: Effort) -> list[Life]:
    """What has to be lived through for these scenarios."""
    made = [
        Life(flush, "", client_runs(flush, scenarios, sizes, effort), effort.passes)
        for flush in (ASYNC, SYNC)
    ]
    made += [
        Life(ASYNC, role, pair_runs(sizes, effort), effort.passes)
        for name, role in PAIR_ROLES.items()
        if name in scenarios
    ]
    return [life for life in made if life.runs]


def client_runs(
    flush: str, scenarios: tuple[str, ...], sizes: tuple[int, ...], effort: Effort
) -> list[list[str]]:
    """Command lines of the client, one JVM each, for one life of one broker."""
    timed = [*_common(sizes, effort.warmup_s), "--duration", str(effort.duration_s), "--threads", "1,16,64"]
    if flush == SYNC:
        return [["--scenario", "sync", *timed]] if "sync-flush" in scenarios else []
    runs = []
    throughput = [s for s in scenarios if s not in ("latency", "sync-flush", *PAIR_ROLES)]
    if throughput:
        counts = ["--count", str(effort.drain_count), "--filter-count", str(effort.filter_count)]
        counts += ["--delayed-count", str(effort.delayed_count)]
        kinds = ["--tx-threads", str(KIND_THREADS), "--delayed-threads", str(KIND_THREADS)]
        runs.append(["--scenario", ",".join(throughput), *timed, *counts, *kinds])
    if "latency" in scenarios:
        paced = ["--rate", "1000", "--duration", str(effort.latency_s)]
        runs.append(["--scenario", "latency", *_common(sizes, effort.latency_warmup_s), *paced])
    return runs


def pair_runs(sizes: tuple[int, ...], effort: Effort) -> list[list[str]]:
    timed = [*_common(sizes, effort.warmup_s), "--duration", str(effort.duration_s), "--threads", "1,16"]
    return [["--scenario", "sync,async", *timed]]


def _common(sizes: tuple[int, ...], warmup_s: int) -> list[str]:
    return ["--size", ",".join(map(str, sizes)), "--warmup", str(warmup_s)]
