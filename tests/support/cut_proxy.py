"""A wire between client and broker that can be cut after any byte, be slow, or swallow everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK = 65536


class CutProxy:
    """Forwards connections to `target`. What is set counts for all connections, those to come included."""

    def __init__(self, target: str) -> None:
        self.addr = ""
        self.delay_s = 0.0
        """Every chunk of bytes travels this much longer, in both directions."""
        self.cuts = 0
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._open = asyncio.Event()
        self._open.set()
        self._cut_after: dict[str, int | None] = {"to_broker": None, "to_client": None}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut_after(self, direction: str, count: int) -> None:
        """After so many more bytes in this direction (`to_broker`, `to_client`) all connections are cut, once."""
        assert direction in self._cut_after
        self._cut_after[direction] = count

    def swallow(self) -> None:
        """Connections stay open and nothing passes any more: a cable that was pulled."""
        self._open.clear()

    def flow(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """Without a goodbye: both ends see a reset connection."""
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            broker_reader, broker_writer = await asyncio.open_connection(self._host, self._port)
            self._writers |= {writer, broker_writer}
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump("to_broker", reader, broker_writer))
                group.create_task(self._pump("to_client", broker_reader, writer))
        except OSError:
            return  # the broker is not there: the client sees its connection close
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _pump(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK):
                await self._open.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                left = self._cut_after[direction]
                if left is not None and left < len(data):
                    self._cut_after[direction] = None
                    writer.write(data[:left])
                    await writer.drain()
                    # The part must leave before the connection does, or the frame would be missing, not torn.
                    await asyncio.sleep(0.01)
                    self.cut()
                    return
                if left is not None:
                    self._cut_after[direction] = left - len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def stop(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def cut_proxy(target: str) -> AsyncIterator[CutProxy]:
    proxy = CutProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.addr = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.stop()
        await server.wait_closed()
