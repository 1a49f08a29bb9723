"""Raw measurement lines in, a table of ratios out. Pure: no files, no processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.plan import (
    CPU_BAR,
    CPU_BARS,
    MEMORY_BAR,
    P99_BAR,
    PAIR_BAR,
    PAIR_CPU_BAR,
    READY_BAR,
    THROUGHPUT_BARS,
    Bar,
)

Line = Mapping[str, Any]
Figure = Callable[[Line], float | None]
OURS, JAVA = "orbitmq", "java"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
NAMES = {
    "sync": "sync, {threads} threads",
    "batch": "batch of {batch}",
    "push_drain": "push drain, {pull_batch} a pull",
    "pull_drain": "pull drain, {pull_batch} a pull",
    "orderly_drain": "orderly drain, {pull_batch} a pull",
    "tag_drain": "tag drain, 1 in 4",
    "sql_drain": "SQL92 drain, 1 in 4",
    "delayed": "delayed by 1 s, {threads} threads",
    "delayed_arrival": "delayed by 1 s, arrival",
    "tx": "transactional, {threads} threads",
    "e2e_latency": "end to end at {rate}/s",
}
FIGURES = ("msg/s", "CPU µs/msg", "p99 µs")
HEADINGS = [
    "scenario",
    "bytes",
    *(word for figure in FIGURES for word in (f"{figure} ours", "Java", "ratio")),
]
FAULTS = {
    "duplicates": "{} messages came twice",
    "unwanted": "{} messages came that the filter does not let through",
    "disorder": "{} messages came out of order",
    "early": "{} messages came before their time",
}
"""Counts of a line that have to be zero."""
BUSY_CORES = 0.3
"""Above this much foreign CPU a figure is too low to be trusted."""
FEWEST_QUIET = 2
"""So many quiet passes of each broker speak for a row, and the disturbed ones are left out."""
BEHIND_BYTES = 1 << 20
"""A slave that is further behind soon after the load has left work for later, which no figure shows."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of both brokers: the medians over the rounds; None where nothing was measured."""

    ours: float | None
    java: float | None
    bar: Bar | None

    @property
    def ratio(self) -> float | None:
        if self.ours is None or not self.java:
            return None
        return self.ours / self.java

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "–"
        text = f"{self.ratio:.2f}"
        if self.bar is None:
            return text
        return text if self.bar.reached(self.ratio) else f"**{text}**"


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    size: int
    msg_s: Pair
    cpu_us: Pair
    p99_us: Pair


def rows(lines: Iterable[Line]) -> list[Row]:
    made = []
    for (name, size), passes in _by_row(lines).items():
        speed_bar, cpu_bar = bars_of(passes[0])
        group = those_that_count(passes)
        made.append(
            Row(
                name,
                size,
                _pair(group, throughput_of, speed_bar),
                _pair(group, cpu_per_message_us, cpu_bar),
                _pair(group, p99_us, P99_BAR),
            )
        )
    return made


def _by_row(lines: Iterable[Line]) -> dict[tuple[str, int], list[Line]]:
    groups: dict[tuple[str, int], list[Line]] = defaultdict(list)
    for line in lines:
        if "size" in line:
            groups[name_of(line), line["size"]].append(line)
    return groups


def those_that_count(passes: Sequence[Line]) -> Sequence[Line]:
    """Of a row's passes the quiet ones, if there are enough of both brokers; otherwise all."""
    quiet = [line for line in passes if line.get("quiet", True)]
    labels = [line["label"] for line in quiet]
    enough = all(labels.count(label) >= FEWEST_QUIET for label in {line["label"] for line in passes})
    return quiet if enough else passes


def bars_of(line: Line) -> tuple[Bar | None, Bar]:
    """What throughput and CPU have to reach."""
    if line.get("role"):
        return PAIR_BAR, PAIR_CPU_BAR
    scenario = line["scenario"]
    return THROUGHPUT_BARS.get(scenario), CPU_BARS.get(scenario, CPU_BAR)


def name_of(line: Line) -> str:
    scenario: str = line["scenario"]
    name = NAMES.get(scenario, scenario).format_map(line).replace(" 1 threads", " 1 thread")
    if line.get("role"):
        name = f"{name}, {line['role']} with slave"
    return f"{name}, SYNC_FLUSH" if line.get("flush") == "SYNC_FLUSH" else name


def throughput_of(line: Line) -> float | None:
    return line.get("msg_s")


def cpu_per_message_us(line: Line) -> float | None:
    """Of the broker, or of master and slave together."""
    if "broker_cpu_us" in line:
        return float(line["broker_cpu_us"])
    master, slave = master_cpu_us(line), slave_cpu_us(line)
    return master if master is None or slave is None else master + slave


def master_cpu_us(line: Line) -> float | None:
    return _per_message_us(line, "broker_cores")


def slave_cpu_us(line: Line) -> float | None:
    return _per_message_us(line, "slave_cores")


def _per_message_us(line: Line, cores: str) -> float | None:
    per_second = line.get("msg_s") or line.get("rate")
    if cores not in line or not per_second:
        return None
    return float(line[cores] / per_second * 1e6)


def p99_us(line: Line) -> float | None:
    """Of the answer, of the whole way, or of what a delayed message came beyond its delay."""
    found = (line[key] for key in ("lat_p99_us", "e2e_p99_us", "late_p99_us") if key in line)
    return next(found, None)


