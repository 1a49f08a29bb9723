"""`orbitmq topic …`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orbitmq.cli import resize
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
from orbitmq.cli.output import note, print_line, print_table, show, time_text

if TYPE_CHECKING:
    from orbitmq.client.admin import TopicStatus
    from orbitmq.client.routes import BrokerData, TopicRoute

app = typer.Typer(help="List, create, change, look at and delete topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
PERM_HELP = "2 writes only, 4 reads only, 6 both."


@app.command("list")
def list_(
    all_kinds: Annotated[
        bool, typer.Option("--all", "-a", help="Also retry, dead-letter and system topics.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the topics."""
    from orbitmq.client import admin

    topics = with_cluster(namesrv, timeout, lambda cluster: admin.list_topics(cluster, all_kinds=all_kinds))
    show(
        as_json,
        topics,
        lambda: print_table(
            ["TOPIC", "KIND"], [(item.name, item.kind) for item in topics], empty="there is no topic yet"
        ),
    )


@app.command()
def create(
    name: Name,
    queues: Annotated[int, typer.Option("--queues", "-q", min=1, help="Queues on each broker.")] = 8,
    read_queues: Annotated[int | None, typer.Option(min=0, help="Queues to read, if different.")] = None,
    write_queues: Annotated[int | None, typer.Option(min=0, help="Queues to write, if different.")] = None,
    perm: Annotated[int, typer.Option(help=PERM_HELP)] = 6,
    order: Annotated[bool, typer.Option("--order", help="Mark it as ordered at the name servers.")] = False,
    cluster_name: ClusterName = None,
    broker: BrokerName = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Create a topic on every master, one cluster or one broker (or overwrite its settings)."""
    from orbitmq.client import admin

    reads = queues if read_queues is None else read_queues
    writes = queues if write_queues is None else write_queues
    brokers = with_cluster(
        namesrv,
        timeout,
        lambda cluster: admin.create_topic(
            cluster,
            name,
            read_queues=reads,
            write_queues=writes,
            perm=perm,
            order=order,
            cluster_name=cluster_name,
            broker=broker,
        ),
    )
    result = {
        "topic": name,
        "brokers": sorted(brokers),
        "read_queues": reads,
        "write_queues": writes,
        "perm": perm,
    }
    show(
        as_json,
        result,
        lambda: print_line(
            f"topic {name}: {reads} read and {writes} write queues, permission {perm}, "
            f"on {', '.join(sorted(brokers))}"
        ),
    )


@app.command()
def update(
    name: Name,
    perm: Annotated[int | None, typer.Option(help=PERM_HELP)] = None,
    read_queues: Annotated[int | None, typer.Option(min=0, help="New number of queues to read.")] = None,
    write_queues: Annotated[int | None, typer.Option(min=0, help="New number of queues to write.")] = None,
    broker: BrokerName = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Change permission or queue numbers; what is not given stays as it is."""
    from orbitmq.client import admin

    if perm is None and read_queues is None and write_queues is None:
        raise typer.BadParameter("nothing to change; pass --perm, --read-queues or --write-queues")
    brokers = with_cluster(
        namesrv,
        timeout,
        lambda cluster: admin.update_topic(
            cluster, name, perm=perm, read_queues=read_queues, write_queues=write_queues, broker=broker
        ),
    )
    show(
        as_json,
        {"topic": name, "brokers": sorted(brokers)},
        lambda: print_line(f"topic {name} changed on {', '.join(sorted(brokers))}"),
    )


app.command()(resize.grow)
app.command()(resize.shrink)


@app.command()
def route(
    name: Name,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show which brokers serve a topic, at which addresses."""
    found = with_cluster(namesrv, timeout, lambda cluster: cluster.route(name, refresh=True))
    show(as_json, _route_document(found), lambda: _print_route(found))


@app.command()
def status(
    name: Name,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show what each queue of a topic holds."""
    from orbitmq.client import admin

    found = with_cluster(namesrv, timeout, lambda cluster: admin.topic_status(cluster, name))
    show(as_json, found, lambda: _print_status(found))


@app.command("show")
def show_(
    name: Name,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show a topic's queues and the groups that consume it."""
    from orbitmq.client import admin
    from orbitmq.client.cluster import Cluster

    async def ask(cluster: Cluster) -> tuple[admin.TopicStatus, list[str]]:
        return await admin.topic_status(cluster, name), await admin.topic_groups(cluster, name)

    found, groups = with_cluster(namesrv, timeout, ask)

    def render() -> None:
        _print_status(found)
        print_line(f"groups: {', '.join(groups) or 'none'}")

    show(as_json, {"status": found, "groups": groups}, render)


@app.command()
def delete(
    name: Name,
    yes: Yes = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Delete a topic from its brokers and from every name server."""
    from orbitmq.client import admin

    confirm(f"delete topic {name} with all its messages", yes, as_json)
    brokers = with_cluster(namesrv, timeout, lambda cluster: admin.delete_topic(cluster, name))
    show(
        as_json,
        {"topic": name, "brokers": sorted(brokers)},
        lambda: print_line(f"topic {name} deleted from {', '.join(sorted(brokers))}"),
    )


def _route_document(found: TopicRoute) -> dict[str, object]:
    return {
        "topic": found.topic,
        "order_conf": found.order_conf or None,
        "brokers": [
            {
                "broker": data.broker,
                "cluster": found.brokers[data.broker].cluster,
                "read_queues": data.read_queues,
                "write_queues": data.write_queues,
                "perm": data.perm,
                "addrs": {
                    str(broker_id): addr for broker_id, addr in found.brokers[data.broker].addrs.items()
                },
            }
            for data in found.located_queues()
        ],
    }


def _print_route(found: TopicRoute) -> None:
    print_table(
        ["BROKER", "CLUSTER", "READ", "WRITE", "PERM", "ADDRESSES"],
        [
            (
                data.broker,
                found.brokers[data.broker].cluster,
                data.read_queues,
                data.write_queues,
                data.perm,
                _addrs(found.brokers[data.broker]),
            )
            for data in found.located_queues()
        ],
        right=("READ", "WRITE", "PERM"),
        empty="no broker serves it now",
    )


def _addrs(broker: BrokerData) -> str:
    return ", ".join(
        f"{addr} ({'slave ' + str(broker_id) if broker_id else 'master'})"
        for broker_id, addr in broker.addrs.items()
    )


def _print_status(found: TopicStatus) -> None:
    print_table(
        ["BROKER", "QUEUE", "FIRST", "NEXT", "MESSAGES", "LAST MESSAGE"],
        [
            (
                queue.broker,
                queue.queue_id,
                queue.min_offset,
                queue.max_offset,
                queue.messages,
                time_text(queue.last_update_ms, "never"),
            )
            for queue in found.queues
        ],
        right=("QUEUE", "FIRST", "NEXT", "MESSAGES"),
    )
    for item in found.missing:
        note(f"no answer from {item.broker}: {item.reason}")
