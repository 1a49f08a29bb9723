"""Which brokers a command concerns, and asking them all at once without losing sight of those that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound, OrbitMQError, Refused
from orbitmq.wire import fastjson
from orbitmq.wire.errors import WireError
from orbitmq.wire.fastjson import MessageQueue

T = TypeVar("T")


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that did not answer a question, and why."""

    broker: str
    reason: str


async def masters_of(
    cluster: Cluster, *, cluster_name: str | None = None, broker: str | None = None
) -> dict[str, str]:
    """Broker name to master address: of one broker (by name or address), one cluster, or all."""
    if broker is not None:
        return {broker: await cluster.broker_addr(broker)}
    known = await cluster.cluster_map()
    if cluster_name is not None and cluster_name not in known.clusters:
        names = ", ".join(known.clusters) or "none"
        raise NotFound(f"no cluster is called '{cluster_name}'", hint=f"registered clusters: {names}")
    masters = {item.name: item.master for item in known.of_cluster(cluster_name) if item.master}
    if not masters:
        where = f" of cluster '{cluster_name}'" if cluster_name else ""
        raise NotFound(
            f"no master broker{where} is registered at {cluster.namesrv}",
            hint=f"start one with `orbitmq broker -n {cluster.namesrv}`, or check the name server address",
        )
    return masters


async def ask_each(
    brokers: Mapping[str, str], ask: Callable[[str, str], Awaitable[T]]
) -> tuple[dict[str, T], list[Missing], list[OrbitMQError]]:
    """Asks every broker at once; the answers by name, and those that gave none."""
    outcomes = await asyncio.gather(
        *(ask(name, addr) for name, addr in brokers.items()), return_exceptions=True
    )
    answers: dict[str, T] = {}
    missing: list[Missing] = []
    errors: list[OrbitMQError] = []
    for name, outcome in zip(brokers, outcomes, strict=True):
        if isinstance(outcome, OrbitMQError):
            missing.append(Missing(broker=name, reason=str(outcome)))
            errors.append(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            answers[name] = outcome
    return answers, missing, errors


async def change_each(brokers: Mapping[str, str], change: Callable[[str, str], Awaitable[object]]) -> None:
    """Makes a change on every broker; when some refuse, the error names those that took it all the same."""
    done, missing, errors = await ask_each(brokers, change)
    if not errors:
        return
    if not done:
        raise errors[0]
    raise Refused(
        "; ".join(f"{item.broker}: {item.reason}" for item in missing)
        + f"; the change was made on {', '.join(done)}",
        hint="mend the cause and run the same command again: it is safe to repeat",
        code=errors[0].code,
    )


def answered(answers: Mapping[str, T], errors: list[OrbitMQError]) -> None:
    """Raises the first error when no broker gave an answer: an empty result would be a false one."""
    if not answers and errors:
        raise errors[0]


def body_object(body: bytes, what: str) -> dict[str, Any]:
    """A JSON object from an answer's body; an empty body is an empty object."""
    if not body:
        return {}
    try:
        data = fastjson.loads(body)
    except WireError as error:
        raise OrbitMQError(
            f"{what} is not understood: {error}", hint="check the version of the server"
        ) from error
    if not isinstance(data, dict):
        raise OrbitMQError(f"{what} is not a JSON object", hint="check the version of the server")
    return data


def queue_table(data: Mapping[str, Any], name: str) -> dict[MessageQueue, Any]:
    """A map from queues to something, whichever form the server chose for its keys."""
    found: dict[MessageQueue, Any] = {}
    for key, value in (data.get(name) or {}).items():
        queue = fastjson.as_queue(key)
        if queue is None:
            raise OrbitMQError(
                f"{name} has the key {key!r}, which is no queue", hint="check the version of the server"
            )
        found[queue] = value
    return found