def process_pairs(lines: Sequence[Line]) -> dict[str, Pair]:
    """Figures of the processes themselves, from the lines that say how a broker's life went."""
    lives = [line for line in lines if line["scenario"] == "process"]
    peaks = [line for line in lines if "broker_RssAnon_mb" in line]
    return {
        "start to ready (ms)": _pair(lives, lambda line: line["ready_ms"], READY_BAR),
        "anonymous memory, idle (MB)": _pair(lives, lambda line: line["idle_anon_mb"], MEMORY_BAR),
        "anonymous memory, highest median under load (MB)": _highest(peaks),
    }


def doubts(lines: Sequence[Line]) -> list[str]:
    """What makes a figure untrustworthy, one sentence each."""
    found = []
    for line in lines:
        if "size" not in line:
            continue
        where = f"{name_of(line)}, {line['size']} B, {line['label']}, round {line.get('round', '?')}"
        if line.get("fail"):
            found.append(
                f"{where}: {line['fail']} requests failed ({line.get('first_error', 'no reason given')})"
            )
        if "ok" in line and line["ok"] != line["stored"]:
            found.append(f"{where}: {line['ok']} acknowledged, {line['stored']} stored")
        if line.get("complete") == "false":
            found.append(f"{where}: the drain did not end within 300 s")
        found += [f"{where}: {text.format(line[key])}" for key, text in FAULTS.items() if line.get(key)]
        if line.get("slave_behind_bytes", 0) > BEHIND_BYTES:
            found.append(f"{where}: the slave was {line['slave_behind_bytes']:,} bytes behind after the load")
        if line.get("other_cores", 0) > BUSY_CORES:
            # Cores that wait without sleeping are partly counted as working, for no process.
            who = (
                "other processes, or the waiting of cores that were kept awake,"
                if line.get("awake")
                else "other processes"
            )
            found.append(f"{where}: {who} used {line['other_cores']:.2f} cores")
    return found + _taken_by_the_host(lines)


def _taken_by_the_host(lines: Sequence[Line]) -> list[str]:
    """One sentence for each row: on a noisy host a sentence for each pass would hide all others."""
    found = []
    for (name, size), passes in _by_row(lines).items():
        counted = those_that_count(passes)
        if len(counted) < len(passes):
            found.append(f"{name}, {size} B: {len(counted)} of {len(passes)} passes were quiet and count")
        for label in sorted({line["label"] for line in counted}):
            taken = [line.get("steal_cores", 0.0) for line in counted if line["label"] == label]
            if median(taken) > BUSY_CORES:
                found.append(
                    f"{name}, {size} B, {label}: the host took {median(taken):.2f} cores away, "
                    f"up to {max(taken):.2f}, in {len(taken)} passes"
                )
    return found


def markdown(lines: Sequence[Line], setting: str) -> str:
    out = [setting, "", "Ratios are ours to Java's; **bold** misses its bar.", ""]
    out += [f"| {' | '.join(HEADINGS)} |", "|---|" + "--:|" * (len(HEADINGS) - 1)]
    for row in rows(lines):
        cells = [row.name, str(row.size)]
        cells += [*_cells(row.msg_s, 0), *_cells(row.cpu_us, 1), *_cells(row.p99_us, 0)]
        out.append(f"| {' | '.join(cells)} |")
    out += halves(lines)
    out += ["", "| process | ours | Java | ratio |", "|---|--:|--:|--:|"]
    out += [f"| {name} | {' | '.join(_cells(pair, 0))} |" for name, pair in process_pairs(lines).items()]
    if found := doubts(lines):
        out += ["", "To be read with care:", "", *(f"- {doubt}" for doubt in found)]
    return "\n".join(out) + "\n"


def halves(lines: Iterable[Line]) -> list[str]:
    """The CPU of masters and slaves apart, where there were slaves."""
    groups: dict[tuple[str, int], list[Line]] = defaultdict(list)
    for line in lines:
        if "slave_cores" in line:
            groups[name_of(line), line["size"]].append(line)
    if not groups:
        return []
    headings = ["CPU µs/msg apart", "bytes", "master ours", "Java", "ratio", "slave ours", "Java", "ratio"]
    out = ["", f"| {' | '.join(headings)} |", "|---|" + "--:|" * (len(headings) - 1)]
    for (name, size), group in groups.items():
        pairs = [_pair(group, figure, None) for figure in (master_cpu_us, slave_cpu_us)]
        out.append(f"| {name} | {size} | {' | '.join(cell for pair in pairs for cell in _cells(pair, 1))} |")
    return out


def with_section(document: str, section: str) -> str:
    """The document with what stands between the markers replaced."""
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no section between {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{section}{END}{tail}"


def _pair(group: Sequence[Line], figure: Figure, bar: Bar | None) -> Pair:
    def middle(label: str) -> float | None:
        values = [v for line in group if line["label"] == label and (v := figure(line)) is not None]
        return median(values) if values else None

    return Pair(middle(OURS), middle(JAVA), bar)


def _highest(lines: Sequence[Line]) -> Pair:
    def peak(label: str) -> float | None:
        by_round: dict[Any, float] = {}
        for line in lines:
            if line["label"] == label:
                key = line.get("round")
                by_round[key] = max(by_round.get(key, 0.0), line["broker_RssAnon_mb"])
        return median(by_round.values()) if by_round else None

    return Pair(peak(OURS), peak(JAVA), MEMORY_BAR)


def _cells(pair: Pair, digits: int) -> list[str]:
    numbers = ["–" if value is None else f"{value:,.{digits}f}" for value in (pair.ours, pair.java)]
    return [*numbers, pair.verdict]
