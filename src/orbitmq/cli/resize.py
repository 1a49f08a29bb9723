"""`orbitmq topic grow` and `orbitmq topic shrink`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
from orbitmq.cli.progress import Watch

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
        with Watch(shown=not as_json) as watch:
            run = Shrink(
                cluster,
                name,
                queues,
                broker=broker,
                ignore=ignore or (),
                settle_s=settle_s,
                timeout_s=limit_s,
                on_progress=lambda progress: watch.update(_doing(progress), progress.left),
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


def _doing(progress: ShrinkProgress) -> str:
    groups = sorted({item.group for item in progress.held_up_by})
    if groups:
        return f"waiting for {', '.join(groups)}: {progress.left:,} messages left"
    return "waiting until all producers know" if progress.settling_s > 0 else "everything is read"


def _print_held_up(progress: ShrinkProgress) -> None:
    print_table(
        ["GROUP", "BROKER", "QUEUE", "BEHIND"],
        [(item.group, item.broker, item.queue_id, item.behind) for item in progress.held_up_by],
        right=("QUEUE", "BEHIND"),
        empty="no group is behind",
    )


def _sizes(before: dict[str, Size]) -> str:
    return ", ".join(f"{target} {max(size.read, size.write)}" for target, size in sorted(before.items()))
