"""Options that many commands share, and the way a command reaches the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

if TYPE_CHECKING:
    from orbitmq.client.cluster import Cluster

T = TypeVar("T")

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
DEFAULT_TIMEOUT_S: Final = 5.0

Namesrv = Annotated[
    str,
    typer.Option(
        "-n",
        "--namesrv",
        metavar="ADDR[;ADDR]",
        envvar=["NAMESRV_ADDR", "ORBITMQ_NAMESRV"],
        help="Name servers, HOST:PORT, separated by ';'.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Timeout = Annotated[
    float,
    typer.Option("--request-timeout", metavar="SECONDS", min=0.1, help="How long to wait for each answer."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
ClusterName = Annotated[
    str | None, typer.Option("--cluster", "-c", metavar="NAME", help="Only the masters of this cluster.")
]
BrokerName = Annotated[
    str | None, typer.Option("--broker", "-b", metavar="NAME|ADDR", help="Only this broker.")
]


def with_cluster(namesrv: str, timeout_s: float, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Runs async work on a cluster connection that is closed afterwards."""
    from orbitmq.client.cluster import Cluster

    async def body() -> T:
        async with Cluster(namesrv, timeout_s=timeout_s) as cluster:
            return await work(cluster)

    return asyncio.run(body())


def confirm(action: str, yes: bool, as_json: bool) -> None:
    """Asks before something is lost. A program must say --yes: it cannot be asked."""
    from orbitmq.cli.output import CommandError, ExitCode

    if yes:
        return
    if as_json or not typer.get_text_stream("stdin").isatty():
        raise CommandError(f"refused to {action} without a yes", hint="pass --yes", exit_code=ExitCode.USAGE)
    if not typer.confirm(f"{action[0].upper()}{action[1:]}?"):
        raise CommandError("nothing was changed", hint="answer y, or pass --yes")
