"""Handing a reply to the client that waits for it. The requests themselves are messages like any other."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

from orbitmq.broker.room import Room
from orbitmq.broker.send import SendHandler, parse_send
from orbitmq.net.connection import Connection
from orbitmq.net.errors import RemotingError, RequestError
from orbitmq.net.service import Handler
from orbitmq.store.durability import Durable
from orbitmq.store.inner_message import InnerMessage, PutResult
from orbitmq.wire.codes import RequestCode, ResponseCode, SysFlag
from orbitmq.wire.command import Command, request
from orbitmq.wire.headers import PushReplyHeader, SendHeader, to_ext
from orbitmq.wire.message_id import offset_msg_id
from orbitmq.wire.properties import (
    MAX_PROPERTIES_BYTES,
    Prop,
    append_properties,
    decode_properties,
    encode_properties,
)

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

log = logging.getLogger("orbitmq.broker")

PUSH_TIMEOUT_S: Final = 10.0
NOT_STORED_ID: Final = "0"


class Replies(Room):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # Replies are checked like any message; how plain messages are stored does not concern them.
        self._sends = SendHandler(broker, broker.random)

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.SEND_REPLY_MESSAGE: self.reply, RequestCode.SEND_REPLY_MESSAGE_V2: self.reply}

    async def reply(self, conn: Connection, command: Command) -> Command | None:
        header = parse_send(command)
        topic = self._sends.check_request(command, header, len(command.body))
        header.queue_id = self._sends.pick_queue(topic, header.queue_id)
        # The push does not need the store: a reply reaches its requester also while the disk is full.
        problem = await self._push(conn, command, header)
        stored = None
        if self._broker.config.store_reply_message_enable:
            stored = self._store(conn, command, header)
        if command.is_oneway:
            return None
        if problem:
            raise RequestError(ResponseCode.SYSTEM_ERROR, problem)
        if stored is not None:
            await self._flushed(stored)
        host = self._broker.store.settings.store_host
        return command.reply(
            ext={
                "MSG_REGION": self._broker.config.region_id,
                "TRACE_ON": "true" if self._broker.config.trace_on else "false",
                "msgId": NOT_STORED_ID if stored is None else offset_msg_id(host, stored.position),
                "queueId": str(header.queue_id),
                "queueOffset": "0" if stored is None else str(stored.queue_offset),
            }
        )

    async def _flushed(self, stored: PutResult) -> None:
        """An answer that names the stored reply waits until the reply can be read there."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(outcome: Durable) -> None:
            if not done.done():
                done.set_result(None)

        self._broker.store.when_durable(stored.position + stored.size, finish)
        await done

    async def _push(self, conn: Connection, command: Command, header: SendHeader) -> str:
        """Hands the reply to the client that asked; why that was not possible, or nothing."""
        text = (header.properties or "").encode("utf-8", "replace")
        client_id = decode_properties(text).get(Prop.REPLY_TO_CLIENT)
        if client_id is None:
            return "reply message properties[REPLY_TO_CLIENT] is null: nobody asked for it"
        client = self._broker.clients.find_producer(client_id)
        if client is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = self._broker.clock()
        pushed = PushReplyHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=conn.peer,
            store_host=self._broker.address,
            store_timestamp=now_ms,
            properties=append_properties(
                text, encode_properties({Prop.PUSH_REPLY_TIME: str(now_ms)})
            ).decode(),
            reconsume_times=header.reconsume_times or 0,
            unit_mode=bool(header.unit_mode),
        )
        push = request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, to_ext(pushed), command.body)
        try:
            # Channels in the table are the connections the heartbeats came on.
            answer = await cast(Connection, client.conn).request(push, PUSH_TIMEOUT_S)
        except RemotingError as error:
            return f"push reply message to {client_id} fail: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail: it answered {answer.code} ({answer.remark})"
        return ""

    def _store(self, conn: Connection, command: Command, header: SendHeader) -> PutResult | None:
        """Keeps the reply for whoever looks later. It has reached its requester or not: failing here
        changes nothing.
        """
        broker = self._broker
        text = (header.properties or "").encode("utf-8", "replace")
        room_bytes = broker.config.mapped_file_size_commit_log - 256
        refusal = broker.store.refusal
        if len(text) > MAX_PROPERTIES_BYTES or len(command.body) + len(text) > room_bytes:
            refusal = "its body or its properties are too long"
        if refusal:
            log.warning("a reply to %s is not stored: %s", header.topic, refusal)
            return None
        message = InnerMessage(
            header.topic,
            header.queue_id,
            command.body,
            text,
            sys_flag=header.sys_flag & ~(SysFlag.BORN_V6 | SysFlag.STORE_V6),
            flag=header.flag,
            born_ms=header.born_timestamp,
            born_host=conn.peer_bytes,
            reconsume_times=header.reconsume_times or 0,
        ).index_properties()
        try:
            stored = broker.store.put(message)
        except OSError as error:
            log.warning("a reply to %s is not stored: %s", header.topic, error)
            return None
        broker.stats.put(header.topic, 1, len(command.body))
        return stored
