"""Requests that wait for another client's reply, over topics: the reply comes back through the broker.

The requester is found by its client id on the broker the request went through, so that broker must have heard of it
before; a reply nobody waits for any more is refused, and the replier is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orbitmq.client.core.retry_rules import SendKind
from orbitmq.client.errors import BadRequest, OrbitMQError, Unreachable, from_remoting, from_response
from orbitmq.client.fast_send import FrameMaker
from orbitmq.client.message import Message
from orbitmq.client.outgoing import json_inside, property_text
from orbitmq.client.receipt import SEND_STATUS, Place, Receipt
from orbitmq.client.topic_desk import TopicDesk
from orbitmq.net.channel import Channel
from orbitmq.net.errors import RemotingError
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.headers import PushReplyHeader, parse
from orbitmq.wire.message import encode_record
from orbitmq.wire.properties import Prop, decode_properties
from orbitmq.wire.topics import reply_topic

if TYPE_CHECKING:
    from orbitmq.client.producer import Producer

log = logging.getLogger("orbitmq.client")


class Requests:
    """The requests of one producer that wait for replies, and the replies it gives."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._waiting: dict[str, asyncio.Future[Message]] = {}

    async def request(
        self,
        topic: str,
        body: bytes,
        tag: str | None,
        keys: str | Sequence[str] | None,
        properties: Mapping[str, str] | None,
        timeout_s: float,
    ) -> Message:
        producer = self._producer
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        desk = await producer.delivery.desk(topic, timeout_s)
        correlation = f"{producer.client.rng.getrandbits(128):032x}"
        system = {
            Prop.CORRELATION_ID: correlation,
            Prop.REPLY_TO_CLIENT: producer.client.client_id,
            Prop.TTL: str(max(1, round(timeout_s * 1000))),
        }
        text = property_text(tag, keys, properties, system=system)
        body, sys_flag = producer.packed(body)
        answer: asyncio.Future[Message] = loop.create_future()
        self._waiting[correlation] = answer
        try:
            async with asyncio.timeout_at(deadline):
                await self._introduce(desk)
                await producer.delivery.deliver(
                    FrameMaker.single,
                    desk,
                    None,
                    SendKind.AWAITED,
                    producer.client.ids.next_id(),
                    json_inside(text),
                    sys_flag,
                    body,
                    max(deadline - loop.time(), 0.001),
                )
                return await answer
        except TimeoutError:
            raise Unreachable(
                f"no reply to a request to '{topic}' within {timeout_s:g} s",
                hint="is a consumer running that calls `reply(msg, ...)`? the request may have been handled",
                maybe_processed=True,
            ) from None
        finally:
            del self._waiting[correlation]

    async def _introduce(self, desk: TopicDesk) -> None:
        """To every broker of the topic: a retry may go through any of them."""
        presence = self._producer.client.presence
        addrs = {slot.door.addr for slot in desk.slots}
        results = await asyncio.gather(*(presence.introduce(addr) for addr in addrs), return_exceptions=True)
        for result in results:
            if isinstance(result, OrbitMQError):
                log.info("a broker was not told of this client before a request: %s", result)
            elif isinstance(result, BaseException):
                raise result

    def take(self, channel: Channel, command: Command) -> Command | None:
        """PUSH_REPLY_MESSAGE_TO_CLIENT; None when nobody here waits for it."""
        header = parse(PushReplyHeader, command.ext, command.code)
        properties = header.properties or ""
        answer = self._waiting.get(decode_properties(properties).get(Prop.CORRELATION_ID, ""))
        if answer is None or answer.done():
            return None
        record = encode_record(
            topic=header.topic,
            body=command.body,
            properties=properties.encode(),
            queue_id=header.queue_id,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_ms=header.born_timestamp,
            born_host=header.born_host.removeprefix("/"),
            store_ms=header.store_timestamp,
            store_host=header.store_host.removeprefix("/"),
            reconsume_times=header.reconsume_times or 0,
        )
        answer.set_result(Message(record, 0, "", None))
        return command.reply(ResponseCode.SUCCESS)

    async def reply(
        self,
        msg: Message,
        body: bytes,
        tag: str | None,
        keys: str | Sequence[str] | None,
        properties: Mapping[str, str] | None,
        timeout_s: float,
    ) -> Receipt:
        """Answers through the broker that brought the request, because only that one knows the requester."""
        producer = self._producer
        asked = msg.properties
        correlation, client_id = asked.get(Prop.CORRELATION_ID), asked.get(Prop.REPLY_TO_CLIENT)
        if not correlation or not client_id:
            raise BadRequest(
                f"message {msg.msg_id} of topic '{msg.topic}' is not a request",
                hint="only messages sent with producer.request(...) can be replied to",
            )
        system = {
            Prop.MSG_TYPE: "reply",
            Prop.CORRELATION_ID: correlation,
            Prop.REPLY_TO_CLIENT: client_id,
            Prop.TTL: asked.get(Prop.TTL, "3000"),
        }
        text = property_text(tag, keys, properties, system=system)
        body, sys_flag = producer.packed(body)
        topic, broker = reply_topic(asked.get(Prop.CLUSTER, "DefaultCluster")), msg.queue.broker_name
        producer.delivery.check_open()
        producer.client.start()
        cluster = producer.client.cluster
        addr = await cluster.broker_addr(broker)
        channel = await cluster.channel(addr)
        msg_id = producer.client.ids.next_id()
        opaque = channel.next_opaque()
        frame = FrameMaker(producer.group, topic, 0, broker).reply(
            opaque, producer.client.clock(), msg_id.encode(), json_inside(text), sys_flag, body
        )
        try:
            deadline = asyncio.get_running_loop().time() + timeout_s
            answer = await channel.submit(opaque, frame, deadline, timeout_s)
        except RemotingError as error:
            raise from_remoting(error) from error
        if answer.code not in SEND_STATUS:
            raise from_response(RequestCode.SEND_REPLY_MESSAGE_V2, answer.code, answer.remark, addr)
        return Receipt(answer, Place(topic, broker, 0), msg_id)
