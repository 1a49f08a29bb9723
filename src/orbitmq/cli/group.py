"""`orbitmq group …`"""

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
    Yes,
    confirm,
    with_cluster,
)
from orbitmq.cli.output import note, print_line, print_red, print_table, show, time_text
from orbitmq.cli.times import TIME_HELP
from orbitmq.wire.topics import RETRY_PREFIX

if TYPE_CHECKING:
    from orbitmq.client.admin import GroupConnections, GroupProgress, ResetPlan
    from orbitmq.client.admin.members import GroupMembers

app = typer.Typer(
    help="List, create and delete consumer groups; see members and lag; move offsets.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]


@app.command("list")
def list_(
    all_kinds: Annotated[bool, typer.Option("--all", "-a", help="Also the system's own groups.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the groups."""
    from orbitmq.client import admin

    groups = with_cluster(namesrv, timeout, lambda cluster: admin.list_groups(cluster, all_kinds=all_kinds))
    show(
        as_json,
        groups,
        lambda: print_table(
            ["GROUP", "KIND", "CONSUMES", "RETRIES", "BROKERS"],
            [
                (item.name, item.kind, item.consume_enabled, item.retry_max_times, item.brokers)
                for item in groups
            ],
            right=("RETRIES",),
            empty="there is no group yet",
        ),
    )


@app.command()
def create(
    name: Name,
    retries: Annotated[
        int, typer.Option("--retries", min=-1, help="Deliveries before the dead letters.")
    ] = 16,
    retry_queues: Annotated[
        int, typer.Option("--retry-queues", min=0, help="Queues of its retry topic.")
    ] = 1,
    consume: Annotated[bool, typer.Option("--consume/--no-consume", help="Whether it may consume.")] = True,
    broadcast: Annotated[
        bool, typer.Option("--broadcast/--no-broadcast", help="Whether it may broadcast.")
    ] = True,
    from_first: Annotated[
        bool, typer.Option("--from-first/--no-from-first", help="Whether it may start at the first message.")
    ] = True,
    cluster_name: ClusterName = None,
    broker: BrokerName = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Create a group on every master, one cluster or one broker (or overwrite its settings)."""
    from orbitmq.client import admin

    config = admin.GroupConfig(
        group_name=name,
        retry_max_times=retries,
        retry_queue_nums=retry_queues,
        consume_enable=consume,
        consume_broadcast_enable=broadcast,
        consume_from_min_enable=from_first,
    )
    brokers = with_cluster(
        namesrv,
        timeout,
        lambda cluster: admin.create_group(cluster, config, cluster_name=cluster_name, broker=broker),
    )
    show(
        as_json,
        {"group": name, "brokers": sorted(brokers), "config": config},
        lambda: print_line(f"group {name}: {retries} retries, on {', '.join(sorted(brokers))}"),
    )


@app.command("show")
def show_(
    name: Name,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a group's members, what each subscribes to, where they disagree, and the group's lag."""
    from orbitmq.client import admin
    from orbitmq.client.admin.members import group_members
    from orbitmq.client.cluster import Cluster

    async def ask(cluster: Cluster) -> tuple[GroupMembers, admin.GroupProgress]:
        return await group_members(cluster, name), await admin.group_progress(cluster, name)

    found, behind = with_cluster(namesrv, timeout, ask)

    def render() -> None:
        _print_group(found)
        _print_progress(behind)

    show(as_json, {"members": found, "progress": behind}, render)


@app.command()
def progress(
    name: Name,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show how far a group is in every queue, and its lag."""
    from orbitmq.client import admin

    found = with_cluster(namesrv, timeout, lambda cluster: admin.group_progress(cluster, name, topic=topic))
    show(as_json, found, lambda: _print_progress(found))


@app.command()
def connections(
    name: Name,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the members of a group that are connected now."""
    from orbitmq.client import admin

    found = with_cluster(namesrv, timeout, lambda cluster: admin.group_connections(cluster, name))
    show(as_json, found, lambda: _print_members(found))


@app.command()
def reset(
    name: Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to move in.")],
    to: Annotated[
        str, typer.Option("--to", metavar="PLACE", help=f"first, last, an offset, or a time: {TIME_HELP}.")
    ],
    preview: Annotated[
        bool, typer.Option("--dry-run", "--preview", help="Only show what would change.")
    ] = False,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue.")] = None,
    skip: Annotated[
        bool, typer.Option("--skip/--no-skip", help="Whether messages not read yet may be skipped.")
    ] = True,
    yes: Yes = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Move a group to a place in a topic, while its members run or when none does."""
    from orbitmq.cli.times import parse_place
    from orbitmq.client import admin
    from orbitmq.client.admin.reset import TO_FIRST_MS, TO_LAST_MS
    from orbitmq.client.cluster import wall_clock_ms

    place = parse_place(to, wall_clock_ms())
    moment = {"first": TO_FIRST_MS, "time": place.value}.get(place.kind, TO_LAST_MS)
    offset = place.value if place.kind == "offset" else None
    plan = with_cluster(
        namesrv,
        timeout,
        lambda cluster: admin.plan_reset(
            cluster, name, topic, moment, offset=offset, queue_id=queue, may_skip=skip
        ),
    )
    if preview:
        show(as_json, plan, lambda: _print_plan(plan))
        return
    if not yes and not as_json:
        _print_plan(plan)
    confirm(f"Move group {name} in topic {topic} to {to}?", yes, as_json)
    done = with_cluster(namesrv, timeout, lambda cluster: admin.apply_reset(cluster, plan))
    show(as_json, done, lambda: _print_plan(done))


@app.command()
def delete(
    name: Name,
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="Leave its offsets stored.")] = False,
    yes: Yes = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete a group with its offsets, retry topic and dead letters."""
    from orbitmq.client import admin

    confirm(f"delete group {name} with its offsets, retries and dead letters", yes, as_json)
    brokers = with_cluster(
        namesrv, timeout, lambda cluster: admin.delete_group(cluster, name, keep_offsets=keep_offsets)
    )
    show(
        as_json,
        {"group": name, "brokers": brokers, "kept_offsets": keep_offsets},
        lambda: print_line(f"group {name} deleted from {', '.join(brokers)}"),
    )


def _print_group(found: GroupMembers) -> None:
    odd = {item.client_id for item in found.disagreements or ()}
    print_table(
        ["CLIENT", "ADDRESS", "LANGUAGE", "VERSION", "JOINED", "SUBSCRIBES TO"],
        [
            (
                item.client_id,
                item.addr,
                item.language,
                str(item.version),
                time_text(item.joined_ms),
                _subscriptions(item.subscriptions),
            )
            for item in found.members
        ],
        right=("VERSION",),
        empty="no member is connected",
        red=[item.client_id in odd for item in found.members],
    )
    if found.members:
        print_line(f"the group gets: {_subscriptions(found.subscriptions)}")
        print_line(f"{found.message_model}, {found.consume_type}, {found.consume_from}")
    if found.disagreements:
        print_red("members subscribe differently and will miss messages:")
        for item in found.disagreements:
            print_red(f"  {item.text}")
    for missing in found.missing:
        note(f"no answer from {missing.broker}: {missing.reason}")


def _subscriptions(expressions: dict[str, str] | None) -> str | None:
    if expressions is None:
        return None
    own = {topic: text for topic, text in expressions.items() if not topic.startswith(RETRY_PREFIX)}
    return "; ".join(f"{topic} ({text})" for topic, text in own.items()) or "nothing"


def _print_members(found: GroupConnections) -> None:
    print_table(
        ["CLIENT", "ADDRESS", "LANGUAGE", "VERSION"],
        [(item.client_id, item.addr, item.language, str(item.version)) for item in found.connections],
        right=("VERSION",),
        empty="no member is connected",
    )
    if found.connections:
        for topic, expression in found.subscriptions.items():
            print_line(f"subscribed: {topic}  {expression}")
        print_line(f"{found.message_model}, {found.consume_type}, {found.consume_from}")
    for item in found.missing:
        note(f"no answer from {item.broker}: {item.reason}")


def _print_progress(found: GroupProgress) -> None:
    print_table(
        ["TOPIC", "BROKER", "QUEUE", "NEXT", "CONSUMED", "LAG", "LAST CONSUMED"],
        [
            (
                item.topic,
                item.broker,
                item.queue_id,
                item.broker_offset,
                item.consumer_offset,
                item.lag,
                time_text(item.last_consumed_ms, "never"),
            )
            for item in found.queues
        ],
        right=("QUEUE", "NEXT", "CONSUMED", "LAG"),
        empty="no offset is stored",
    )
    total = f"{found.lag:,}" if found.lag is not None else f"unknown ({found.lag_unknown})"
    print_line(f"lag: {total}   consumed per second: {found.consume_tps:.2f}")
    for item in found.missing:
        note(f"no answer from {item.broker}: {item.reason}")


def _print_plan(plan: ResetPlan) -> None:
    print_table(
        ["BROKER", "QUEUE", "FROM", "TO", "SKIPPED", "REPEATED"],
        [
            (
                step.broker,
                step.queue_id,
                "none" if step.from_offset is None else step.from_offset,
                step.to_offset,
                step.skipped,
                step.repeated,
            )
            for step in plan.queues
        ],
        right=("QUEUE", "FROM", "TO", "SKIPPED", "REPEATED"),
    )
    skipped = sum(step.skipped for step in plan.queues)
    repeated = sum(step.repeated for step in plan.queues)
    state = "moved" if plan.applied else "nothing is changed yet"
    print_line(
        f"{state}: {skipped:,} messages skipped, {repeated:,} repeated; "
        f"{plan.online_members} member(s) connected"
    )
