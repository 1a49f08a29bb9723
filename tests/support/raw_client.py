"""A client close to the wire, for tests that count answers or send nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from orbitmq.wire.codes import PullFlag, RequestCode, ResponseCode
from orbitmq.wire.command import Command, decode, encode, request
from orbitmq.wire.message import Message, decode_records
from orbitmq.wire.topics import TOOLS_GROUP

TIMEOUT_S = 10.0


class RawClient:
    """One connection. Use it as an async context manager, or `connect` and `close`."""

    def __init__(self, addr: str) -> None:
        self.addr = addr
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self._opaque = 0
        self._early: dict[int, Command] = {}

    async def connect(self) -> Self:
        host, _, port = self.addr.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=1 << 25)
        return self

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def write(self, commands: Iterable[Command]) -> list[int]:
        """Numbers the commands, sends them in one piece and returns their numbers."""
        frames, numbers = [], []
        for command in commands:
            self._opaque += 1
            command.opaque = self._opaque
            numbers.append(self._opaque)
            frames.append(encode(command))
        self.writer.write(b"".join(frames))
        return numbers

    async def read(self) -> Command:
        """The next frame, whatever it is. ConnectionError when the server hangs up."""
        try:
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return decode(await self.reader.readexactly(size))
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the server closed the connection") from error

    async def answer(self, number: int) -> Command:
        async with asyncio.timeout(TIMEOUT_S):
            while number not in self._early:
                answer = await self.read()
                if answer.is_response:
                    self._early[answer.opaque] = answer
        return self._early.pop(number)

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        (number,) = self.write([request(code, ext, body)])
        return await self.answer(number)

    async def ok(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        answer = await self.ask(code, ext, body)
        assert answer.code == ResponseCode.SUCCESS, f"request {code}: {answer.code} {answer.remark}"
        return answer

    async def hung_up(self) -> bool:
        """Whether the server closes the connection, dropping anything it still sends."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while await self.reader.read(1 << 16):
                    pass
        except ConnectionError:
            return True
        return True

    async def create_topic(self, topic: str, queues: int) -> None:
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        await self.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)

    async def pull(self, topic: str, queue_id: int, offset: int, max_messages: int = 32) -> Command:
        return await self.ask(RequestCode.PULL_MESSAGE, pull_ext(topic, queue_id, offset, max_messages))

    async def read_queue(self, topic: str, queue_id: int, offset: int = 0) -> list[Message]:
        """Everything from `offset` to the queue's end."""
        found: list[Message] = []
        while True:
            answer = await self.pull(topic, queue_id, offset)
            if answer.code == ResponseCode.SUCCESS:
                found += decode_records(answer.body)
            elif answer.code == ResponseCode.PULL_NOT_FOUND:
                return found
            elif answer.code != ResponseCode.PULL_RETRY_IMMEDIATELY:
                raise AssertionError(f"pull {topic} {queue_id} at {offset}: {answer.code} {answer.remark}")
            after = int(answer.ext["nextBeginOffset"])
            assert after > offset, f"pull {topic} {queue_id} does not get past {offset}"
            offset = after

    async def max_offset(self, topic: str, queue_id: int) -> int:
        ext = {"topic": topic, "queueId": str(queue_id)}
        return int((await self.ok(RequestCode.GET_MAX_OFFSET, ext)).ext["offset"])

    async def by_key(self, topic: str, key: str) -> list[Message]:
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 62),
        }
        answer = await self.ask(RequestCode.QUERY_MESSAGE, ext)
        return decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []


def pull_ext(
    topic: str, queue_id: int, offset: int, max_messages: int = 32, suspend_ms: int = 0
) -> dict[str, str]:
    return {
        "consumerGroup": TOOLS_GROUP,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(max_messages),
        "sysFlag": str(PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if suspend_ms else 0)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


def send_ext(topic: str, queue_id: int, properties: str = "", **changes: str) -> dict[str, str]:
    """Fields of SEND_MESSAGE_V2 as an official client writes them; `changes` replaces letters."""
    ext = {
        "a": "pg",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return {**ext, **changes}
