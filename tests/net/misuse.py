"""What the tests of misbehaving peers share: the server's limits, and ways to send it nonsense."""

from __future__ import annotations

import asyncio
import struct

from orbitmq.wire.command import Command
from tests.support.raw_client import RawClient

TOPIC = "Sound"
QUEUES = 4
MAX_BODY = 200_000
MAX_PARTIAL = 8 << 20
LARGEST_FRAME = 16 << 20


def frame(header: bytes, body: bytes = b"", codec: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), codec << 24 | len(header)) + header + body


def hangs_up(addr: str, data: bytes) -> None:
    async def talk() -> None:
        async with RawClient(addr) as client:
            client.writer.write(data)
            assert await client.hung_up()

    asyncio.run(talk())


def answer_to(addr: str, command: Command) -> Command:
    async def talk() -> Command:
        async with RawClient(addr) as client:
            (number,) = client.write([command])
            return await client.answer(number)

    return asyncio.run(talk())
