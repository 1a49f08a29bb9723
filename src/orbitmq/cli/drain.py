"""`orbitmq cluster drain`: take a broker out of use without losing a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orbitmq.cli.options import DEFAULT_NAMESRV, DEFAULT_TIMEOUT_S, Json, Namesrv, Timeout, with_cluster
from orbitmq.cli.output import CommandError, ExitCode, note, print_line, print_table, show
from orbitmq.cli.progress import Watch

if TYPE_CHECKING:
    from orbitmq.client.admin.draining import DrainProgress
    from orbitmq.client.cluster import Cluster


def drain(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Name of the broker.")],
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop it when it is empty: its slaves first, then the master.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let producers in again.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also when some topic has no other broker to go to.")
    ] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="GROUP", help="Do not wait for it; can be repeated."),
    ] = None,
    wait_for_groups: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until every group has read what is left.")
    ] = True,
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
    """Send producers elsewhere and wait until everything is read. Safe to interrupt and to repeat.

    Name servers stop naming the broker; when producers have left, it refuses messages itself; then groups read the
    rest, and it may be stopped.
    """
    if undo:
        if stop or force:
            raise CommandError("--undo goes alone", hint="leave the rest out", exit_code=ExitCode.USAGE)
        _undo(broker, namesrv, timeout, as_json)
        return
    from orbitmq.client.admin.draining import Drain, StillInUse

    reached: list[DrainProgress] = []

    def look(progress: DrainProgress) -> None:
        reached[:] = [progress]
        watch.update(_doing(progress), progress.left)

    async def work(cluster: Cluster) -> tuple[DrainProgress, list[str]]:
        run = Drain(
            cluster,
            broker,
            force=force,
            ignore=ignore or (),
            wait_for_groups=wait_for_groups,
            settle_s=settle_s,
            timeout_s=limit_s,
            on_progress=look,
        )
        done = await run.run()
        return done, await _stop(cluster, done.broker) if stop else []

    try:
        with Watch(shown=not as_json) as watch:
            done, stopped = with_cluster(namesrv, timeout, work)
    except StillInUse as error:
        if not as_json:
            _print_behind(error.progress)
        raise
    except KeyboardInterrupt:
        note(_interrupted(broker, reached[0] if reached else None))
        raise
    show(as_json, {"drained": done, "stopped": stopped}, lambda: _print_done(done, stopped, wait_for_groups))


def _undo(broker: str, namesrv: str, timeout: float, as_json: bool) -> None:
    from orbitmq.client.admin.permission import find_group, open_for_writes

    async def work(cluster: Cluster) -> str:
        group = await find_group(cluster, broker)
        await open_for_writes(cluster, group)
        return group.name

    name = with_cluster(namesrv, timeout, work)
    show(
        as_json,
        {"broker": name, "writable": True},
        lambda: print_line(f"{name} takes messages again; producers find it within 30 s"),
    )


async def _stop(cluster: Cluster, name: str) -> list[str]:
    from orbitmq.client.admin.permission import find_group
    from orbitmq.client.admin.stopping import stop_broker, until_gone

    group = await find_group(cluster, name)
    stopped = []
    for _, addr in sorted(group.addrs.items(), reverse=True):
        await stop_broker(cluster, addr)
        await until_gone(cluster, addr)
        stopped.append(addr)
    return stopped


def _doing(progress: DrainProgress) -> str:
    from orbitmq.client.admin.draining import Step

    if progress.step in (Step.LEAVE, Step.CLOSE):
        arriving = "" if progress.in_per_s is None else f": {progress.in_per_s:,.0f} messages/s arrive"
        return "waiting until producers have left" + arriving
    if progress.step is Step.READ:
        groups = sorted({item.group for item in progress.behind})
        alone = sorted({item.group for item in progress.behind if not item.online})
        nobody = f" (no member of {', '.join(alone)} is connected)" if alone else ""
        return f"waiting for {', '.join(groups)}{nobody}: {progress.left:,} messages left"
    return "nothing arrives, and everything is read"


def _interrupted(broker: str, reached: DrainProgress | None) -> str:
    from orbitmq.client.admin.draining import Step

    if reached is None:
        return "interrupted: nothing was changed"
    state = {
        Step.LEAVE: "name servers do not name it to producers any more, the broker still takes messages",
        Step.CLOSE: "the broker is about to refuse messages, consumers go on",
        Step.READ: "the broker refuses messages, consumers go on",
        Step.DONE: "the broker is empty and refuses messages",
    }[reached.step]
    return f"interrupted: {state}; run the same command to go on, or `orbitmq cluster drain {broker} --undo` to go back"


def _print_behind(progress: DrainProgress) -> None:
    print_table(
        ["GROUP", "TOPIC", "QUEUE", "BEHIND", "ONLINE"],
        [(item.group, item.topic, item.queue_id, item.behind, item.online) for item in progress.behind],
        right=("QUEUE", "BEHIND"),
        empty="no group is behind",
    )


def _print_done(done: DrainProgress, stopped: list[str], waited_for_groups: bool) -> None:
    name = done.broker
    if stopped:
        print_line(f"{name} is stopped: {', '.join(stopped)}")
        note(f"when it is started again, `orbitmq cluster drain {name} --undo` lets producers in")
        return
    rest = (
        "everything in it is read: it may be stopped" if waited_for_groups else "groups were not waited for"
    )
    print_line(f"{name} takes no messages, and {rest}")
