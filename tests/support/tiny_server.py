"""A server that reads frames and lets the test answer them, byte by byte if it wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from orbitmq.wire.command import Command, decode, encode
from orbitmq.wire.frame import FrameReader

Answer = Callable[["TinyServer", asyncio.StreamWriter, Command], Awaitable[None]]


class TinyServer:
    """Reads frames, hands each to `answer`, keeps everything it saw."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[Command] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.accepted = 0
        self.addr = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.writers.append(writer)
        frames = FrameReader()
        try:
            while data := await reader.read(65536):
                for frame in frames.feed(data):
                    cmd = decode(frame)
                    self.seen.append(cmd)
                    await self.answer(self, writer, cmd)
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def tiny_server(answer: Answer) -> AsyncIterator[TinyServer]:
    tiny = TinyServer(answer)
    server = await asyncio.start_server(tiny.serve, "127.0.0.1", 0)
    tiny.addr = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tiny
    finally:
        server.close()
        for writer in tiny.writers:
            writer.close()
        await asyncio.sleep(0.02)


async def echo(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
    if not cmd.is_oneway and not cmd.is_response:
        writer.write(encode(cmd.reply(ext=dict(cmd.ext), body=cmd.body)))


async def silent(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
    return


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, f"tasks left behind: {others}"

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)
