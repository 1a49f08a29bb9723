"""Stopping and restarting broker processes from afar, and waiting until they are gone or back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from orbitmq.client.admin.brokers import broker_runtime
from orbitmq.client.admin.targets import body_object
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError, Refused, Unreachable
from orbitmq.client.routes import parse_cluster_map
from orbitmq.wire import fastjson
from orbitmq.wire.codes import OrbitCode, RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.errors import WireError

POLL_S: Final = 0.1
LIMIT_S: Final = 120.0


async def stop_broker(cluster: Cluster, addr: str, *, restart: bool = False) -> str:
    """Asks a broker's process to end cleanly, or to start over in its place; the mark of the run that ends now."""
    body = fastjson.dumps({"restart": restart})
    answer = await cluster.request(
        addr,
        request(OrbitCode.STOP_BROKER, body=body),
        accept=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    )
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise Refused(
            f"the broker at {addr} cannot be stopped from afar: it is older, or not OrbitMQ",
            hint="stop it where it runs",
            code=answer.code,
        )
    return str(body_object(answer.body, "the answer to STOP_BROKER").get("bootTimestamp"))


async def until_gone(cluster: Cluster, addr: str, *, limit_s: float = LIMIT_S) -> None:
    """Until it neither answers nor is known to a name server."""

    async def gone() -> bool:
        if await run_mark(cluster, addr) is not None:
            return False
        return not any(addr in known for known in (await known_addresses(cluster)).values())

    await _until(gone, limit_s, f"the broker at {addr} has not stopped")


async def until_back(cluster: Cluster, addr: str, ended_run: str, *, limit_s: float = LIMIT_S) -> None:
    """Until a new run answers there, and every name server that answers knows it."""

    async def back() -> bool:
        mark = await run_mark(cluster, addr)
        if mark is None or mark == ended_run:
            return False
        known = await known_addresses(cluster)
        return bool(known) and all(addr in addrs for addrs in known.values())

    await _until(back, limit_s, f"the broker at {addr} has not come back")


async def run_mark(cluster: Cluster, addr: str) -> str | None:
    """What tells one run of a broker's process from the next; None when it does not answer."""
    try:
        return (await broker_runtime(cluster, addr)).get("bootTimestamp", "")
    except OrbitMQError:
        return None


async def log_end(cluster: Cluster, addr: str) -> int:
    """Where the broker's log ends: a slave has everything when its own ends there, too."""
    text = (await broker_runtime(cluster, addr)).get("commitLogMaxOffset", "")
    if not text.isdigit():
        raise OrbitMQError(f"{addr} does not tell how long its log is", hint="check that it is a broker")
    return int(text)


async def known_addresses(cluster: Cluster) -> dict[str, set[str]]:
    """By name server, the brokers it knows; without those that do not answer."""
    known: dict[str, set[str]] = {}
    for namesrv in cluster.namesrv_addrs:
        try:
            answer = await cluster.request(namesrv, request(RequestCode.GET_BROKER_CLUSTER_INFO))
            brokers = parse_cluster_map(answer.body).brokers
        except (Unreachable, WireError):
            continue
        known[namesrv] = {addr for broker in brokers.values() for addr in broker.addrs.values()}
    return known


async def _until(condition: Callable[[], Awaitable[bool]], limit_s: float, otherwise: str) -> None:
    deadline = asyncio.get_running_loop().time() + limit_s
    while not await condition():
        if asyncio.get_running_loop().time() > deadline:
            raise OrbitMQError(f"{otherwise} within {limit_s:g} s", hint="look at its log, where it runs")
        await asyncio.sleep(POLL_S)
