"""The slave's side: connects to the master, takes its log over and reports how far it has come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from orbitmq.cluster.ship import BLOCK_HEAD, REPORT
from orbitmq.store.errors import StoreError

if TYPE_CHECKING:
    from orbitmq.store.follower import LogFollower

log = logging.getLogger("orbitmq.cluster")

RETRY_S: Final = 1.0
LOOK_S: Final = 0.1
PATIENCE_S: Final = 3.0
CONNECT_S: Final = 5.0
LARGEST_BLOCK_BYTES: Final = 64 << 20


class Receiver:
    """Keeps one connection to the master. `master` gives its address, None while it is not known."""

    def __init__(
        self,
        follower: LogFollower,
        master: Callable[[], str | None],
        *,
        report_ms: int,
        silence_ms: int,
    ) -> None:
        self.follower = follower
        self._master = master
        self._report_s = report_ms / 1000
        self._silence_s = silence_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self._said = ""
        self.link: MasterLink | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="follow-log")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.link is not None:
            self.link.close()

    def report(self) -> None:
        """More of the log is on the device."""
        if self.link is not None:
            self.link.report()

    async def _run(self) -> None:
        looks = 0
        while True:
            address = self._master()
            looks = looks + 1 if address is None else 0
            if 0 < looks * LOOK_S < PATIENCE_S:  # this broker may have registered a moment ago
                await asyncio.sleep(LOOK_S)
                continue
            problem = (
                "no name server knows the master's address"
                if address is None
                else await self._follow(address)
            )
            if problem != self._said:
                log.warning("not following the master (%s): %s; trying on", address or "unknown", problem)
                self._said = problem
            await asyncio.sleep(RETRY_S if address else LOOK_S)

    async def _follow(self, address: str) -> str:
        """Until the connection ends; why it did."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        link = MasterLink(self.follower)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: link, host.strip("[]"), int(port))
        except (OSError, ValueError) as error:
            return f"it cannot be reached: {str(error) or type(error).__name__}"
        self.link = link
        log.info("following the log of %s from %d on", address, self.follower.position)
        self._said = ""
        try:
            while not link.lost.done():
                await asyncio.wait([link.lost], timeout=self._report_s)
                link.report(always=True)
                if loop.time() - link.heard > self._silence_s:
                    return f"it has been silent for {self._silence_s:g} s"
            return link.problem or "it closed the connection"
        finally:
            self.link = None
            link.close()


class MasterLink(asyncio.Protocol):
    def __init__(self, follower: LogFollower) -> None:
        loop = asyncio.get_running_loop()
        self._follower = follower
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._reported = -1
        self.lost: asyncio.Future[None] = loop.create_future()
        self.heard = loop.time()
        self.problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # The first report says where the master goes on, whether it is on the device or not.
        self._write(self._follower.position)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        self._buffer += data
        try:
            self._take_blocks()
        except (OSError, StoreError) as error:
            self.problem = str(error)
            self.close()
            return
        self.report()

    def _take_blocks(self) -> None:
        buffer, at = self._buffer, 0
        try:
            while len(buffer) - at >= BLOCK_HEAD.size:
                offset, size = BLOCK_HEAD.unpack_from(buffer, at)
                if not 0 <= size <= LARGEST_BLOCK_BYTES or offset < 0:
                    raise StoreError(f"a block of {size} bytes at {offset} is announced: this is no master")
                if self._follower.position and offset != self._follower.position:
                    raise StoreError(
                        f"the master is at {offset}, this log ends at {self._follower.position}: one of them has "
                        "something that the other has not"
                    )
                end = at + BLOCK_HEAD.size + size
                if len(buffer) < end:
                    return
                if size:
                    self._follower.take(offset, bytes(buffer[at + BLOCK_HEAD.size : end]))
                at = end
        finally:
            del buffer[:at]

    def report(self, *, always: bool = False) -> None:
        offset = self._follower.confirmed
        if always or offset != self._reported:
            self._write(offset)

    def _write(self, offset: int) -> None:
        if self._transport is not None:
            self._reported = offset
            self._transport.write(REPORT.pack(offset))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
