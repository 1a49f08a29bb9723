"""Figures in, a table with verdicts out. Pure: no files, no processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from bench.clients.load import AWAITED, ITERATE, PAGES, ROWS, STREAM, TITLES
from bench.clients.stopwatch import Figure

OURS, KAFKA, NATS = "orbitmq", "aiokafka", "nats-py"
BEGIN, END = "<!-- clients:begin -->", "<!-- clients:end -->"
BUSY_CORES = 0.3

BARS: Mapping[str, Mapping[str, float]] = {
    STREAM: {KAFKA: 2.0},
    AWAITED: {KAFKA: 1.0, NATS: 1.0},
    ITERATE: {KAFKA: 1.0},
    PAGES: {KAFKA: 1.0},
}
"""Our throughput has to be at least this many times that of the named client."""
CPU_GOAL = 0.5
"""Of the CPU of the best other Python client."""


def markdown(figures: Sequence[Figure], calls: Mapping[str, Mapping[str, str]], setting: str) -> str:
    """`calls` tells, by client and row, what was called."""
    out = [setting, "", "| row | client | calls | msg/s | client CPU µs/msg | p50 µs | p99 µs |"]
    out.append("|---|---|---|--:|--:|--:|--:|")
    for row in ROWS:
        for client in calls:
            of_client = [figure for figure in figures if (figure.client, figure.row) == (client, row)]
            if of_client:
                cells = [TITLES[row], client, calls[client][row], *_cells(of_client)]
                out.append(f"| {' | '.join(cells)} |")
    out += ["", *(f"- {verdict}" for verdict in verdicts(figures))]
    if busy := [figure.other_cores for figure in figures if figure.other_cores > BUSY_CORES]:
        out.append(
            f"- To be read with care: other processes used up to {max(busy):.1f} cores during "
            f"{len(busy)} of {len(figures)} figures."
        )
    return "\n".join(out) + "\n"


def verdicts(figures: Sequence[Figure]) -> list[str]:
    """One sentence per bar, and one per row about the goal for CPU."""
    found = []
    for row, bars in BARS.items():
        ours = middle(figures, OURS, row, lambda figure: figure.per_second)
        for client, bar in bars.items():
            theirs = middle(figures, client, row, lambda figure: figure.per_second)
            if ours is not None and theirs is not None:
                word = "reached" if ours / theirs >= bar else "**missed**"
                found.append(f"{TITLES[row]}: {ours / theirs:.2f} times {client}, bar {bar:g}: {word}")
        found += _goal(figures, row)
    return found


def _goal(figures: Sequence[Figure], row: str) -> list[str]:
    ours = middle(figures, OURS, row, lambda figure: figure.cpu_us)
    others = [middle(figures, client, row, lambda figure: figure.cpu_us) for client in (KAFKA, NATS)]
    best = min((cpu for cpu in others if cpu is not None), default=None)
    if ours is None or best is None:
        return []
    word = "reached" if ours / best <= CPU_GOAL else "missed"
    return [f"{TITLES[row]}: {ours / best:.2f} of the best other's CPU, goal {CPU_GOAL:g}: {word}"]


def middle(
    figures: Sequence[Figure], client: str, row: str, value: Callable[[Figure], float | None]
) -> float | None:
    """The median over the rounds."""
    chosen = [figure for figure in figures if (figure.client, figure.row) == (client, row)]
    found = [number for figure in chosen if (number := value(figure)) is not None]
    return median(found) if found else None


def _cells(figures: Sequence[Figure]) -> list[str]:
    client, row = figures[0].client, figures[0].row

    def text(value: Callable[[Figure], float | None], digits: int = 0) -> str:
        number = middle(figures, client, row, value)
        return "–" if number is None else f"{number:,.{digits}f}"

    return [
        text(lambda figure: figure.per_second),
        text(lambda figure: figure.cpu_us, 1),
        text(lambda figure: figure.p50_us),
        text(lambda figure: figure.p99_us),
    ]


def with_section(document: str, section: str, begin: str = BEGIN, end: str = END) -> str:
    """The document with what stands between the markers replaced; without markers the section is added at its end."""
    head, begun, rest = document.partition(begin)
    _, ended, tail = rest.partition(end)
    if not begun:
        return f"{document.rstrip()}\n\n{begin}\n{section}{end}\n"
    if not ended:
        raise ValueError(f"the document has {begin} without {end}")
    return f"{head}{begin}\n{section}{end}{tail}"
