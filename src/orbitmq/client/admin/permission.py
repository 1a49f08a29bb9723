"""Whether a broker takes messages: its own permission, and what the name servers tell producers about it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from orbitmq.client.admin.brokers import broker_config, update_broker_config
from orbitmq.client.admin.targets import ask_each, body_object
from orbitmq.client.admin.topics import topic_kind
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound, OrbitMQError, Unreachable
from orbitmq.client.routes import BrokerData, ClusterMap, parse_route
from orbitmq.wire.codes import Perm, RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.errors import WireError

KEY: Final = "brokerPermission"
SHOWN_WAIT_S: Final = 5.0
SHOWN_POLL_S: Final = 0.05


async def find_group(cluster: Cluster, broker: str) -> BrokerData:
    """The broker group with this name, or with a member at this address."""
    known = (await cluster.cluster_map()).brokers
    found = known.get(broker) or next((b for b in known.values() if broker in b.addrs.values()), None)
    if found is None:
        names = ", ".join(sorted(known)) or "none"
        raise NotFound(f"no broker is called '{broker}'", hint=f"registered brokers: {names}")
    return found


async def find_master(cluster: Cluster, name: str) -> str:
    group = await find_group(cluster, name)
    if group.master is None:
        raise OrbitMQError(
            f"broker '{name}' has no master now",
            hint="nothing is lost; run the same command again when it has one",
            retryable=True,
        )
    return group.master


async def permission_of(cluster: Cluster, addr: str) -> int:
    text = (await broker_config(cluster, addr)).get(KEY, "")
    if not text.isdigit():
        raise OrbitMQError(f"{addr} does not tell its {KEY}", hint="check that the address is a broker")
    return int(text)


async def set_permission(cluster: Cluster, addr: str, perm: int) -> None:
    """The broker refuses what it may not do from now on, and registers its topics with what is left."""
    await update_broker_config(cluster, addr, {KEY: str(perm)})


async def leave_routes(cluster: Cluster, name: str) -> list[str]:
    """Name servers stop sending producers to a broker; those that took it. One that is down sends nobody anywhere."""
    return await tell_living_namesrvs(
        cluster, request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": name})
    )


async def open_for_writes(cluster: Cluster, group: BrokerData, perm: int = Perm.READ | Perm.WRITE) -> None:
    """Every member has this permission, and the name servers have the topics as the master has them."""
    for broker_id, addr in group.addrs.items():
        now = await permission_of(cluster, addr)
        if now == perm and broker_id == 0:
            # Only a change makes a broker register everything anew, and that is what mends the name servers: their own
            # request for it (ADD_WRITE_PERM_OF_BROKER) would open topics that are closed on purpose.
            await set_permission(cluster, addr, perm ^ Perm.INHERIT)
        if now != perm or broker_id == 0:
            await set_permission(cluster, addr, perm)
    if group.master is not None:
        await _until_shown(cluster, group.name, group.master, bool(perm & Perm.WRITE))


async def only_homes(cluster: Cluster, name: str) -> list[str]:
    """Topics that no broker but this one takes messages for."""
    known = await cluster.cluster_map()
    masters = {broker.name: broker.master for broker in known.brokers.values() if broker.master}
    tables, _, _ = await ask_each(masters, lambda _, addr: _writable_topics(cluster, addr, known))
    if name not in tables:
        raise Unreachable(f"broker '{name}' does not tell its topics", hint="check that it runs")
    elsewhere = {topic for other, topics in tables.items() if other != name for topic in topics}
    return sorted(tables[name] - elsewhere)


async def tell_living_namesrvs(cluster: Cluster, command: Command) -> list[str]:
    told, problems = [], []
    for addr in cluster.namesrv_addrs:
        try:
            await cluster.request(addr, command)
        except Unreachable as error:
            problems.append(error)
            continue
        told.append(addr)
    if not told:
        raise problems[0]
    return told


async def _writable_topics(cluster: Cluster, addr: str, known: ClusterMap) -> set[str]:
    """Without those of the system; none if the broker takes no messages at all."""
    if not await permission_of(cluster, addr) & Perm.WRITE:
        return set()
    return {name for name in await _topics_to_write(cluster, addr) if topic_kind(name, known) == "normal"}


async def _topics_to_write(cluster: Cluster, addr: str) -> set[str]:
    """Topics whose own settings let producers in."""
    response = await cluster.request(addr, request(RequestCode.GET_ALL_TOPIC_CONFIG))
    table = body_object(response.body, "the topic table").get("topicConfigTable") or {}
    return {
        str(name)
        for name, config in table.items()
        if int(config.get("perm", 0)) & Perm.WRITE and int(config.get("writeQueueNums", 0)) > 0
    }


async def _until_shown(cluster: Cluster, name: str, master: str, writable: bool) -> None:
    """Waits until the name servers show it, so that the next command can rely on it. Too late is no error."""
    topics = await _topics_to_write(cluster, master)
    if not topics:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(SHOWN_WAIT_S):
            for addr in cluster.namesrv_addrs:
                while not await _shows(cluster, addr, min(topics), name, writable):
                    await asyncio.sleep(SHOWN_POLL_S)


async def _shows(cluster: Cluster, namesrv: str, topic: str, name: str, writable: bool) -> bool:
    fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
    try:
        answer = await cluster.ask(namesrv, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields))
        if answer.code != ResponseCode.SUCCESS:
            return False
        route = parse_route(topic, answer.body)
    except Unreachable:
        return True  # a name server that is down shows nothing to anybody
    except WireError:
        return False
    return any(queues.broker == name and queues.writable == writable for queues in route.queues)
