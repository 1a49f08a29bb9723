"""`orbitmq cluster …`"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer

from orbitmq.cli import cluster_up, drain, expand, rolling
from orbitmq.cli.options import (
    DEFAULT_NAMESRV,
    DEFAULT_TIMEOUT_S,
    BrokerName,
    ClusterName,
    Json,
    Namesrv,
    Timeout,
    Yes,
    confirm,
    with_cluster,
)
from orbitmq.cli.output import (
    CommandError,
    ExitCode,
    note,
    print_fields,
    print_line,
    print_table,
    show,
    time_text,
)
from orbitmq.cli.times import parse_pairs

app = typer.Typer(
    help="Start a cluster, look at its brokers, change their settings, drain and restart them.",
    no_args_is_help=True,
)
app.command("up")(cluster_up.up)
app.command("drain")(drain.drain)
app.command("restart")(rolling.restart)
app.command("expand")(expand.expand)

Broker = Annotated[str, typer.Argument(metavar="BROKER", help="Name or address of the broker.")]


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


@app.command("list")
def list_(
    cluster_name: ClusterName = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the brokers with their main figures."""
    from orbitmq.client import admin

    brokers = with_cluster(
        namesrv, timeout, lambda cluster: admin.broker_statuses(cluster, cluster_name=cluster_name)
    )

    def render() -> None:
        print_table(
            [
                "CLUSTER",
                "BROKER",
                "ID",
                "ADDRESS",
                "VERSION",
                "IN/S",
                "OUT/S",
                "STORED TODAY",
                "DISK",
                "OLDEST MESSAGE",
            ],
            [
                (
                    row.cluster,
                    row.broker,
                    row.broker_id,
                    row.addr,
                    row.version,
                    row.in_tps,
                    row.out_tps,
                    row.stored_today,
                    None if row.disk_ratio is None else f"{row.disk_ratio:.0%}",
                    time_text(row.earliest_message_ms, "none"),
                )
                for row in brokers
            ],
            right=("ID", "IN/S", "OUT/S", "STORED TODAY", "DISK"),
            empty="no broker is registered",
        )
        for row in brokers:
            if row.problem:
                note(f"no figures from {row.broker}: {row.problem}")

    show(as_json, brokers, render)


@app.command()
def status(
    broker: Broker,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show every figure a broker tells about itself."""
    from orbitmq.client import admin
    from orbitmq.client.cluster import Cluster

    async def ask(cluster: Cluster) -> dict[str, str]:
        return await admin.broker_runtime(cluster, await cluster.broker_addr(broker))

    figures = with_cluster(namesrv, timeout, ask)
    show(as_json, figures, lambda: print_fields(figures))


@app.command()
def config(
    broker: Broker,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these settings.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; can be repeated."),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a broker's settings, or change them while it runs."""
    from orbitmq.client import admin
    from orbitmq.client.cluster import Cluster

    wanted_changes = parse_pairs(changes or [], "setting")

    async def ask(cluster: Cluster) -> dict[str, str]:
        addr = await cluster.broker_addr(broker)
        before = await admin.broker_config(cluster, addr)
        if wanted_changes:
            _must_exist(broker, wanted_changes, before)
            await admin.update_broker_config(cluster, addr, wanted_changes)
            return await admin.broker_config(cluster, addr)
        return before

    settings = with_cluster(namesrv, timeout, ask)
    chosen = [*(keys or []), *wanted_changes]
    _must_exist(broker, chosen, settings)
    shown = {key: settings[key] for key in chosen} if chosen else settings
    show(as_json, shown, lambda: print_fields(shown))


@app.command()
def writable(
    broker: Broker,
    switch: Annotated[Switch, typer.Argument(help="off: no new messages; on: back to normal.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Take a broker out of the write routes, so that producers move away, or put it back."""
    from orbitmq.client import admin

    on = switch is Switch.ON
    changed = with_cluster(namesrv, timeout, lambda cluster: admin.set_broker_writable(cluster, broker, on))
    show(
        as_json,
        {"broker": broker, "writable": on, "topics_changed": changed},
        lambda: print_line(
            f"{broker} is {'writable' if on else 'not writable'}: "
            + ", ".join(f"{count} topics at {addr}" for addr, count in changed.items())
        ),
    )


@app.command()
def clean(
    cluster_name: ClusterName = None,
    broker: BrokerName = None,
    yes: Yes = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete now what is older than fileReservedTime, instead of at the hour of cleaning."""
    from orbitmq.client import admin

    confirm("Delete all messages older than fileReservedTime?", yes, as_json)
    cleaned = with_cluster(
        namesrv,
        timeout,
        lambda cluster: admin.clean_brokers(cluster, cluster_name=cluster_name, broker=broker),
    )
    show(
        as_json,
        cleaned,
        lambda: print_table(
            ["BROKER", "LOG FILES", "QUEUE FILES", "INDEX FILES", "DISK"],
            [
                (
                    row.broker,
                    row.log_files,
                    row.queue_files,
                    row.index_files,
                    None if row.disk_ratio is None else f"{row.disk_ratio:.0%}",
                )
                for row in cleaned
            ],
            right=("LOG FILES", "QUEUE FILES", "INDEX FILES", "DISK"),
        ),
    )


def _must_exist(broker: str, keys: Iterable[str], settings: dict[str, str]) -> None:
    for key in keys:
        if key not in settings:
            close = difflib.get_close_matches(key, settings, n=1)
            raise CommandError(
                f"broker {broker} has no setting '{key}'",
                hint=f"did you mean {close[0]}?"
                if close
                else f"list them with `orbitmq cluster config {broker}`",
                exit_code=ExitCode.NOT_FOUND,
            )
