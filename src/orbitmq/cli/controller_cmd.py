"""`orbitmq controller show` and `orbitmq controller hand-over`; the server itself starts in `server_cmd`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from orbitmq.cli.options import DEFAULT_TIMEOUT_S, Json, Timeout
from orbitmq.cli.output import CommandError, ExitCode, note, print_line, print_table, show

if TYPE_CHECKING:
    from orbitmq.client.controller import ControllerClient
    from orbitmq.wire.controller_bodies import ControllerState, GroupView

T = TypeVar("T")

POLL_S: Final = 0.1
DEFAULT_WAIT_S: Final = 20.0

app = typer.Typer(
    help="Start a controller (`orbitmq controller --port 9878 --data DIR`), or ask one.", no_args_is_help=True
)

Addresses = Annotated[
    str, typer.Argument(metavar="ADDR[;ADDR]", help="Controllers, HOST:PORT; whichever is active answers.")
]


@app.command("show")
def show_(addresses: Addresses, timeout: Timeout = DEFAULT_TIMEOUT_S, as_json: Json = False) -> None:
    """Show every broker group: master, epoch, in-sync set, and how far each replica is."""
    state = _with_controller(addresses, timeout, lambda client: client.state())
    show(as_json, state, lambda: _print_state(state))


@app.command("hand-over")
def hand_over(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Name of the broker group.")],
    addresses: Addresses,
    to: Annotated[int | None, typer.Option("--to", metavar="N", help="This replica is to be next.")] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="If nobody in sync is alive, take anyone: messages that only the others have are lost.",
        ),
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for the new master.")
    ] = DEFAULT_WAIT_S,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Have another replica become master, without losing a message."""
    group = _with_controller(
        addresses, timeout, lambda client: _hand_over(client, broker, to, unclean, wait_s)
    )
    show(
        as_json,
        group,
        lambda: print_line(f"{broker}: replica {group.master} is master of epoch {group.epoch}"),
    )


async def _hand_over(
    client: ControllerClient, broker: str, to: int | None, unclean: bool, wait_s: float
) -> GroupView:
    before = await client.hand_over(broker, to, unclean=unclean)
    if to is not None and before.master == to:
        return before
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        state = await client.state()
        group = next((each for each in state.groups if each.broker == broker), before)
        if group.epoch > before.epoch and group.master is not None:
            return group
        if asyncio.get_running_loop().time() >= deadline:
            why = group.problem or "the present one has not given way"
            raise CommandError(
                f"{broker} has no new master after {wait_s:g} s: {why}",
                hint="see `orbitmq controller show`; the wish stays with the controller for some seconds",
            )
        await asyncio.sleep(POLL_S)


def _print_state(state: ControllerState) -> None:
    rows = []
    alarms = []
    for group in state.groups:
        for replica in group.replicas:
            rows.append(
                (
                    group.cluster,
                    group.broker,
                    replica.replica,
                    replica.address,
                    "MASTER" if replica.replica == group.master else replica.role or None,
                    group.epoch,
                    replica.in_sync,
                    replica.alive,
                    replica.end,
                    None if replica.heard_ms_ago is None else f"{replica.heard_ms_ago / 1000:.1f} s ago",
                )
            )
            alarms.append(group.master is None)
    print_table(
        ["CLUSTER", "BROKER", "REPLICA", "ADDRESS", "ROLE", "EPOCH", "IN SYNC", "ALIVE", "LOG END", "HEARD"],
        rows,
        right=("REPLICA", "EPOCH", "LOG END"),
        empty="no broker group is known",
        red=alarms,
    )
    for group in state.groups:
        if group.master is None:
            note(f"{group.broker} has no master: {group.problem or 'somebody will be chosen in a moment'}")
    print_line(f"active controller {state.address}, {state.engine}, lease {state.lease_ms} ms")


def _with_controller(addresses: str, timeout_s: float, work: Callable[[ControllerClient], Awaitable[T]]) -> T:
    from orbitmq.client.controller import ControllerClient

    each = [address.strip() for address in addresses.split(";") if address.strip()]
    if not each:
        raise CommandError(
            "no controller is named", hint="give HOST:PORT[;HOST:PORT]", exit_code=ExitCode.USAGE
        )

    async def body() -> T:
        async with ControllerClient(each, timeout_s) as client:
            return await work(client)

    return asyncio.run(body())
