"""A broker that joins a cluster gets the topics and groups the others have, so that it takes its share of the load.

Groups come first, topics after them: when producers find the new queues, consumers are allowed to read them. Topics and
groups that the broker has already stay as they are. An ordered topic is left out unless asked for: one more broker
sends its keys to other queues, and then the order of a key is only kept by a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from orbitmq.client.admin.permission import find_group
from orbitmq.client.admin.targets import ask_each, body_object
from orbitmq.client.admin.topics import topic_kind
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError
from orbitmq.client.routes import ClusterMap
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.topics import DEFAULT_TOPIC, ORDER_TOPIC_NAMESPACE, is_system_group

AT_ONCE: Final = 200
SHOWN_WAIT_S: Final = 5.0
SHOWN_POLL_S: Final = 0.05

Table = dict[str, dict[str, Any]]


class Expansion(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker lacks. `topics` and `groups` are settings by name, as the other masters have them."""

    broker: str
    addr: str
    topics: dict[str, dict[str, Any]]
    groups: dict[str, dict[str, Any]]
    left_out: list[str]
    """Ordered topics that were not asked for."""


async def plan_expansion(cluster: Cluster, broker: str, *, ordered: bool = False) -> Expansion:
    """Looks only."""
    target = await find_group(cluster, broker)
    if target.master is None:
        raise NotFound(f"broker '{target.name}' has no master", hint="wait until it registers")
    known = await cluster.cluster_map()
    others = {
        other.name: other.master
        for other in known.of_cluster(target.cluster)
        if other.master and other.name != target.name
    }
    if not others:
        raise BadRequest(
            f"'{target.name}' is the only broker of cluster '{target.cluster}'",
            hint="there is nobody to copy topics from; check brokerClusterName",
        )
    # A broker that does not answer may have topics that nobody else has: better to say so than to copy a part.
    theirs, missing, errors = await ask_each(others, lambda _, addr: _tables(cluster, addr))
    if missing:
        raise OrbitMQError(
            f"no answer from {', '.join(item.broker for item in missing)}: {errors[0]}",
            hint="nothing was changed; run the same command again when it is back",
        )
    own_topics, own_groups = await _tables(cluster, target.master)
    topics = missing_topics([tables[0] for _, tables in sorted(theirs.items())], own_topics, known)
    left_out = sorted(name for name, config in topics.items() if config.get("order") and not ordered)
    groups: Table = {}
    for _, tables in sorted(theirs.items()):
        for name, config in tables[1].items():
            if name not in own_groups and not is_system_group(name):
                groups.setdefault(name, config)
    return Expansion(
        broker=target.name,
        addr=target.master,
        topics={name: config for name, config in topics.items() if name not in left_out},
        groups=groups,
        left_out=left_out,
    )


def missing_topics(theirs: list[Table], own: Table, known: ClusterMap) -> Table:
    """What others have and this one lacks. Where they differ, the one with the most queues is the pattern."""
    found: Table = {}
    for table in theirs:
        for name, config in table.items():
            if name in own or topic_kind(name, known) != "normal":
                continue
            if name not in found or _queues(config) > _queues(found[name]):
                found[name] = config
    return dict(sorted(found.items()))


async def apply_expansion(
    cluster: Cluster, plan: Expansion, on_progress: Callable[[int], None] = lambda left: None
) -> None:
    """Makes what is missing; doing it again does no harm. `on_progress` hears how much is left."""
    left = len(plan.groups) + len(plan.topics)
    for groups in _chunks(plan.groups):
        await _put(
            cluster,
            plan.addr,
            request(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=_list("groupConfigList", groups)
            ),
            [
                request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=fastjson.dumps(config))
                for config in groups.values()
            ],
        )
        left -= len(groups)
        on_progress(left)
    for topics in _chunks(plan.topics):
        await _put(
            cluster,
            plan.addr,
            request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=_list("topicConfigList", topics)),
            [_put_topic(name, config) for name, config in topics.items()],
        )
        for name, config in topics.items():
            if config.get("order"):
                await _add_to_order(cluster, name, plan.broker, int(config["writeQueueNums"]))
        left -= len(topics)
        on_progress(left)
    if plan.topics:
        await _until_shown(cluster, list(plan.topics)[-1], plan.broker)


async def _tables(cluster: Cluster, addr: str) -> tuple[Table, Table]:
    """All topics and all groups of a broker."""
    topics = await cluster.request(addr, request(RequestCode.GET_ALL_TOPIC_CONFIG))
    groups = await cluster.request(addr, request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    return (
        dict(body_object(topics.body, "the topic table").get("topicConfigTable") or {}),
        dict(body_object(groups.body, "the group table").get("subscriptionGroupTable") or {}),
    )


def _queues(config: dict[str, Any]) -> int:
    return max(int(config.get("readQueueNums", 0)), int(config.get("writeQueueNums", 0)))


def _chunks(table: Table) -> list[Table]:
    items = list(table.items())
    return [dict(items[start : start + AT_ONCE]) for start in range(0, len(items), AT_ONCE)]


def _list(name: str, table: Table) -> bytes:
    return fastjson.dumps({name: list(table.values())})


async def _put(cluster: Cluster, addr: str, together: Command, one_by_one: list[Command]) -> None:
    """At once where the broker knows the request for lists, which those of 4.9 do not."""
    answer = await cluster.request(
        addr, together, accept=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED), timeout_s=30.0
    )
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        for each in one_by_one:
            await cluster.request(addr, each)


def _put_topic(name: str, config: dict[str, Any]) -> Command:
    fields = {
        "topic": name,
        "defaultTopic": DEFAULT_TOPIC,
        "readQueueNums": str(config["readQueueNums"]),
        "writeQueueNums": str(config["writeQueueNums"]),
        "perm": str(config["perm"]),
        "topicFilterType": str(config.get("topicFilterType") or "SINGLE_TAG"),
        "topicSysFlag": str(config.get("topicSysFlag") or 0),
        "order": "true" if config.get("order") else "false",
    }
    return request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


async def _add_to_order(cluster: Cluster, topic: str, broker: str, queues: int) -> None:
    """An ordered topic also has its brokers at the name servers, where producers look them up."""
    key = {"namespace": ORDER_TOPIC_NAMESPACE, "key": topic}
    answer = await cluster.ask_namesrv(
        request(RequestCode.GET_KV_CONFIG, dict(key)),
        accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
    )
    parts = dict(part.split(":", 1) for part in (answer.ext.get("value") or "").split(";") if ":" in part)
    if parts and broker not in parts:
        value = ";".join(f"{name}:{count}" for name, count in sorted({**parts, broker: str(queues)}.items()))
        await cluster.tell_namesrvs(lambda: request(RequestCode.PUT_KV_CONFIG, {**key, "value": value}))


async def _until_shown(cluster: Cluster, topic: str, broker: str) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(SHOWN_WAIT_S):
            while True:
                route = await cluster.find_route(topic, refresh=True)
                if route is not None and any(queues.broker == broker for queues in route.queues):
                    return
                await asyncio.sleep(SHOWN_POLL_S)
