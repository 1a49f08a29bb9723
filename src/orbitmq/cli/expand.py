"""`orbitmq cluster expand`: a new broker gets the topics and groups of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orbitmq.cli.options import DEFAULT_NAMESRV, DEFAULT_TIMEOUT_S, Json, Namesrv, Timeout, with_cluster
from orbitmq.cli.output import note, print_line, print_table, show
from orbitmq.cli.progress import Watch

if TYPE_CHECKING:
    from orbitmq.client.admin.expanding import Expansion
    from orbitmq.client.cluster import Cluster


def expand(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Name of the new broker.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be made.")] = False,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Ordered topics, too: their keys move to other queues.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Give a broker the topics and groups that the others of its cluster have. Safe to repeat.

    Producers use it after their next look at the routes, at most 30 s later.
    """
    from orbitmq.client.admin.expanding import apply_expansion, plan_expansion

    async def work(cluster: Cluster) -> Expansion:
        plan = await plan_expansion(cluster, broker, ordered=ordered)
        if not dry_run:
            await apply_expansion(
                cluster, plan, lambda left: watch.update(f"{left:,} topics and groups left", left)
            )
        return plan

    with Watch(shown=not as_json) as watch:
        plan = with_cluster(namesrv, timeout, work)
    result = {
        "broker": plan.broker,
        "topics": list(plan.topics),
        "groups": list(plan.groups),
        "left_out": plan.left_out,
        "applied": not dry_run,
    }
    show(as_json, result, lambda: _print(plan, dry_run))


def _print(plan: Expansion, dry_run: bool) -> None:
    rows = [("topic", name, int(config["writeQueueNums"])) for name, config in plan.topics.items()]
    rows += [("group", name, "") for name in plan.groups]  # type: ignore[misc]
    if dry_run:
        print_table(
            ["KIND", "NAME", "QUEUES"], rows, right=("QUEUES",), empty=f"{plan.broker} has everything already"
        )
    elif rows:
        print_line(
            f"{plan.broker} has got {len(plan.topics):,} topics and {len(plan.groups):,} groups; producers use it "
            "within 30 s"
        )
    else:
        print_line(f"{plan.broker} has everything already")
    if plan.left_out:
        note(f"ordered topics were left out ({', '.join(plan.left_out)}); --ordered makes them, too")
