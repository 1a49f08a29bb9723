"""Tables to files: CSV for programs, plots for eyes, and one HTML page that holds everything."""

from __future__ import annotations

import base64
import csv
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

Rows = Sequence[Mapping[str, Any]]

ROWS_SHOWN: Final = 20
MOST_LINES: Final = 8
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.6em } h2 { margin-top: 2em; font-size: 1.2em; border-bottom: 1px solid #ddd }
img { max-width: 100% } table { border-collapse: collapse; font-size: 13px }
td, th { padding: 2px 12px 2px 0; text-align: left; border-bottom: 1px solid #eee } td.n { text-align: right }
p.none { color: #777 } details { margin: .5em 0 } summary { color: #555; cursor: pointer }
table.glance td { padding-right: 2em; font-size: 15px; border: 0 } table.glance td.n { font-weight: 600 }
"""
# Colours that people with any kind of sight can tell apart.
_COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")


class Plot(NamedTuple):
    """How a table is drawn: lines over time, one for each combination of `by`, or bars with labels."""

    title: str
    unit: str
    value: str
    by: tuple[str, ...]
    over_time: bool = True
    note: str = ""


PLOTS: Final[dict[str, Plot]] = {
    "throughput": Plot("Messages stored", "messages per step", "messages", ("topic",)),
    "send_latency": Plot(
        "Time to send, 95th percentile", "ms", "p95", ("topic",), note="from message traces"
    ),
    "consumption_delay": Plot(
        "From stored to first handled, 95th percentile",
        "ms",
        "p95",
        ("topic", "consumer_group"),
        note="from message traces",
    ),
    "backlog": Plot(
        "Stored in this range and not handled yet", "messages", "backlog", ("topic", "consumer_group")
    ),
    "hot_keys": Plot("Most frequent keys", "messages", "messages", ("topic", "key"), over_time=False),
    "tag_mix": Plot("Messages by tag", "messages", "messages", ("topic", "tag"), over_time=False),
    "slow_consumers": Plot(
        "Slowest consumers, 95th percentile of handling a message",
        "ms",
        "p95",
        ("consumer_group", "client"),
        over_time=False,
        note="from message traces",
    ),
    "lag_now": Plot("Lag of consumer groups now", "messages", "lag", ("group", "topic"), over_time=False),
}


def write_report(out: Path, tables: Mapping[str, Rows], heading: str) -> list[str]:
    """Writes tables, plots and `report.html` below `out`; the names of the files."""
    written: list[str] = []
    (out / "tables").mkdir(parents=True, exist_ok=True)
    (out / "plots").mkdir(exist_ok=True)
    parts = [f"<h1>{html.escape(heading)}</h1>", _glance(tables)]
    for name, rows in tables.items():
        plot = PLOTS[name]
        title = plot.title + (f" ({plot.note})" if plot.note else "")
        parts.append(f"<h2>{html.escape(title)}</h2>")
        table = out / "tables" / f"{name}.csv"
        _write_csv(table, rows)
        written.append(str(table.relative_to(out)))
        if not rows:
            parts.append('<p class="none">nothing to show</p>')
            continue
        picture = out / "plots" / f"{name}.png"
        draw(plot, rows, picture)
        written.append(str(picture.relative_to(out)))
        data = base64.b64encode(picture.read_bytes()).decode()
        parts.append(f'<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">')
        # Rows of a line over time say less than the line.
        parts.append(
            f"<details><summary>as a table</summary>{_html_table(rows)}</details>"
            if plot.over_time
            else _html_table(rows)
        )
    page = out / "report.html"
    page.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(heading)}</title>"
        f"<style>{_STYLE}</style>{''.join(parts)}</html>\n",
        "utf-8",
    )
    return [*written, page.name]


def _glance(tables: Mapping[str, Rows]) -> str:
    """The few numbers that a reader looks for first; those that nothing is known about are left out."""
    found: list[tuple[str, str, str]] = []
    stored = tables.get("throughput", ())
    if stored:
        found.append(("messages stored", _text(sum(int(row["messages"]) for row in stored)), ""))
        found.append(("megabytes", _text(sum(int(row["bytes"]) for row in stored) / 1e6), ""))
    for name, what in (
        ("backlog", "largest backlog"),
        ("consumption_delay", "longest delay, ms (95th percentile)"),
        ("send_latency", "longest time to send, ms (95th percentile)"),
        ("slow_consumers", "slowest consumer, ms (95th percentile)"),
        ("lag_now", "largest lag now"),
    ):
        plot = PLOTS[name]
        rows = [row for row in tables.get(name, ()) if row[plot.value]]
        if rows:
            worst = max(rows, key=lambda row: float(row[plot.value]))
            when = f", {worst['time']:%H:%M:%S}" if plot.over_time else ""
            found.append((what, _text(worst[plot.value]), _label(plot, worst) + when))
    lines = "".join(
        f"<tr><td>{html.escape(what)}</td><td class=n>{value}</td><td>{html.escape(who)}</td></tr>"
        for what, value, who in found
    )
    return f"<table class=glance>{lines}</table>" if lines else ""


def draw(plot: Plot, rows: Rows, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import StrMethodFormatter

    bars = list(rows)[:ROWS_SHOWN][::-1]
    height = 3.6 if plot.over_time else 1.1 + 0.24 * len(bars)
    figure, axes = pyplot.subplots(figsize=(9.6, height), dpi=110, layout="constrained")
    try:
        if plot.over_time:
            for colour, (label, points) in zip(_COLOURS, _lines(plot, rows), strict=False):
                times, values = zip(*points, strict=True)
                axes.plot(times, values, marker="o", markersize=2.5, linewidth=1.5, label=label, color=colour)
            axes.set_ylim(bottom=0)
            axes.legend(fontsize=8, frameon=False)
            places: Any = AutoDateLocator()  # type: ignore[no-untyped-call]
            axes.xaxis.set_major_locator(places)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(places))  # type: ignore[no-untyped-call]
        else:
            sizes = [float(row[plot.value] or 0) for row in bars]
            drawn = axes.barh([_label(plot, row) for row in bars], sizes, height=0.7, color=_COLOURS[0])
            axes.bar_label(drawn, fmt="{:,.0f}", padding=3, fontsize=8)
            axes.tick_params(axis="y", labelsize=8)
            axes.margins(x=0.08)
        (axes.yaxis if plot.over_time else axes.xaxis).set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        (axes.set_ylabel if plot.over_time else axes.set_xlabel)(plot.unit)
        axes.set_title(plot.title, fontsize=11)
        axes.grid(alpha=0.3, axis="both" if plot.over_time else "x")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path)
    finally:
        pyplot.close(figure)


def _lines(plot: Plot, rows: Rows) -> list[tuple[str, list[tuple[Any, float]]]]:
    """The lines with the largest values; a plot of hundreds tells nothing."""
    lines: dict[str, list[tuple[Any, float]]] = {}
    for row in rows:
        lines.setdefault(_label(plot, row), []).append((row["time"], float(row[plot.value] or 0)))
    ranked = sorted(lines.items(), key=lambda item: -max(value for _, value in item[1]))
    return sorted((label, sorted(points)) for label, points in ranked[:MOST_LINES])


def _label(plot: Plot, row: Mapping[str, Any]) -> str:
    # A $ would begin a formula, an underscore at the beginning would hide the line from the legend.
    text = " · ".join(str(row[name]) for name in plot.by if row[name] is not None) or "(unknown)"
    return text.replace("$", r"\$").lstrip("_")[:60]


def _write_csv(path: Path, rows: Rows) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def _html_table(rows: Rows) -> str:
    names = list(rows[0])
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = []
    for row in list(rows)[:ROWS_SHOWN]:
        cells = "".join(
            f"<td{' class=n' if isinstance(row[name], int | float) else ''}>{html.escape(_text(row[name]))}</td>"
            for name in names
        )
        lines.append(f"<tr>{cells}</tr>")
    more = f"<p>{len(rows) - ROWS_SHOWN:,} more rows in the table</p>" if len(rows) > ROWS_SHOWN else ""
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>{more}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value if value is not None else "-")
