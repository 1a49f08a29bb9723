"""Topics: list, create, change, delete, and what their queues hold."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import msgspec

from orbitmq.client.admin.targets import (
    Missing,
    answered,
    ask_each,
    body_object,
    change_each,
    masters_of,
    queue_table,
)
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound
from orbitmq.client.routes import ClusterMap, TopicRoute
from orbitmq.wire.codes import Perm, RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.topics import (
    DEAD_PREFIX,
    DEFAULT_TOPIC,
    ORDER_TOPIC_NAMESPACE,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    is_system_topic,
    validate_topic,
)

DEFAULT_QUEUES: Final = 8
DEFAULT_PERM: Final = Perm.READ | Perm.WRITE
ROUTE_WAIT_S: Final = 2.0
ROUTE_POLL_S: Final = 0.02


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What one queue holds. `last_update_ms` is None for a queue that never got a message."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: int
    last_update_ms: int | None


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of a topic. `messages` is None when some broker did not answer."""

    topic: str
    messages: int | None
    queues: list[QueueStatus]
    missing: list[Missing]


def topic_kind(name: str, known: ClusterMap) -> str:
    """normal, retry, dead or system; brokers also keep a topic named after themselves and their cluster."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DEAD_PREFIX):
        return "dead"
    own_name = name.removesuffix(REPLY_TOPIC_SUFFIX)
    if is_system_topic(name) or own_name in known.clusters or name in known.brokers:
        return "system"
    return "normal"


async def list_topics(cluster: Cluster, *, all_kinds: bool = False) -> list[TopicSummary]:
    """The topics known to the name server, by name; without the internal ones unless asked for."""
    response = await cluster.ask_namesrv(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    names = body_object(response.body, "the topic list").get("topicList") or []
    known = await cluster.cluster_map()
    found = [TopicSummary(name=str(name), kind=topic_kind(str(name), known)) for name in sorted(names)]
    return found if all_kinds else [topic for topic in found if topic.kind == "normal"]


async def create_topic(
    cluster: Cluster,
    name: str,
    *,
    read_queues: int = DEFAULT_QUEUES,
    write_queues: int = DEFAULT_QUEUES,
    perm: int = DEFAULT_PERM,
    order: bool = False,
    cluster_name: str | None = None,
    broker: str | None = None,
) -> dict[str, str]:
    """Creates (or overwrites) a topic on one broker, one cluster or every master; who took it."""
    if reason := validate_topic(name):
        raise BadRequest(reason, hint="use letters, digits, _ - % |, at most 127 of them")
    _check_queues(read_queues, write_queues)
    _check_perm(perm)
    targets = await masters_of(cluster, cluster_name=cluster_name, broker=broker)

    async def put(_: str, addr: str) -> None:
        await _put_topic(cluster, addr, name, read_queues, write_queues, perm, order=order)

    await change_each(targets, put)
    if order:
        value = ";".join(f"{target}:{write_queues}" for target in sorted(targets))
        fields = {"namespace": ORDER_TOPIC_NAMESPACE, "key": name, "value": value}
        await cluster.tell_namesrvs(lambda: request(RequestCode.PUT_KV_CONFIG, fields))
    await _until_registered(cluster, name, dict.fromkeys(targets, (read_queues, write_queues)))
    return targets


async def update_topic(
    cluster: Cluster,
    name: str,
    *,
    perm: int | None = None,
    read_queues: int | None = None,
    write_queues: int | None = None,
    broker: str | None = None,
) -> dict[str, str]:
    """Changes permission or queue numbers where the topic exists, and leaves everything else as it is."""
    if perm is not None:
        _check_perm(perm)
    route = await cluster.route(name, refresh=True)
    targets = route.masters()
    if broker is not None:
        targets = {key: addr for key, addr in targets.items() if broker in (key, addr)}
    if not targets:
        where = f" on broker '{broker}'" if broker else ""
        raise NotFound(
            f"topic '{name}' is not served by a master{where}", hint=f"see `orbitmq topic route {name}`"
        )

    wanted: dict[str, tuple[int, int]] = {}

    async def put(target: str, addr: str) -> None:
        config = await topic_config(cluster, addr, name)
        reads = int(config["readQueueNums"]) if read_queues is None else read_queues
        writes = int(config["writeQueueNums"]) if write_queues is None else write_queues
        _check_queues(reads, writes)
        await _put_topic(
            cluster,
            addr,
            name,
            reads,
            writes,
            int(config["perm"]) if perm is None else perm,
            order=bool(config.get("order")),
            filter_type=str(config.get("topicFilterType") or "SINGLE_TAG"),
            sys_flag=int(config.get("topicSysFlag") or 0),
        )
        wanted[target] = (reads, writes)

    await change_each(targets, put)
    await _until_registered(cluster, name, wanted, perm)
    return targets


async def delete_topic(cluster: Cluster, name: str) -> dict[str, str]:
    """Deletes a topic from its brokers and from every name server; the brokers that had it."""
    route = await cluster.route(name, refresh=True)
    targets = route.masters()

    async def drop(_: str, addr: str) -> None:
        await cluster.request(addr, request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}))

    await change_each(targets, drop)
    await cluster.tell_namesrvs(lambda: request(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": name}))
    cluster.routes.forget(name)
    return targets


async def topic_status(cluster: Cluster, name: str) -> TopicStatus:
    """Minimum and maximum offset of every queue, and when it was last written."""
    route = await cluster.route(name, refresh=True)

    async def ask(_: str, addr: str) -> list[QueueStatus]:
        response = await cluster.request(addr, request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": name}))
        table = queue_table(body_object(response.body, "the topic's status"), "offsetTable")
        return [_queue_status(queue, entry) for queue, entry in table.items()]

    answers, missing, errors = await ask_each(route.masters(), ask)
    answered(answers, errors)
    queues = sorted(
        (queue for found in answers.values() for queue in found),
        key=lambda queue: (queue.broker, queue.queue_id),
    )
    messages = None if missing else sum(queue.messages for queue in queues)
    return TopicStatus(topic=name, messages=messages, queues=queues, missing=missing)


async def topic_groups(cluster: Cluster, name: str) -> list[str]:
    """The groups that consume a topic or have an offset in it."""
    route = await cluster.route(name)

    async def ask(_: str, addr: str) -> list[str]:
        response = await cluster.request(
            addr, request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": name})
        )
        return [str(group) for group in body_object(response.body, "the group list").get("groupList") or []]

    answers, _, errors = await ask_each(route.masters(), ask)
    answered(answers, errors)
    return sorted({group for found in answers.values() for group in found})


def _queue_status(queue: MessageQueue, entry: dict[str, Any]) -> QueueStatus:
    low, high = int(entry["minOffset"]), int(entry["maxOffset"])
    last_ms = int(entry.get("lastUpdateTimestamp") or 0)
    return QueueStatus(
        broker=queue.broker_name,
        queue_id=queue.queue_id,
        min_offset=low,
        max_offset=high,
        messages=max(0, high - low),
        last_update_ms=last_ms if last_ms > 0 else None,
    )


async def _put_topic(
    cluster: Cluster,
    addr: str,
    name: str,
    read_queues: int,
    write_queues: int,
    perm: int,
    *,
    order: bool,
    filter_type: str = "SINGLE_TAG",
    sys_flag: int = 0,
) -> None:
    fields = {
        "topic": name,
        "defaultTopic": DEFAULT_TOPIC,
        "readQueueNums": str(read_queues),
        "writeQueueNums": str(write_queues),
        "perm": str(perm),
        "topicFilterType": filter_type,
        "topicSysFlag": str(sys_flag),
        "order": "true" if order else "false",
    }
    await cluster.request(addr, request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))


async def _until_registered(
    cluster: Cluster, name: str, wanted: dict[str, tuple[int, int]], perm: int | None = None
) -> None:
    """Waits until the route shows a change, so that the next command can rely on it.

    Brokers register without being waited for. A change that stays invisible (a broker that cannot reach this
    name server, or withholds a permission) is not an error: the brokers have taken it.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(ROUTE_WAIT_S):
            while True:
                route = await cluster.find_route(name, refresh=True)
                if route and all(_shows(route, target, counts, perm) for target, counts in wanted.items()):
                    return
                await asyncio.sleep(ROUTE_POLL_S)


