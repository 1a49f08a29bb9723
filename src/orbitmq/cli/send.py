"""`orbitmq send` and `orbitmq tail`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

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
from orbitmq.cli.output import CommandError, ExitCode, OutputClosed, note, print_json, print_line
from orbitmq.cli.times import TIME_HELP, Place, parse_duration, parse_pairs, parse_place, parse_time

if TYPE_CHECKING:
    from orbitmq.client.cluster import Cluster
    from orbitmq.client.errors import OrbitMQError
    from orbitmq.client.reader import Gap
    from orbitmq.client.routes import TopicRoute
    from orbitmq.client.sender import Outgoing, Receipt
    from orbitmq.wire.fastjson import MessageQueue
    from orbitmq.wire.message import Message

# Sends under way at once: enough to fill a connection, few enough that an error stops the rest early.
WINDOW: Final = 64


def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to send to.")],
    body: Annotated[
        str | None, typer.Argument(metavar="[BODY]", help="The message; '-' reads standard input.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Its tag.")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="A key; can be repeated.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property; can be repeated."),
    ] = None,
    queue: Annotated[
        int | None, typer.Option("--queue", min=0, help="This queue instead of the next in turn.")
    ] = None,
    broker: BrokerName = None,
    delay_level: Annotated[
        int,
        typer.Option("--delay-level", min=0, help="Deliver later: 1 is 1 s, 18 is 2 h by default."),
    ] = 0,
    deliver_after: Annotated[
        str | None,
        typer.Option("--deliver-after", metavar="SPAN", help="Deliver later: 90s, 15m, 2h, up to 40d."),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(
            "--deliver-at", metavar="TIME", help="Deliver at 2026-11-15T10:00 (local) or ms since 1970."
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Send it this many times.")] = 1,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help="Read the body from a file; '-' is standard input."),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of the input is a message.")] = False,
    oneway: Annotated[bool, typer.Option("--oneway", help="Do not wait for the broker's answer.")] = False,
    group: Annotated[str, typer.Option("--group", help="Name of the producer group.")] = "orbitmq-cli",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Send a message (with --count or --lines: several, one JSON object per line)."""
    bodies = _bodies(body, from_file, lines)
    user_properties = parse_pairs(properties or [], "property")
    deliver_ms = _deliver_ms(delay_level, deliver_after, deliver_at)

    async def work(cluster: Cluster) -> None:
        from orbitmq.client.sender import Sender

        sender = Sender(cluster, group)
        sent = 0
        outgoing = (
            sender.prepare(
                topic,
                one,
                tag=tag,
                keys=key or (),
                properties=user_properties,
                delay_level=delay_level,
                deliver_ms=deliver_ms,
            )
            for one in bodies
            for _ in range(count)
        )
        while window := list(islice(outgoing, WINDOW)):
            try:
                if oneway:
                    for message in window:
                        await sender.send_oneway(message, queue_id=queue, broker=broker)
                        _print_oneway(message, as_json)
                else:
                    tries = (sender.send(message, queue_id=queue, broker=broker) for message in window)
                    for receipt in await asyncio.gather(*tries):
                        _print_receipt(receipt, as_json)
            except Exception:
                if sent:
                    note(f"{sent} messages were sent before this")
                raise
            sent += len(window)

    with_cluster(namesrv, timeout, work)


