"""`orbitmq topic grow` and `orbitmq topic shrink`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitmq.cli.options import (
    DEFAULT_NAMESRV,
    DEFAULT_TIMEOUT_S,
    BrokerName,
    Json,
    Namesrv,
    Timeout,
    with_cluster,
)
from orbitmq.cli.output import note, print_line, print_table, show

if TYPE_CHECKING:
    from orbitmq.client.admin.resize import ShrinkProgress, Size
    from orbitmq.client.cluster import Cluster

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Queues = Annotated[int, typer.Option("--queues", "-q", min=1, help="Queues on each broker afterwards.")]


def grow(
    name: Name,
    queues: Queues,
    broker: BrokerName = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Add queues to a topic while it is used."""
    from orbitmq.client.admin.resize import grow_topic

    before = with_cluster(namesrv, timeout, lambda cluster: grow_topic(cluster, name, queues, broker=broker))
    show(
        as_json,
        {"topic": name, "queues": queues, "before": before},
        lambda: print_line(f"topic {name}: {_sizes(before)} → {queues} queues"),
    )


def shrink(
    name: Name,
    queues: Queues,
    broker: BrokerName = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="GROUP", help="Do not wait for it; can be repeated."),
    ] = None,
    limit_s: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0.0, help="Give up waiting after this."),
    ] = None,
    settle_s: Annotated[
        float,
        typer.Option("--settle", metavar="SECONDS", min=0.0, help="How long producers take to see a change."),
    ] = 35.0,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Take queues away from a topic without losing a message. Safe to interrupt and to repeat.

    Producers leave the queues first; when every group has read them to the end, consumers leave them, too.
    """
    from orbitmq.client.admin.resize import Shrink, StillInUse

    async def work(cluster: Cluster) -> ShrinkProgress:
        with _Watch(shown=not as_json) as watch:
            run = Shrink(
                cluster,
                name,
                queues,
                broker=broker,
                ignore=ignore or (),
                settle_s=settle_s,
                timeout_s=limit_s,
                on_progress=watch.update,
            )
            return await run.run()

    try:
        done = with_cluster(namesrv, timeout, work)
    except StillInUse as error:
        if not as_json:
            _print_held_up(error.progress)
        raise
    except KeyboardInterrupt:
        note(
            f"interrupted: producers use {queues} queues, consumers still all of them; run the same command to go "
            f"on, or `orbitmq topic grow {name}` to go back"
        )
        raise
    show(as_json, done, lambda: print_line(f"topic {name}: {_sizes(done.before)} → {queues} queues"))
    for group in done.not_asked:
        note(f"group {group} broadcasts: its members keep their own offsets and were not waited for")


class _Watch:
    """What is being waited for, on standard error: a bar for people, lines when nobody watches."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._bar: Any = nullcontext()
        self._task: Any = None
        self._most = 0
        self._told = ""
        if shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                console=Console(stderr=True),
            )

    def __enter__(self) -> _Watch:
        self._bar.__enter__()
        if not isinstance(self._bar, nullcontext):
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def update(self, progress: ShrinkProgress) -> None:
        self._most = max(self._most, progress.left)
        groups = sorted({item.group for item in progress.held_up_by})
        if groups:
            text = f"waiting for {', '.join(groups)}: {progress.left:,} messages left"
        elif progress.settling_s > 0:
            text = "waiting until all producers know"
        else:
            text = "everything is read"
        if self._task is not None:
            self._bar.update(
                self._task, description=text, total=self._most, completed=self._most - progress.left
            )
        elif self._shown and text != self._told:
            note(text)
        self._told = text


def _print_held_up(progress: ShrinkProgress) -> None:
    print_table(
        ["GROUP", "BROKER", "QUEUE", "BEHIND"],
        [(item.group, item.broker, item.queue_id, item.behind) for item in progress.held_up_by],
        right=("QUEUE", "BEHIND"),
        empty="no group is behind",
    )


def _sizes(before: dict[str, Size]) -> str:
    return ", ".join(f"{target} {max(size.read, size.write)}" for target, size in sorted(before.items()))
