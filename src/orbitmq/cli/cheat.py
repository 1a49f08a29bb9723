"""`orbitmq cheat`: examples to copy, for those who forget options."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from orbitmq.cli.output import CommandError, ExitCode, print_json, print_line

SHEETS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "server": (
        ("name server and broker in one process, data in ./data", "orbitmq server --data ./data"),
        (
            "faster and less safe: acknowledge before the disk has it",
            "orbitmq server --set flushDiskType=ASYNC_FLUSH",
        ),
        ("apart: a name server and a broker", "orbitmq namesrv --port 9876"),
        ("", "orbitmq broker -n 127.0.0.1:9876 --data ./data -c broker.conf"),
    ),
    "cluster": (
        (
            "two masters with a slave each and a controller on this machine, until Ctrl-C",
            "orbitmq cluster up --masters 2 --slaves 1 --controllers 1 --replication sync ./cluster",
        ),
        ("a broker for each core", "orbitmq server --brokers 4 --data ./data"),
        ("who is there, and how they do", "orbitmq cluster list"),
        (
            "send producers away from a broker, wait for readers, stop it",
            "orbitmq cluster drain broker-b --stop",
        ),
        ("let them in again", "orbitmq cluster drain broker-b --undo"),
        ("all brokers, one after the other, while clients work", "orbitmq cluster restart --yes"),
        ("a new broker takes its share of the load", "orbitmq cluster expand broker-c"),
    ),
    "topic": (
        ("a topic with 4 queues on every broker", "orbitmq topic create orders --queues 4"),
        ("make it read-only", "orbitmq topic update orders --perm 4"),
        ("what its queues hold, and who consumes it", "orbitmq topic show orders"),
        ("more queues, or fewer when they are read", "orbitmq topic grow orders --queues 8"),
        ("", "orbitmq topic shrink orders --queues 2"),
    ),
    "group": (
        ("members, subscriptions and lag", "orbitmq group show billing"),
        ("what going back one hour would do", "orbitmq group reset billing orders --to 1h --dry-run"),
        ("do it", "orbitmq group reset billing orders --to 1h --yes"),
    ),
    "message": (
        (
            "send with tag, key and property",
            "orbitmq send orders hello --tag paid --key order-42 --property region=eu",
        ),
        ("one message per line of a file", "orbitmq send orders --from-file lines.txt --lines"),
        ("watch a topic", "orbitmq tail orders"),
        (
            "everything of the last 10 minutes as JSON lines",
            "orbitmq tail orders --from 10m --no-follow --json",
        ),
        ("find by key, by id, by place", "orbitmq message key orders order-42"),
        ("", "orbitmq message show ID --topic orders"),
        ("", "orbitmq message at orders 0 17"),
        ("what happened to it, as clients reported", "orbitmq message trace order-42"),
        ("transactions that are still open", "orbitmq message half"),
    ),
    "dead": (
        ("which groups gave up on messages", "orbitmq dead list"),
        ("what and why", "orbitmq dead list billing --from 1d --reason timeout"),
        ("what sending them back would do", "orbitmq dead redrive billing --dry-run"),
        ("send them back, slowly", "orbitmq dead redrive billing --rate 20 --yes"),
    ),
    "store": (
        ("check a stopped broker's directory", "orbitmq store verify ./data"),
        ("what is in it", "orbitmq store inspect ./data"),
    ),
}


def cheat(
    subject: Annotated[str | None, typer.Argument(help="One of: " + ", ".join(SHEETS) + ".")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show examples to copy."""
    if subject is not None and subject not in SHEETS:
        raise CommandError(
            f"there is no cheat sheet '{subject}'",
            hint=f"there are: {', '.join(SHEETS)}",
            exit_code=ExitCode.NOT_FOUND,
        )
    chosen = {subject: SHEETS[subject]} if subject else SHEETS
    if as_json:
        print_json({name: [line for _, line in sheet] for name, sheet in chosen.items()})
        return
    for name, sheet in chosen.items():
        print_line(f"# {name}")
        for why, line in sheet:
            if why:
                print_line(f"  {why}")
            print_line(f"    {line}")