def _shows(route: TopicRoute, target: str, counts: tuple[int, int], perm: int | None) -> bool:
    place = route.broker(target)
    return place is not None and any(
        data.broker == place.name
        and (data.read_queues, data.write_queues) == counts
        and perm in (None, data.perm)
        for data in route.queues
    )


async def topic_config(cluster: Cluster, addr: str, name: str) -> dict[str, Any]:
    """One topic's settings out of the broker's whole table, the only form that a 4.9 broker offers."""
    response = await cluster.request(addr, request(RequestCode.GET_ALL_TOPIC_CONFIG))
    table = body_object(response.body, "the topic table").get("topicConfigTable") or {}
    config = table.get(name)
    if not isinstance(config, dict):
        raise NotFound(
            f"broker {addr} has no topic '{name}' although the name server says so",
            hint="wait for the broker's next registration (30 s) and try again",
            code=ResponseCode.TOPIC_NOT_EXIST,
        )
    return config


def _check_queues(read_queues: int, write_queues: int) -> None:
    if read_queues < 0 or write_queues < 0 or max(read_queues, write_queues) == 0:
        raise BadRequest(
            f"{read_queues} read and {write_queues} write queues make no topic", hint="use at least one queue"
        )


def _check_perm(perm: int) -> None:
    if perm not in (Perm.WRITE, Perm.READ, Perm.READ | Perm.WRITE):
        raise BadRequest(f"{perm} is no permission", hint="2 writes only, 4 reads only, 6 both")
