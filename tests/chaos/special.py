"""The rarer things that must outlive a failover: delayed messages, transactions, topics and groups just made."""

from __future__ import annotations

import time
import zlib

import orbitmq
from orbitmq.client.errors import OrbitMQError
from orbitmq.wire.codes import response_name
from tests.chaos.history import SEND_OK, Answer, Attempt, Made, Recorder

DELAY_S = 1.5
FIRST_LEVEL = 1  # of the delay levels: one second
ROLLED_BACK = "rolled-back"


def body_of(key: str) -> bytes:
    """The same for a key whoever asks, so that a body that changed on its way is noticed."""
    checksum = zlib.crc32(key.encode())
    return f"{key}:{checksum:08x}:".encode() + bytes([65 + checksum % 26]) * (checksum % 1500)


def key_in(body: bytes) -> str:
    key = body.partition(b":")[0].decode("utf-8", "replace")
    return key if body == body_of(key) else f"damaged {body[:60]!r}"


def reason(error: OrbitMQError) -> str:
    """What a history calls the answer that a client raised."""
    return response_name(error.code) if error.code is not None else type(error).__name__


class Special:
    def __init__(
        self, name: str, topic: str, mq: orbitmq.Client, producer: orbitmq.Producer, recorder: Recorder
    ) -> None:
        self.acknowledged: set[str] = set()
        """Messages that arrive some time after they were acknowledged."""
        self._name = name
        self._topic = topic
        self._mq = mq
        self._producer = producer
        self._recorder = recorder

    async def send_later(self, number: int) -> None:
        """With a delay level and with a moment of its own, in turn: they are kept in different ways."""
        key = f"{self._name}-later-{number}"
        self._begin(key)
        try:
            if number % 2:
                receipt = await self._producer.send(self._topic, body_of(key), delay_level=FIRST_LEVEL)
            else:
                receipt = await self._producer.send(self._topic, body_of(key), deliver_after=DELAY_S)
        except OrbitMQError as error:
            self._end(key, reason(error))
        else:
            self._end(key, receipt.status)

    async def send_in_transaction(self, number: int) -> None:
        """Every third one is rolled back. Nobody is told of that attempt: its message must not arrive at all."""
        if number % 3 == 2:
            await self._roll_back(f"{self._name}-{ROLLED_BACK}-{number}")
            return
        key = f"{self._name}-tx-{number}"
        self._begin(key)
        try:
            async with self._producer.transaction(self._topic, body_of(key)):
                pass
        except OrbitMQError as error:
            self._end(key, reason(error))
        else:
            self._end(key, SEND_OK)

    async def _roll_back(self, key: str) -> None:
        try:
            async with self._producer.transaction(self._topic, body_of(key)) as transaction:
                transaction.rollback()
        except OrbitMQError:
            return  # not even prepared, or less safely than wished: rolled back all the same

    async def make(self, number: int) -> None:
        """A topic or a group, in turn."""
        kind = "group" if number % 2 else "topic"
        name = f"{self._name}-{kind}-{number}"
        try:
            if kind == "topic":
                await self._mq.admin.create_topic(name, queues=1)
            else:
                await self._mq.admin.create_group(name)
        except OrbitMQError:
            return  # nothing was promised
        self._recorder.made(Made(time.monotonic(), kind, name))

    def _begin(self, key: str) -> None:
        self._recorder.attempt(Attempt(time.monotonic(), key, "special", resends=True, waits=True))

    def _end(self, key: str, status: str) -> None:
        self._recorder.answer(Answer(time.monotonic(), key, status))
        if status == SEND_OK:
            self.acknowledged.add(key)
