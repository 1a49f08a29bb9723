"""Sends messages: picks the queue, builds the header, and tries another broker when one fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from orbitmq.client.cluster import Cluster
from orbitmq.client.core.retry_rules import RETRIES, RetryRules, SendKind
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError, Unreachable
from orbitmq.client.identity import local_ip
from orbitmq.client.receipt import SEND_STATUS
from orbitmq.client.routes import AUTO_CREATE_QUEUES, RoundRobin, TopicRoute
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.compression import Compression, compress
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message_id import UniqIdFactory
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES, RESERVED_NAMES, Prop, encode_properties
from orbitmq.wire.topics import DEFAULT_TOPIC, is_send_forbidden, validate_group, validate_topic

COMPRESS_FROM_BYTES: Final = 4096
MAX_BODY_BYTES: Final = 4 * 1024 * 1024


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker said about a stored message."""

    status: str
    topic: str
    msg_id: str
    offset_msg_id: str
    broker: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message ready to be sent, checked, with everything but the queue decided."""

    topic: str
    body: bytes
    sys_flag: int
    flag: int
    properties: str
    msg_id: str


class Sender:
    """Sends for one producer group. Cheap to make; the connections belong to the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        group: str = "orbitmq-client",
        *,
        retries: int = RETRIES,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        ids: UniqIdFactory | None = None,
    ) -> None:
        if reason := validate_group(group):
            raise BadRequest(reason, hint="choose another producer group")
        self.cluster = cluster
        self.group = group
        self._rules = RetryRules(retries)
        self.compress_from_bytes = compress_from_bytes
        # A random part keeps two senders of one process from making the same id in the same millisecond.
        self.ids = ids or UniqIdFactory(
            local_ip(), os.getpid(), cluster.clock, process_hash=cluster.rng.getrandbits(32)
        )
        self._turns: dict[str, RoundRobin] = {}

    def prepare(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        deliver_ms: int | None = None,
        flag: int = 0,
        msg_id: str | None = None,
    ) -> Outgoing:
        """Checks a message and fixes its id, so that every retry carries the same one.

        It is delivered at once, after the delay of a level, or at `deliver_ms`, in milliseconds since 1970.
        """
        _check_topic(topic)
        if not body:
            raise BadRequest(
                "the body is empty", hint="official clients refuse empty messages; send at least one byte"
            )
        if len(body) > MAX_BODY_BYTES:
            raise BadRequest(
                f"the body has {len(body):,} bytes, allowed are {MAX_BODY_BYTES:,}",
                hint="split it or store it elsewhere",
            )
        all_properties = _user_properties(properties or {})
        if tag:
            all_properties[Prop.TAGS] = tag
        if keys:
            all_properties[Prop.KEYS] = " ".join(keys)
        if delay_level:
            all_properties[Prop.DELAY] = str(delay_level)
        if deliver_ms is not None:
            if delay_level:
                raise BadRequest(
                    "a delay level and a delivery time are given", hint="choose one: the level would win"
                )
            all_properties[Prop.TIMER_DELIVER_MS] = str(deliver_ms)
        all_properties[Prop.WAIT] = "true"
        msg_id = msg_id or self.ids.next_id()
        all_properties[Prop.UNIQ_KEY] = msg_id
        text = encode_properties(all_properties)
        if len(text) > MAX_PROPERTIES_BYTES:
            raise BadRequest(
                f"tag, keys and properties take {len(text):,} bytes, allowed are {MAX_PROPERTIES_BYTES:,}",
                hint="move data into the body",
            )
        sys_flag = 0
        if len(body) >= self.compress_from_bytes:
            packed = compress(body, Compression.ZLIB)
            if len(packed) < len(body):
                body, sys_flag = packed, Compression.ZLIB.sys_flag
        return Outgoing(topic, body, sys_flag, flag, text.decode(), msg_id)

    async def send(
        self, message: Outgoing, *, queue_id: int | None = None, broker: str | None = None
    ) -> Receipt:
        """Sends and waits for the receipt.

        Without a fixed queue another broker is tried after a failure; a queue given by the caller is kept,
        because the caller's order depends on it. All tries together take at most the cluster's timeout.
        """
        tries = 1 if queue_id is not None else self._rules.tries(SendKind.AWAITED)
        failed: list[str] = []
        last: OrbitMQError | None = None
        try:
            async with asyncio.timeout(self.cluster.timeout_s):
                for attempt in range(tries):
                    route = await self.cluster.publish_route(message.topic, refresh=attempt > 0)
                    queue = self._choose(route, message.topic, queue_id, broker, failed)
                    try:
                        return await self._send_to(route, queue, message)
                    except OrbitMQError as error:
                        last = error
                        failed.append(queue.broker_name)
                        if not self._rules.worth_another_try(SendKind.AWAITED, error):
                            break
        except TimeoutError:
            if last is None:
                raise Unreachable(
                    f"no receipt for a message to '{message.topic}' within {self.cluster.timeout_s:g} s",
                    hint="the broker may be overloaded; the message may have been stored",
                    maybe_processed=True,
                ) from None
        assert last is not None
        raise last

    async def placed(
        self,
        message: Outgoing,
        *,
        queue_id: int | None = None,
        broker: str | None = None,
        code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    ) -> tuple[str, MessageQueue, Command]:
        """The request of one try, for callers that send it themselves: the address, the queue, and the command.

        With the code of a batch the body holds the messages.
        """
        route = await self.cluster.publish_route(message.topic)
        queue = self._choose(route, message.topic, queue_id, broker, ())
        return _master(route, queue), queue, self._command(queue, message, code)

    async def send_oneway(
        self, message: Outgoing, *, queue_id: int | None = None, broker: str | None = None
    ) -> MessageQueue:
        """Sends without waiting: fast, and silent about loss."""
        addr, queue, command = await self.placed(message, queue_id=queue_id, broker=broker)
        await self.cluster.oneway(addr, command)  # which marks it
        return queue

    def _choose(
        self, route: TopicRoute, topic: str, queue_id: int | None, broker: str | None, avoid: Sequence[str]
    ) -> MessageQueue:
        queues = route.publish_queues()
        if broker is not None:
            place = route.broker(broker)
            queues = tuple(queue for queue in queues if place and queue.broker_name == place.name)
        if not queues:
            where = f" on broker '{broker}'" if broker else ""
            raise NotFound(
                f"topic '{topic}' has no writable queue{where}",
                hint=f"see `orbitmq topic route {topic}`: it needs write permission and a master",
            )
        if queue_id is None:
            turn = self._turns.get(topic)
            if turn is None:
                turn = self._turns[topic] = RoundRobin(self.cluster.rng)
            return turn.choose(queues, avoid)
        for queue in queues:
            if queue.queue_id == queue_id:
                return queue
        highest = max(queue.queue_id for queue in queues)
        raise NotFound(f"topic '{topic}' has no queue {queue_id}", hint=f"writable queues are 0 to {highest}")

    async def _send_to(self, route: TopicRoute, queue: MessageQueue, message: Outgoing) -> Receipt:
        command = self._command(queue, message)
        response = await self.cluster.request(_master(route, queue), command, accept=SEND_STATUS)
        return Receipt(
            status=SEND_STATUS[response.code],
            topic=message.topic,
            msg_id=message.msg_id,
            offset_msg_id=response.ext.get("msgId", ""),
            broker=queue.broker_name,
            queue_id=int(response.ext["queueId"]),
            queue_offset=int(response.ext["queueOffset"]),
        )

    def _command(
        self, queue: MessageQueue, message: Outgoing, code: RequestCode = RequestCode.SEND_MESSAGE_V2
    ) -> Command:
        ext = {
            "a": self.group,
            "b": message.topic,
            "c": DEFAULT_TOPIC,
            "d": str(AUTO_CREATE_QUEUES),
            "e": str(queue.queue_id),
            "f": str(message.sys_flag),
            "g": str(self.cluster.clock()),
            "h": str(message.flag),
            "i": message.properties,
            "j": "0",
            "k": "false",
            "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
            "n": queue.broker_name,
        }
        return request(code, ext, message.body)


def _master(route: TopicRoute, queue: MessageQueue) -> str:
    broker = route.brokers.get(queue.broker_name)
    if broker is None or broker.master is None:
        raise NotFound(
            f"broker '{queue.broker_name}' of topic '{queue.topic}' has no master",
            hint="wait for it to register, or send to another broker",
        )
    return broker.master


def _check_topic(topic: str) -> None:
    if reason := validate_topic(topic):
        raise BadRequest(reason, hint="rename the topic")
    if is_send_forbidden(topic):
        raise BadRequest(f"topic '{topic}' belongs to the broker", hint="send to a topic of your own")


def _user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    for name, value in properties.items():
        if name in RESERVED_NAMES:
            raise BadRequest(
                f"property '{name}' is reserved", hint="use the option made for it, or another name"
            )
        if not name or not value:
            raise BadRequest(
                f"property '{name}' has an empty name or value", hint="empty properties cannot be stored"
            )
        if any(mark in name or mark in value for mark in "\x01\x02"):
            raise BadRequest(f"property '{name}' contains a separator byte (0x01 or 0x02)", hint="remove it")
    return dict(properties)
