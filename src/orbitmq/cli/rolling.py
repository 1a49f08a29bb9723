"""`orbitmq cluster restart`: one broker after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orbitmq.cli.options import (
    DEFAULT_NAMESRV,
    DEFAULT_TIMEOUT_S,
    Json,
    Namesrv,
    Timeout,
    Yes,
    confirm,
    with_cluster,
)
from orbitmq.cli.output import note, print_table, show
from orbitmq.cli.progress import Watch

if TYPE_CHECKING:
    from orbitmq.client.admin.rolling import Restarted, RestartProgress
    from orbitmq.client.cluster import Cluster


def restart(
    brokers: Annotated[
        list[str] | None, typer.Argument(metavar="[BROKER]...", help="Names or addresses; all by default.")
    ] = None,
    settle_s: Annotated[
        float,
        typer.Option("--settle", metavar="SECONDS", min=0.0, help="How long producers take to see a change."),
    ] = 35.0,
    yes: Yes = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Restart brokers one by one: slaves first, then masters, each handed over or drained before.

    Safe to interrupt: what is closed is opened again, and the rest can be restarted later.
    """
    from orbitmq.client.admin.rolling import RollingRestart, restart_order

    what = f"brokers {', '.join(brokers)}" if brokers else "all brokers, one after the other"
    confirm(f"restart {what}", yes, as_json)
    reached: list[RestartProgress] = []

    def look(progress: RestartProgress) -> None:
        reached[:] = [progress]
        total = len(progress.done) + len(progress.left) + (progress.doing != "is back")
        watch.update(f"{progress.now} {progress.doing}", total - len(progress.done))

    async def work(cluster: Cluster) -> list[Restarted]:
        order = await restart_order(cluster, brokers or ())
        return await RollingRestart(cluster, order, settle_s=settle_s, on_progress=look).run()

    try:
        with Watch(shown=not as_json) as watch:
            done = with_cluster(namesrv, timeout, work)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or reached:
            note(_left_over(reached[0] if reached else None))
        raise
    show(
        as_json,
        done,
        lambda: print_table(
            ["BROKER", "ADDRESS", "WAS", "HANDED OVER", "AWAY"],
            [
                (
                    row.broker,
                    row.addr,
                    "master" if row.was_master else "slave",
                    row.handed_over,
                    f"{row.away_s:.1f} s",
                )
                for row in done
            ],
            right=("AWAY",),
            empty="no broker is registered",
        ),
    )


def _left_over(reached: RestartProgress | None) -> str:
    if reached is None:
        return "interrupted: no broker was restarted"
    done = ", ".join(item.addr for item in reached.done) or "none"
    rest = ([] if reached.doing == "is back" else [reached.now]) + reached.left
    if not rest:
        return f"not finished, but all brokers are restarted: {done}"
    return f"not finished; restarted: {done}; to go on: orbitmq cluster restart {' '.join(rest)}"
