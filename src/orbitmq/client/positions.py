"""Where to read from, as people say it: the beginning, the end, a moment, an offset, or an offset for each queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound
from orbitmq.client.reader import offsets_at
from orbitmq.client.routes import TopicRoute
from orbitmq.client.times import moment_ms
from orbitmq.wire.fastjson import MessageQueue

QueueName = MessageQueue | tuple[str, int] | int
"""A queue as (broker, id), or by its id alone: then on every broker that has it."""
Offsets = Mapping[MessageQueue, int] | Mapping[tuple[str, int], int] | Mapping[int, int]
Position = Literal["earliest", "latest"] | datetime | int | Offsets
"""`earliest`, `latest`, a moment with a time zone, an offset for all queues, or offsets by queue."""

_PLACES = {"earliest": "first", "latest": "last"}


def chosen_queues(route: TopicRoute, wanted: Sequence[QueueName] | None) -> list[MessageQueue]:
    """The readable queues of a topic, or those of them that are named."""
    readable = list(route.read_queues())
    if not readable:
        raise NotFound(
            f"topic '{route.topic}' has no readable queue",
            hint=f"see `orbitmq topic route {route.topic}`: it needs read permission",
        )
    if wanted is None:
        return readable
    found: dict[MessageQueue, None] = {}
    for name in wanted:
        found.update(dict.fromkeys(_named(readable, name, route.topic)))
    if not found:
        raise BadRequest("queues= names no queue", hint="leave it out to read all queues")
    return list(found)


async def resolve(
    cluster: Cluster, route: TopicRoute, where: Position, queues: Iterable[MessageQueue], what: str
) -> dict[MessageQueue, int]:
    """The offset of each queue; by offsets given for some queues only, the others are left out."""
    chosen = list(queues)
    if isinstance(where, str):
        place = _PLACES.get(where)
        if place is None:
            raise BadRequest(f"{what}={where!r} is no position", hint=_HINT)
        return await offsets_at(cluster, route, place, chosen)
    if isinstance(where, datetime):
        return await offsets_at(cluster, route, moment_ms(where, what), chosen)
    if isinstance(where, Mapping):
        found: dict[MessageQueue, int] = {}
        for name, offset in where.items():
            for queue in _named(chosen, name, route.topic):
                found[queue] = _offset(offset, what)
        return found
    return dict.fromkeys(chosen, _offset(where, what))


_HINT = 'use "earliest", "latest", a datetime with a time zone, an offset, or {(broker, queue_id): offset}'


def _offset(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadRequest(f"{what}: {value!r} is no offset", hint=_HINT)
    return value


def _named(queues: list[MessageQueue], name: object, topic: str) -> list[MessageQueue]:
    if isinstance(name, MessageQueue):
        found = [queue for queue in queues if queue == name]
    elif isinstance(name, int):
        found = [queue for queue in queues if queue.queue_id == name]
    elif isinstance(name, tuple) and len(name) == 2:
        found = [queue for queue in queues if (queue.broker_name, queue.queue_id) == name]
    else:
        raise BadRequest(f"{name!r} is no queue", hint="name a queue by its id or as (broker, id)")
    if not found:
        known = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in queues)
        raise NotFound(f"topic '{topic}' has no queue {name!r}", hint=f"its queues are {known}")
    return found
