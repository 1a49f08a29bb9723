"""`orbitmq message …`"""

from __future__ import annotations

from contextlib import aclosing
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
from orbitmq.cli.output import (
    CommandError,
    ExitCode,
    note,
    print_json,
    print_line,
    print_table,
    show,
    time_text,
)
from orbitmq.cli.times import TIME_HELP, parse_time
from orbitmq.cli.trace import trace

if TYPE_CHECKING:
    from orbitmq.wire.message import Message

app = typer.Typer(help="Find messages by id, key, place or time.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to look in.")]
From = Annotated[str | None, typer.Option("--from", metavar="TIME", help=f"Stored at or after {TIME_HELP}.")]
To = Annotated[str, typer.Option("--to", metavar="TIME", help="Stored at or before this time.")]
Max = Annotated[int, typer.Option("--max", min=1, help="At most this many.")]

app.command()(trace)


@app.command("show")
def show_(
    msg_id: Annotated[
        str, typer.Argument(metavar="ID", help="Offset id, or with --topic a producer's message id.")
    ],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="The topic of a producer's message id.")
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the message with an id."""
    from orbitmq.cli.message_view import as_document, print_message
    from orbitmq.client import admin
    from orbitmq.client.cluster import Cluster

    async def ask(cluster: Cluster) -> list[Message]:
        if topic is None:
            return [await admin.message_by_offset_id(cluster, msg_id)]
        return await admin.messages_by_id(cluster, topic, msg_id)

    found = with_cluster(namesrv, timeout, ask)

    def render() -> None:
        for message in found:
            print_message(message)
        if len(found) > 1:
            print_line(f"{len(found)} messages carry this id: the producer sent it more than once")

    documents = [as_document(message) for message in found]
    show(as_json, documents[0] if len(documents) == 1 else documents, render)


@app.command()
def key(
    topic: Topic,
    value: Annotated[str, typer.Argument(metavar="KEY", help="The key the producer gave.")],
    since: From = None,
    until: To = "now",
    max_num: Max = 64,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the messages that carry a key, oldest first."""
    from orbitmq.client import admin
    from orbitmq.client.cluster import wall_clock_ms

    now_ms = wall_clock_ms()
    begin_ms = parse_time(since, now_ms) if since else 0
    end_ms = admin.FOREVER_MS if until == "now" else parse_time(until, now_ms)
    found = with_cluster(
        namesrv,
        timeout,
        lambda cluster: admin.messages_by_key(
            cluster, topic, value, begin_ms=begin_ms, end_ms=end_ms, max_num=max_num
        ),
    )
    if not found:
        raise CommandError(
            f"no message of topic '{topic}' has the key '{value}'",
            hint="keys are compared exactly; a message is found a moment after it was stored",
            exit_code=ExitCode.NOT_FOUND,
        )
    _show_list(found, as_json)


@app.command()
def at(
    topic: Topic,
    queue_id: Annotated[int, typer.Argument(metavar="QUEUE", min=0, help="Number of the queue.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Offset in the queue.")],
    broker: BrokerName = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the message at one place of a queue."""
    from orbitmq.cli.message_view import as_document, print_message
    from orbitmq.client import admin

    found = with_cluster(
        namesrv,
        timeout,
        lambda cluster: admin.message_at_offset(cluster, topic, queue_id, offset, broker=broker),
    )
    show(as_json, as_document(found), lambda: print_message(found))


@app.command("list")
def list_(
    topic: Topic,
    since: From = "1h",
    until: To = "now",
    max_num: Max = 100,
    tag: Annotated[str, typer.Option("--tag", metavar="EXPR", help="Only these tags, 'A || B'.")] = "*",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the messages stored in a span of time, oldest first (one JSON object per line)."""
    from orbitmq.client import admin
    from orbitmq.client.cluster import Cluster, wall_clock_ms

    now_ms = wall_clock_ms()
    begin_ms, end_ms = parse_time(since or "1h", now_ms), parse_time(until, now_ms)

    async def ask(cluster: Cluster) -> list[Message]:
        found: list[Message] = []
        async with aclosing(admin.messages_by_time(cluster, topic, begin_ms, end_ms, tags=tag)) as stream:
            async for message in stream:
                found.append(message)
                if len(found) == max_num:
                    break
        return found

    _show_list(with_cluster(namesrv, timeout, ask), as_json)


@app.command()
def half(
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only of this producer group.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only those meant for this topic.")
    ] = None,
    max_num: Max = 100,
    broker: BrokerName = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the transactional messages whose producers have not said yet how they end, oldest first."""
    from orbitmq.client.admin.half import half_messages

    found = with_cluster(
        namesrv,
        timeout,
        lambda cluster: half_messages(cluster, group=group, topic=topic, max_num=max_num, broker=broker),
    )

    def render() -> None:
        print_table(
            ["BORN", "TOPIC", "PRODUCER GROUP", "ONLINE", "ASKED", "MESSAGE ID", "OFFSET ID"],
            [
                (
                    time_text(item.born_ms),
                    item.topic,
                    item.producer_group,
                    item.producers_online,
                    f"{item.checks} of {item.max_checks}",
                    item.msg_id,
                    item.offset_msg_id,
                )
                for item in found.messages
            ],
            right=("ONLINE",),
            empty="no transaction is open" if found.open == 0 else "no open transaction matches",
        )
        for missing in found.missing:
            note(f"no answer from {missing.broker}: {missing.reason}")
        if len(found.messages) == max_num and (found.open or 0) > max_num:
            note(f"only the first {max_num} are shown; pass --max for more")

    show(as_json, found, render)


def _show_list(found: list[Message], as_json: bool) -> None:
    from orbitmq.cli.message_view import as_document

    if as_json:
        for message in found:
            print_json(as_document(message))
        return
    print_table(
        ["STORED", "QUEUE", "OFFSET", "TAG", "KEYS", "MESSAGE ID"],
        [
            (
                time_text(message.store_ms),
                message.queue_id,
                message.queue_offset,
                message.tags or "",
                " ".join(message.key_list),
                message.msg_id,
            )
            for message in found
        ],
        right=("QUEUE", "OFFSET"),
        empty="no message was stored in that time",
    )
