"""A transactional producer that speaks the protocol to a real broker, and answers its questions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import MappingProxyType, TracebackType
from typing import Self

from orbitmq.net.channel import Channel
from orbitmq.wire import bodies
from orbitmq.wire.batch import encode_batch
from orbitmq.wire.bodies import HeartbeatData, ProducerData
from orbitmq.wire.codes import RequestCode, SysFlag
from orbitmq.wire.command import Command, request
from orbitmq.wire.message import Message, decode_record
from orbitmq.wire.properties import Prop, encode_properties
from tests.support.raw_client import send_ext

COMMIT, ROLLBACK, UNKNOWN = SysFlag.TX_COMMIT, SysFlag.TX_ROLLBACK, SysFlag.TX_NONE
Place = tuple[int, int]
_numbers = count()


class Producer:
    """`decide` is asked what became of a message; UNKNOWN leaves it open."""

    def __init__(
        self, addr: str, group: str = "tx-group", decide: Callable[[str], int] = lambda msg_id: UNKNOWN
    ) -> None:
        self.addr = addr
        self.group = group
        self.decide = decide
        self.questions: list[Message] = []
        self.asked = asyncio.Event()
        self._channel: Channel

    async def __aenter__(self) -> Self:
        self._channel = await Channel.connect(self.addr, on_request=self._question)
        beat = HeartbeatData(
            client_id=f"client-{next(_numbers)}", producer_data_set=[ProducerData(group_name=self.group)]
        )
        reply = await self._channel.request(request(RequestCode.HEART_BEAT, body=bodies.encode(beat)))
        assert reply.code == 0, reply.remark
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.aclose()

    async def prepare_batch(self, topic: str, msg_ids: Sequence[str], queue_id: int = 0) -> Place:
        """Many messages in one, under the id of the first; the body of each is its id."""
        entries = [(0, msg_id.encode(), encode_properties({Prop.UNIQ_KEY: msg_id})) for msg_id in msg_ids]
        more = {Prop.HALF_BATCH: str(len(msg_ids))}
        return await self.prepare(topic, msg_ids[0], encode_batch(entries), queue_id, more)

    async def prepare(
        self,
        topic: str,
        msg_id: str,
        body: bytes = b"body",
        queue_id: int = 0,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Place:
        properties = {
            Prop.TRANSACTION_PREPARED: "true",
            Prop.PRODUCER_GROUP: self.group,
            Prop.UNIQ_KEY: msg_id,
            Prop.KEYS: f"key-{msg_id}",
            Prop.WAIT: "true",
            **more,
        }
        ext = send_ext(
            topic,
            queue_id,
            encode_properties(properties).decode(),
            a=self.group,
            f=str(SysFlag.TX_PREPARED),
            g=str(time.time_ns() // 1_000_000),
        )
        reply = await self._channel.request(request(RequestCode.SEND_MESSAGE_V2, ext, body), 10)
        assert reply.code == 0, reply.remark
        return int(reply.ext["queueOffset"]), int(reply.ext["msgId"][16:], 16)

    async def end(self, place: Place, decision: int, msg_id: str) -> Command:
        return await self._channel.request(self._end(place, decision, msg_id, False), 10)

    def end_oneway(self, place: Place, decision: int, msg_id: str) -> None:
        """As official clients do it."""
        self._channel.oneway(self._end(place, decision, msg_id, False))

    def _end(self, place: Place, decision: int, msg_id: str, from_check: bool) -> Command:
        ext = {
            "producerGroup": self.group,
            "tranStateTableOffset": str(place[0]),
            "commitLogOffset": str(place[1]),
            "commitOrRollback": str(decision),
            "fromTransactionCheck": "true" if from_check else "false",
            "msgId": msg_id,
        }
        return request(RequestCode.END_TRANSACTION, ext)

    def _question(self, channel: Channel, command: Command) -> None:
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        message = decode_record(command.body)
        self.questions.append(message)
        self.asked.set()
        place = int(command.ext["tranStateTableOffset"]), int(command.ext["commitLogOffset"])
        channel.oneway(self._end(place, self.decide(message.msg_id), message.msg_id, True))
