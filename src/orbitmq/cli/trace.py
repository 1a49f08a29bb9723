"""`orbitmq message trace`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orbitmq.cli.options import DEFAULT_NAMESRV, DEFAULT_TIMEOUT_S, Json, Namesrv, Timeout, with_cluster
from orbitmq.cli.output import print_line, print_table, show, time_text

if TYPE_CHECKING:
    from orbitmq.client.admin.trace import TimeLine, TraceEvent


def trace(
    key: Annotated[str, typer.Argument(metavar="ID|KEY", help="Message id, offset id, or a key.")],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Its topic, to see it without any report.")
    ] = None,
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", metavar="TOPIC", help="Where clients report to.")
    ] = "RMQ_SYS_TRACE_TOPIC",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show what happened to a message: sent, stored, delivered, consumed, with times and places."""
    from orbitmq.client.admin.trace import trace_message

    lines = with_cluster(
        namesrv, timeout, lambda cluster: trace_message(cluster, key, topic=topic, trace_topic=trace_topic)
    )

    def render() -> None:
        for line in lines:
            _print_line(line)

    show(as_json, lines[0] if len(lines) == 1 else lines, render)


def _print_line(line: TimeLine) -> None:
    start_ms = line.events[0].at_ms
    marks = [f"topic {line.topic or '?'}"]
    marks += [f"tag {line.tag}"] if line.tag else []
    marks += [f"keys {' '.join(line.keys)}"] if line.keys else []
    print_line(f"{line.msg_id}  {', '.join(marks)}")
    print_table(
        ["TIME", "AFTER", "WHAT", "GROUP", "COST", "WHERE"],
        [
            (
                time_text(event.at_ms),
                f"+{event.at_ms - start_ms:,} ms",
                event.what,
                event.group or "",
                "" if event.cost_ms is None else f"{event.cost_ms:,} ms",
                event.place or "",
            )
            for event in line.events
        ],
        right=("AFTER", "COST"),
        red=[not event.success for event in line.events],
    )
    print_line(_summary(line.events))


def _summary(events: list[TraceEvent]) -> str:
    delivered: dict[str, list[TraceEvent]] = {}
    for event in events:
        if event.group and event.attempt is not None:
            delivered.setdefault(event.group, []).append(event)
    if not delivered:
        return "no consumer reported it"
    parts = []
    for group, found in delivered.items():
        done = [event for event in found if event.cost_ms is not None and event.success]
        tries = len({event.attempt for event in found})
        state = f"consumed after {done[-1].at_ms - events[0].at_ms:,} ms" if done else "not consumed"
        parts.append(f"{group}: {state}, {tries} {'try' if tries == 1 else 'tries'}")
    return "; ".join(parts)
