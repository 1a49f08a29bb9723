"""Figures in, tables with verdicts out. Pure: no files, no processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import harmonic_mean, median

from bench.spark.figure import Figure
from bench.spark.load import (
    BATCHES,
    COUNT,
    FLOOR,
    GROUP,
    GROWTH,
    KAFKA,
    LATENCY,
    LATENCY_HASTY,
    QUERIES,
    SIZES,
    SOURCE,
    STORE,
    STREAM,
    SUM,
    TITLES,
    WRITE,
    WRITE_ONCE,
)

BEGIN, END = "<!-- spark:begin -->", "<!-- spark:end -->"
BARRED = (COUNT, SUM, GROUP)
"""The queries that a bar is for; with every column we give sixteen, Kafka's connector seven."""
CPU_BARS = {SOURCE: 2.0, STORE: 4.0}
"""Rows per CPU second, the broker's CPU included, to Kafka's."""
STREAM_BAR = 1.5
LATENCY_BAR = 1.0
GROWTH_BAR = 1.25
"""CPU a row, and memory, of the largest stretch to those of the smallest."""
BUSY_CORES = 0.3
NAMES = {
    SOURCE: "`orbitmq`",
    STORE: "`orbitmq-store`",
    KAFKA: "Kafka",
    FLOOR: "a Python source that reads nothing, in rows",
}

Value = Callable[[Figure], float | None]


def markdown(figures: Sequence[Figure], setting: str) -> str:
    parts = [[setting], _rows_table(figures), _latency_table(figures), _growth_table(figures)]
    parts.append([f"- {verdict}" for verdict in [*verdicts(figures), *doubts(figures)]])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def verdicts(figures: Sequence[Figure]) -> list[str]:
    """One sentence per bar: the worst of the rows and sizes that it is for decides."""
    found = []
    for side, bar in CPU_BARS.items():
        found += _verdict(
            figures, side, BARRED, lambda f: f.per_cpu_s, bar, "Kafka's rows per CPU second in batches"
        )
    found += _ceiling(figures)
    found += _verdict(
        figures,
        SOURCE,
        (STREAM, BATCHES),
        lambda f: f.per_second,
        STREAM_BAR,
        "Kafka's rows per second in streams",
    )
    ours = middle(figures, SOURCE, LATENCY, 0, lambda f: f.p50_ms)
    theirs = [
        value
        for row in (LATENCY, LATENCY_HASTY)
        if (value := middle(figures, KAFKA, row, 0, lambda f: f.p50_ms)) is not None
    ]
    if ours and theirs:
        ratio = ours / min(theirs)
        word = "reached" if ratio <= LATENCY_BAR else "**missed**"
        found.append(f"small triggers: {ratio:.2f} of Kafka's shortest latency, bar {LATENCY_BAR:g}: {word}")
    return found + _growth(figures)


def _growth(figures: Sequence[Figure]) -> list[str]:
    """The worst of a side's queries decides."""
    found = []
    for side in CPU_BARS:
        chosen = [figure for figure in figures if figure.side == side and figure.row.startswith(GROWTH)]
        counts = sorted({figure.messages for figure in chosen})
        if len(counts) < 2:
            continue

        def factor(value: Value, chosen: Sequence[Figure] = chosen, counts: Sequence[int] = counts) -> float:
            """By how much it grows from the fewest to the most messages, in the row where it grows most."""
            factors = []
            for row in {figure.row for figure in chosen}:
                few, most = (
                    median(value(f) or 0.0 for f in chosen if (f.row, f.messages) == (row, count))
                    for count in (counts[0], counts[-1])
                )
                factors.append(most / few)
            return max(factors)

        cpu = factor(lambda f: (f.cpu_s + f.broker_cpu_s) / f.messages)
        memory = factor(lambda f: f.java_mb + f.python_mb)
        word = "reached" if max(cpu, memory) <= GROWTH_BAR else "**missed**"
        found.append(
            f"{NAMES[side]}: from {counts[0]:,} to {counts[-1]:,} messages CPU a row grows by a factor of {cpu:.2f} "
            f"and memory by {memory:.2f} at most, bar {GROWTH_BAR:g}: {word}"
        )
    return found


def _verdict(
    figures: Sequence[Figure], side: str, rows: Sequence[str], value: Value, bar: float, what: str
) -> list[str]:
    ratios = _ratios(figures, side, rows, value)
    if not ratios:
        return []
    worst = min(ratios, key=lambda name: ratios[name])
    whole = _together(figures, side, rows, value) / _together(figures, KAFKA, rows, value)
    word = "reached" if ratios[worst] >= bar else "**missed**"
    return [
        f"{NAMES[side]}: {ratios[worst]:.2f} to {max(ratios.values()):.2f} times {what}, bar {bar:g}: {word} "
        f"(least: {worst}); {whole:.2f} times over all of them together"
    ]


def _ratios(figures: Sequence[Figure], side: str, rows: Sequence[str], value: Value) -> dict[str, float]:
    """To Kafka's, of each query that was measured at both, under its name."""
    return {
        f"{TITLES[row]}, {size} B": ratio
        for row in rows
        for size in SIZES
        if (ratio := ratio_to_kafka(figures, side, row, size, value)) is not None
    }


