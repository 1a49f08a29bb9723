"""Tables to files: CSV for programs, plots for eyes, and one HTML page that holds everything."""

from __future__ import annotations

import base64
import csv
import html
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

Rows = Sequence[Mapping[str, Any]]
Remarks = Mapping[str, Sequence[str]]
"""By the name of a table: what its reader must know."""

ROWS_SHOWN: Final = 20
MOST_LINES: Final = 8
_IN_MS: Final = ("p50", "p95", "p99", "max")
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.6em } h2 { margin-top: 2em; font-size: 1.2em; border-bottom: 1px solid #ddd }
img { max-width: 100% } table { border-collapse: collapse; font-size: 13px }
td, th { padding: 2px 12px 2px 0; text-align: left; border-bottom: 1px solid #eee } td.n { text-align: right }
p.remark { color: #777; margin: .3em 0 } details { margin: .5em 0 } summary { color: #555; cursor: pointer }
table.glance td { padding-right: 2em; font-size: 15px; border: 0 } table.glance td.n { font-weight: 600 }
"""
# Colours that people with any kind of sight can tell apart.
_COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222222")


class Plot(NamedTuple):
    """How a table is drawn: lines over time, one for each combination of `by`, or bars with labels.

    `{step}` in the unit is how long a step of time is.
    """

    title: str
    unit: str
    value: str
    by: tuple[str, ...]
    over_time: bool = True
    note: str = ""


PLOTS: Final[dict[str, Plot]] = {
    "throughput": Plot("Messages stored", "messages per {step}", "messages", ("topic",)),
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
        "Stored in this range and not handled yet",
        "messages",
        "backlog",
        ("topic", "consumer_group"),
        note="from message traces",
    ),
    "producers": Plot(
        "Sends of producers",
        "sends",
        "sends",
        ("producer_group", "client"),
        over_time=False,
        note="from message traces",
    ),
    "sending_hosts": Plot(
        "Messages by the host they came from", "messages", "messages", ("topic", "host"), over_time=False
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


def write_report(
    out: Path, tables: Mapping[str, Rows], heading: str, *, step: str, remarks: Remarks
) -> list[str]:
    """Writes tables, plots and `report.html` below `out`; the names of the files."""
    written: list[str] = []
    (out / "tables").mkdir(parents=True, exist_ok=True)
    (out / "plots").mkdir(exist_ok=True)
    parts = [f"<h1>{html.escape(heading)}</h1>", _glance(tables)]
    for name, rows in tables.items():
        plot = PLOTS[name]
        plot = plot._replace(unit=plot.unit.format(step=step.removeprefix("1 ")))
        title = plot.title + (f" ({plot.note})" if plot.note else "")
        parts.append(f"<h2>{html.escape(title)}</h2>")
        table = out / "tables" / f"{name}.csv"
        _write_csv(table, rows)
        written.append(str(table.relative_to(out)))
        said = list(remarks.get(name, ()))
        if not rows:
            parts += map(_remark, said or ["nothing to show"])
            continue
        picture = out / "plots" / f"{name}.png"
        data = base64.b64encode(draw(plot, rows, picture)).decode()
        written.append(str(picture.relative_to(out)))
        parts.append(f'<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">')
        parts += map(_remark, [*_not_drawn(plot, rows), *said])
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


def _remark(text: str) -> str:
    return f'<p class="remark">{html.escape(text)}</p>'


def _not_drawn(plot: Plot, rows: Rows) -> list[str]:
    """Nothing is left away without a word."""
    drawn, there = _drawn(plot, rows)
    if drawn == there:
        return []
    if plot.over_time:
        return [f"drawn are the {drawn} lines that rise highest, of {there:,}; tables/ has all of them"]
    return [f"drawn are the first {drawn}; tables/ has {there:,}"]


def _drawn(plot: Plot, rows: Rows) -> tuple[int, int]:
    """How many lines or bars are drawn, and how many there are."""
    there = len({_names(plot, row) for row in rows}) if plot.over_time else len(rows)
    return min(there, MOST_LINES if plot.over_time else ROWS_SHOWN), there


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
            found.append((what, _text(worst[plot.value]), _names(plot, worst) + when))
    lines = "".join(
        f"<tr><td>{html.escape(what)}</td><td class=n>{value}</td><td>{html.escape(who)}</td></tr>"
        for what, value, who in found
    )
    return f"<table class=glance>{lines}</table>" if lines else ""


def draw(plot: Plot, rows: Rows, path: Path) -> bytes:
    """The file is for itself and has a title; the picture that is returned stands below one, on the page."""
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
            places: Any = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
            axes.xaxis.set_major_locator(places)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(places, tz=UTC))  # type: ignore[no-untyped-call]
            axes.set_xlabel("UTC")
        else:
            sizes = [float(row[plot.value] or 0) for row in bars]
            labels = [_drawable(_names(plot, row)) for row in bars]
            # By number: labels that were cut may be equal, and equal ones would share a bar.
            found = axes.barh(range(len(bars)), sizes, tick_label=labels, height=0.7, color=_COLOURS[0])
            axes.bar_label(found, fmt="{:,.0f}", padding=3, fontsize=8)
            axes.tick_params(axis="y", labelsize=8)
            axes.margins(x=0.08)
        (axes.yaxis if plot.over_time else axes.xaxis).set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        (axes.set_ylabel if plot.over_time else axes.set_xlabel)(plot.unit)
        axes.grid(alpha=0.3, axis="both" if plot.over_time else "x")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        for_page = io.BytesIO()
        figure.savefig(for_page, format="png")
        drawn, there = _drawn(plot, rows)
        # A table of what is most has no more rows than were asked for: only of lines is it known how many there are.
        part = f"{drawn} of {there:,}" if plot.over_time else f"the first {drawn}"
        axes.set_title(plot.title + (f" ({part})" if drawn < there else ""), fontsize=11)
        figure.savefig(path)
        return for_page.getvalue()
    finally:
        pyplot.close(figure)


def _lines(plot: Plot, rows: Rows) -> list[tuple[str, list[tuple[Any, float]]]]:
    """The lines with the largest values; a plot of hundreds tells nothing."""
    lines: dict[str, list[tuple[Any, float]]] = {}
    for row in rows:
        lines.setdefault(_names(plot, row), []).append((row["time"], float(row[plot.value] or 0)))
    ranked = sorted(lines.items(), key=lambda item: -max(value for _, value in item[1]))
    return sorted((_drawable(name), sorted(points)) for name, points in ranked[:MOST_LINES])


def _names(plot: Plot, row: Mapping[str, Any]) -> str:
    return " · ".join(str(row[name]) for name in plot.by if row[name] is not None) or "(unknown)"


def _drawable(name: str) -> str:
    # A $ would begin a formula, an underscore at the beginning would hide the line from the legend.
    return name.replace("$", r"\$").lstrip("_")[:60]


def _write_csv(path: Path, rows: Rows) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def _html_table(rows: Rows) -> str:
    names = list(rows[0])
    heads = [
        f"{name} (UTC)" if isinstance(rows[0][name], datetime) else f"{name}, ms" if name in _IN_MS else name
        for name in names
    ]
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
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
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return f"{value:,}" if isinstance(value, int) else str(value if value is not None else "-")
