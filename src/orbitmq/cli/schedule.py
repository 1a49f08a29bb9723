"""`orbitmq schedule …`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orbitmq.cli.options import (
    DEFAULT_NAMESRV,
    DEFAULT_TIMEOUT_S,
    BrokerName,
    ClusterName,
    Json,
    Namesrv,
    Timeout,
    with_cluster,
)
from orbitmq.cli.output import note, print_line, print_table, show, time_text

if TYPE_CHECKING:
    from orbitmq.client.admin.schedule import ScheduledMessage

app = typer.Typer(help="List and cancel messages that wait for their delivery time.", no_args_is_help=True)


@app.command("list")
def list_(
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only messages for this topic.")] = None,
    max_num: Annotated[int, typer.Option("--max", min=1, help="At most this many, the next ones.")] = 50,
    cluster_name: ClusterName = None,
    broker: BrokerName = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List delayed, timed and retried messages that wait, the next one first."""
    from orbitmq.client.admin.schedule import list_scheduled

    found = with_cluster(
        namesrv,
        timeout,
        lambda cluster: list_scheduled(
            cluster, topic=topic, max_num=max_num, cluster_name=cluster_name, broker=broker
        ),
    )

    def render() -> None:
        print_table(
            ["DELIVERED AT", "BY", "TOPIC", "TAG", "KEYS", "BYTES", "BROKER", "MESSAGE ID"],
            [
                (
                    time_text(item.deliver_ms),
                    _kind(item),
                    item.topic,
                    item.tag or "",
                    item.keys or "",
                    item.body_bytes,
                    item.broker,
                    item.msg_id,
                )
                for item in found.messages
            ],
            right=("BYTES",),
            empty="no message waits for its delivery time",
        )
        if found.waiting is not None and found.waiting > len(found.messages):
            print_line(f"{found.waiting:,} messages wait in all")
        for item in found.missing:
            note(f"orbitmq: {item.broker} did not answer: {item.reason}")

    show(as_json, found, render)


@app.command()
def cancel(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic it was sent to.")],
    msg_id: Annotated[
        str, typer.Argument(metavar="ID", help="Its message id, or the recall handle from the send.")
    ],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Cancel a message that is not delivered yet."""
    from orbitmq.client.admin.schedule import cancel_scheduled

    done = with_cluster(namesrv, timeout, lambda cluster: cancel_scheduled(cluster, topic, msg_id))
    how = "was cancelled before" if done.already else "is cancelled"
    show(as_json, done, lambda: print_line(f"message {done.msg_id} {how}, on {done.broker}"))


def _kind(item: ScheduledMessage) -> str:
    if item.retry:
        return f"retry, level {item.delay_level}" if item.delay_level else "retry"
    return f"level {item.delay_level}" if item.delay_level else "time"