def tail(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to read.")],
    start: Annotated[
        str, typer.Option("--from", metavar="PLACE", help=f"first, last, an offset, or a time: {TIME_HELP}.")
    ] = "last",
    max_num: Annotated[
        int | None, typer.Option("--max", min=1, help="Stop after this many messages.")
    ] = None,
    limit_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0,
            help="Stop after this time; exit code 1 if --max is missed.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Wait for new messages, or stop at the end.")
    ] = True,
    tag: Annotated[str, typer.Option("--tag", metavar="EXPR", help="Only these tags, 'A || B'.")] = "*",
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Print the messages of a topic as they arrive, without being a consumer (one JSON object per line)."""
    from orbitmq.client.cluster import wall_clock_ms

    place = parse_place(start, wall_clock_ms())
    seen = 0

    async def work(cluster: Cluster) -> None:
        nonlocal seen
        stream = _messages(cluster, topic, place, tag, queue, follow)
        async with asyncio.timeout(limit_s), aclosing(stream):
            async for message in stream:
                _print_message(message, as_json)
                seen += 1
                if seen == max_num:
                    return

    try:
        with_cluster(namesrv, timeout, work)
    except OutputClosed:
        return
    except TimeoutError:
        if max_num is not None:
            raise CommandError(
                f"{seen} of {max_num} messages came within {limit_s:g} s",
                hint="wait longer with --timeout, or begin earlier with --from",
            ) from None


async def _messages(
    cluster: Cluster, topic: str, place: Place, tags: str, queue_id: int | None, follow: bool
) -> AsyncGenerator[Message, None]:
    """What is there already, in order of time, and then, when following, what arrives."""
    from orbitmq.client.reader import Follower, offsets_at, read_range

    route = await cluster.route(topic)
    chosen = _chosen_queues(route, queue_id)
    now = await offsets_at(cluster, route, "last", chosen)
    if place.kind != "last":
        begin = await _begin(cluster, route, place, chosen)
        async for message in read_range(cluster, route, begin, now, tags=tags, on_gap=_note_gap):
            if place.kind != "time" or message.store_ms >= place.value:
                yield message
    if follow:
        async with Follower(
            cluster, route, now, tags=tags, on_gap=_note_gap, on_trouble=_note_trouble
        ) as arriving:
            async for message in arriving:
                yield message


async def _begin(
    cluster: Cluster, route: TopicRoute, place: Place, queues: list[MessageQueue]
) -> dict[MessageQueue, int]:
    from orbitmq.client.reader import offsets_at

    if place.kind == "offset":
        return dict.fromkeys(queues, place.value)
    return await offsets_at(cluster, route, "first" if place.kind == "first" else place.value, queues)


def _chosen_queues(route: TopicRoute, queue_id: int | None) -> list[MessageQueue]:
    queues = [queue for queue in route.read_queues() if queue_id is None or queue.queue_id == queue_id]
    if not queues:
        which = "queue" if queue_id is None else f"queue {queue_id}"
        raise CommandError(
            f"topic '{route.topic}' has no readable {which}",
            hint=f"see `orbitmq topic route {route.topic}`",
            exit_code=ExitCode.NOT_FOUND,
        )
    return queues


def _deliver_ms(delay_level: int, after: str | None, at: str | None) -> int | None:
    from orbitmq.client.cluster import wall_clock_ms

    if (delay_level > 0) + (after is not None) + (at is not None) > 1:
        raise CommandError(
            "the delivery time is given more than once",
            hint="pass one of --delay-level, --deliver-after and --deliver-at",
            exit_code=ExitCode.USAGE,
        )
    if after is not None:
        return wall_clock_ms() + parse_duration(after)
    return None if at is None else parse_time(at, wall_clock_ms())


def _bodies(body: str | None, from_file: Path | None, lines: bool) -> list[bytes]:
    if (body is None) == (from_file is None):
        raise CommandError(
            "give the message once: as BODY, as '-' for standard input, or with --from-file",
            hint="for example `orbitmq send TopicA hello`",
            exit_code=ExitCode.USAGE,
        )
    if body == "-" or str(from_file) == "-":
        data = sys.stdin.buffer.read()
    elif from_file is not None:
        try:
            data = from_file.read_bytes()
        except OSError as error:
            raise CommandError(
                f"{from_file} cannot be read: {error.strerror}",
                hint="check the path",
                exit_code=ExitCode.USAGE,
            ) from error
    else:
        data = (body or "").encode("utf-8", "surrogateescape")
    if not lines:
        return [data]
    return [line for line in data.splitlines() if line]


def _print_receipt(receipt: Receipt, as_json: bool) -> None:
    if as_json:
        print_json(receipt)
    else:
        place = f"{receipt.broker} queue {receipt.queue_id} offset {receipt.queue_offset}"
        print_line(f"{receipt.status}  {receipt.msg_id}  {place}")


def _print_oneway(message: Outgoing, as_json: bool) -> None:
    if as_json:
        print_json({"status": "SENT_ONEWAY", "topic": message.topic, "msg_id": message.msg_id})
    else:
        print_line(f"SENT_ONEWAY  {message.msg_id}")


def _print_message(message: Message, as_json: bool) -> None:
    from orbitmq.cli.message_view import as_document, one_line

    if as_json:
        print_json(as_document(message))
    else:
        print_line(one_line(message))


def _note_gap(gap: Gap) -> None:
    note(
        f"orbitmq: {gap.queue.broker_name} queue {gap.queue.queue_id}: "
        f"offset {gap.asked_offset} is not there; going on at {gap.next_offset}"
    )


def _note_trouble(error: OrbitMQError) -> None:
    note(f"orbitmq: {error}; trying again every second")