def _ceiling(figures: Sequence[Figure]) -> list[str]:
    """What a Python source could reach without our part on Java's side: one that only hands out rows made before."""
    ratios = _ratios(figures, FLOOR, BARRED, lambda f: f.per_cpu_s)
    if not ratios:
        return []
    most = ", ".join(f"{ratio:.2f} ({name})" for name, ratio in ratios.items())
    return [f"{NAMES[FLOOR]}: the most that any reaches so, to Kafka's rows per CPU second: {most}"]


def _together(figures: Sequence[Figure], side: str, rows: Sequence[str], value: Value) -> float:
    """The rate at which all these queries are done, one after the other."""
    rates = [
        rate
        for row in rows
        for size in SIZES
        if middle(figures, KAFKA, row, size, value) is not None
        and (rate := middle(figures, side, row, size, value)) is not None
    ]
    return harmonic_mean(rates)


def doubts(figures: Sequence[Figure]) -> list[str]:
    busy = [figure.other_cores for figure in figures if figure.other_cores > BUSY_CORES]
    if not busy:
        return []
    return [
        f"To be read with care: other processes used up to {max(busy):.1f} cores during "
        f"{len(busy)} of {len(figures)} figures."
    ]


def middle(figures: Sequence[Figure], side: str, row: str, size: int, value: Value) -> float | None:
    """The median over rounds and repetitions."""
    chosen = [figure for figure in figures if (figure.side, figure.row, figure.size) == (side, row, size)]
    found = [number for figure in chosen if (number := value(figure)) is not None]
    return median(found) if found else None


def ratio_to_kafka(figures: Sequence[Figure], side: str, row: str, size: int, value: Value) -> float | None:
    ours, theirs = (middle(figures, name, row, size, value) for name in (side, KAFKA))
    return None if ours is None or not theirs else ours / theirs


def _rows_table(figures: Sequence[Figure]) -> list[str]:
    columns: list[tuple[str, Value]] = [
        ("rows/s", lambda f: f.per_second),
        ("rows/CPU s", lambda f: f.per_cpu_s),
        ("without the broker's CPU", lambda f: f.per_spark_cpu_s),
    ]
    heads = ["query", "bytes", "reader", *(word for name, _ in columns for word in (name, "to Kafka"))]
    heads += ["Java MB", "Python MB"]
    lines = [f"| {' | '.join(heads)} |", "|---|--:|---|" + "--:|" * (len(heads) - 3)]
    for row in (*QUERIES, STREAM, BATCHES, WRITE, WRITE_ONCE):
        for size in SIZES:
            for side in NAMES:
                if middle(figures, side, row, size, lambda f: f.seconds) is None:
                    continue
                cells = [TITLES[row], str(size), NAMES[side]]
                for _, value in columns:
                    ratio = ratio_to_kafka(figures, side, row, size, value)
                    cells.append(_number(middle(figures, side, row, size, value)))
                    cells.append("–" if ratio is None or side == KAFKA else f"{ratio:.2f}")
                cells += [
                    _number(middle(figures, side, row, size, value))
                    for value in (lambda f: f.java_mb, lambda f: f.python_mb)
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return lines if len(lines) > 2 else []


def _latency_table(figures: Sequence[Figure]) -> list[str]:
    lines = [
        "| small triggers, from send to `foreachBatch` | p50 ms | p99 ms | CPU cores |",
        "|---|--:|--:|--:|",
    ]
    values: tuple[Value, ...] = (lambda f: f.p50_ms, lambda f: f.p99_ms)
    for side, row in ((SOURCE, LATENCY), (KAFKA, LATENCY), (KAFKA, LATENCY_HASTY)):
        numbers = [middle(figures, side, row, 0, value) for value in values]
        cores = middle(figures, side, row, 0, lambda f: (f.cpu_s + f.broker_cpu_s) / f.seconds)
        if cores is not None:
            name = (
                f"{NAMES[side]}, `fetch.max.wait.ms` 10 instead of 500"
                if row == LATENCY_HASTY
                else NAMES[side]
            )
            lines.append(f"| {name} | {' | '.join(map(_number, numbers))} | {cores:.2f} |")
    return lines if len(lines) > 2 else []


def _growth_table(figures: Sequence[Figure]) -> list[str]:
    lines = [
        "| growth, 128 B | messages | s | µs CPU/row | Java MB | Python MB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    chosen = [figure for figure in figures if figure.row.startswith(GROWTH)]
    for side, row, count in dict.fromkeys((f.side, f.row, f.messages) for f in chosen):
        same = [f for f in chosen if (f.side, f.row, f.messages) == (side, row, count)]
        cells = [f"{NAMES[side]}, {TITLES[row.removeprefix(GROWTH + ' ')]}", f"{count:,}"]
        cells.append(f"{median(f.seconds for f in same):.2f}")
        cells.append(f"{median((f.cpu_s + f.broker_cpu_s) / f.messages for f in same) * 1e6:.2f}")
        cells += [_number(median(f.java_mb for f in same)), _number(median(f.python_mb for f in same))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines if len(lines) > 2 else []


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"
