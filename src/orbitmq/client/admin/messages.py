"""Finding messages: by either kind of id, by key, by place, by time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from orbitmq.client.admin.targets import ask_each
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError
from orbitmq.client.reader import offsets_at, pull, read_range
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.errors import WireError
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import Message, decode_records
from orbitmq.wire.message_id import parse_offset_msg_id

FOREVER_MS: Final = 2**63 - 1
DEFAULT_MAX: Final = 64


async def message_by_offset_id(cluster: Cluster, msg_id: str) -> Message:
    """The message at the place an offset id names; the id itself says which broker to ask."""
    try:
        ip, port, offset = parse_offset_msg_id(msg_id)
    except WireError as error:
        raise BadRequest(
            f"'{msg_id}' is not an offset id: {error}",
            hint="pass --topic to look it up as a producer's message id",
        ) from error
    addr = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
    command = request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
    response = await cluster.request(
        addr, command, accept=(ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)
    )
    found = _decoded(response.body, addr) if response.code == ResponseCode.SUCCESS else []
    if not found:
        raise NotFound(
            f"broker {addr} has no message at offset {offset} (id {msg_id})",
            hint="it may have been cleaned by age; if this is a producer's message id, pass --topic as well",
        )
    return found[0]


async def messages_by_id(cluster: Cluster, topic: str, msg_id: str) -> list[Message]:
    """The messages of a topic that carry a producer's message id (several after a retried send)."""
    found = await _query(cluster, topic, msg_id, unique=True, begin_ms=0, end_ms=FOREVER_MS, max_num=32)
    found = [message for message in found if message.msg_id == msg_id]
    if not found:
        raise NotFound(
            f"topic '{topic}' has no message with the id {msg_id}",
            hint="check the topic; an id the broker made is looked up without --topic",
        )
    return found


async def messages_by_key(
    cluster: Cluster,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = FOREVER_MS,
    max_num: int = DEFAULT_MAX,
) -> list[Message]:
    """The messages of a topic that carry a key, oldest first."""
    found = await _query(cluster, topic, key, unique=False, begin_ms=begin_ms, end_ms=end_ms, max_num=max_num)
    # The index knows hashes only, and a broker of another make may hand out a message that merely shares one.
    return [message for message in found if key in (message.keys or "").split()][-max_num:]


async def message_at_offset(
    cluster: Cluster, topic: str, queue_id: int, offset: int, *, broker: str | None = None
) -> Message:
    """The message at one place of one queue; the broker may be left out when only one serves the topic."""
    route = await cluster.route(topic, refresh=True)
    names = [data.broker for data in route.located_queues()]
    if broker is None:
        if len(names) != 1:
            raise BadRequest(
                f"topic '{topic}' lives on {len(names)} brokers",
                hint=f"pass --broker, one of {', '.join(names)}",
            )
        broker = names[0]
    place = route.broker(broker)
    if place is None or place.readable_addr is None:
        raise NotFound(f"topic '{topic}' is not on broker '{broker}'", hint=f"it is on {', '.join(names)}")
    addr, broker = place.readable_addr, place.name
    pulled = await pull(cluster, addr, MessageQueue(topic, broker, queue_id), offset, max_messages=1)
    for message in pulled.messages:
        if message.queue_offset == offset:
            return message
    raise NotFound(
        f"queue {queue_id} of '{topic}' on {broker} has no message at offset {offset}",
        hint=f"it holds offsets {pulled.min_offset} to {pulled.max_offset - 1}"
        if pulled.max_offset > pulled.min_offset
        else "the queue is empty",
    )


async def messages_by_time(
    cluster: Cluster, topic: str, begin_ms: int, end_ms: int, *, tags: str = "*"
) -> AsyncGenerator[Message, None]:
    """The messages stored between two times, both included, in order of time."""
    route = await cluster.route(topic, refresh=True)
    start = await offsets_at(cluster, route, begin_ms)
    last = await offsets_at(cluster, route, "last")
    async with aclosing(read_range(cluster, route, start, last, tags=tags)) as stream:
        async for message in stream:
            if message.store_ms > end_ms:
                return
            # Offset by time answers with the nearest message when none is late enough.
            if message.store_ms >= begin_ms:
                yield message


async def _query(
    cluster: Cluster, topic: str, key: str, *, unique: bool, begin_ms: int, end_ms: int, max_num: int
) -> list[Message]:
    route = await cluster.route(topic, refresh=True)

    async def ask(_: str, addr: str) -> list[Message]:
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(max_num),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
            "_UNIQUE_KEY_QUERY": "true" if unique else "false",
        }
        response = await cluster.request(
            addr,
            request(RequestCode.QUERY_MESSAGE, fields),
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        return _decoded(response.body, addr) if response.code == ResponseCode.SUCCESS else []

    answers, _, errors = await ask_each(route.masters(), ask)
    if errors:  # half an answer to "is it there?" would be a false no
        raise errors[0]
    found = [message for messages in answers.values() for message in messages]
    own = [message for message in found if message.topic == topic]
    return sorted(own, key=lambda message: message.store_ms)


def _decoded(body: bytes, addr: str) -> list[Message]:
    try:
        return decode_records(body)
    except WireError as error:
        raise OrbitMQError(
            f"the message sent by {addr} is damaged: {error}",
            hint="check its store with `orbitmq store verify`",
        ) from error
