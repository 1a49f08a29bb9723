"""What the brokers know of consumer groups: how far they are behind now, and which messages they ask for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from orbitmq.client.admin.groups import group_brokers, group_progress, list_groups
from orbitmq.client.admin.targets import answered, ask_each, body_object
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound, OrbitMQError
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.subscription import SQL92_TYPE


class Wanted(NamedTuple):
    """What a group asks for of a topic: some tags, or what an SQL condition matches. Neither: everything."""

    group: str
    topic: str
    tags: list[str]
    sql: str | None


class Lags(NamedTuple):
    rows: list[dict[str, Any]]
    unknown: list[str]
    """Groups of which nothing is known, and why."""


async def lag_now(cluster: Cluster) -> Lags:
    """Messages between where each group is and the end of its topics. What a group filters away is passed over."""
    found: list[dict[str, Any]] = []
    unknown: list[str] = []
    for group in await list_groups(cluster):
        try:
            progress = await group_progress(cluster, group.name)
        except OrbitMQError as error:  # a broker that is away spoils no report that took hours
            unknown.append(f"{group.name}: {error}")
            continue
        lags: dict[str, int] = {}
        for queue in progress.queues:
            if queue.lag is not None:
                lags[queue.topic] = lags.get(queue.topic, 0) + queue.lag
        if not lags and progress.lag_unknown:
            unknown.append(f"{group.name}: {progress.lag_unknown}")
        found += [{"group": group.name, "topic": topic, "lag": lag} for topic, lag in sorted(lags.items())]
    return Lags(sorted(found, key=lambda row: -int(row["lag"])), unknown)


async def subscriptions(cluster: Cluster, groups: Iterable[str]) -> dict[str, list[Wanted] | str]:
    """What groups ask for that have a member connected now; of the others why it is not known."""
    found: dict[str, list[Wanted] | str] = {}
    for group in groups:
        try:
            found[group] = await _of_group(cluster, group) or "it is not connected"
        except NotFound:
            found[group] = "it is not connected"
        except OrbitMQError as error:
            found[group] = str(error)
    return found


async def _of_group(cluster: Cluster, group: str) -> list[Wanted]:
    async def ask(_: str, addr: str) -> dict[str, Any]:
        response = await cluster.request(
            addr,
            request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}),
            accept=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE),
        )
        if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return {}
        return body_object(response.body, "the connection list")

    answers, _, errors = await ask_each(await group_brokers(cluster, group), ask)
    answered(answers, errors)
    found: dict[str, Wanted] = {}
    for data in answers.values():
        for topic, item in (data.get("subscriptionTable") or {}).items():
            sql = str(item.get("subString")) if item.get("expressionType") == SQL92_TYPE else None
            found[str(topic)] = Wanted(group, str(topic), sorted(map(str, item.get("tagsSet") or ())), sql)
    return list(found.values())
