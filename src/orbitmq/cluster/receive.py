"""The slave's side: connects to the master, takes its log over and reports how far it has come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final, cast

from orbitmq.cluster.frames import BLOCK_HEAD, LARGEST_BLOCK_BYTES, REPORT
from orbitmq.store.errors import StoreError
from orbitmq.wire.errors import WireError

if TYPE_CHECKING:
    from orbitmq.store.follower import LogFollower

log = logging.getLogger("orbitmq.cluster")

RETRY_MS: Final = 1000
LOOK_S: Final = 0.1
PATIENCE_S: Final = 3.0
CONNECT_S: Final = 5.0


class Receiver:
    """Keeps one connection to the master. `master` gives its address, None while it is not known."""

    NOBODY_KNOWS: ClassVar[str] = "no name server knows the master's address"

    def __init__(
        self,
        follower: LogFollower,
        master: Callable[[], str | None],
        *,
        report_ms: int,
        silence_ms: int,
        retry_ms: int = RETRY_MS,
        ask_where: Callable[[], None] = lambda: None,
    ) -> None:
        self.follower = follower
        self._master = master
        self._ask_where = ask_where
        self._failures = 0
        self._report_s = report_ms / 1000
        self._silence_s = silence_ms / 1000
        self._retry_s = retry_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self._said = ""
        self._over = False
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
        while not self._over:
            address = self._master()
            looks = looks + 1 if address is None else 0
            if 0 < looks * LOOK_S < PATIENCE_S:  # this broker may have registered a moment ago
                await asyncio.sleep(LOOK_S)
                continue
            problem = self.NOBODY_KNOWS if address is None else await self._follow(address)
            self._failures += 1
            if self._failures & (self._failures - 1) == 0:
                # It may be back at another address. To ask costs the name servers something: so less and less often.
                self._ask_where()
            if problem != self._said:
                log.warning("not following the master (%s): %s; trying on", address or "unknown", problem)
                self._said = problem
            await asyncio.sleep(self._retry_s if address else LOOK_S)

    async def _follow(self, address: str) -> str:
        """Until the connection ends; why it did."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        link = self._new_link(address)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: link, host.strip("[]"), int(port))
        except (OSError, ValueError) as error:
            return f"it cannot be reached: {str(error) or type(error).__name__}"
        try:
            while not link.lost.done():
                await asyncio.wait([link.lost], timeout=self._report_s)
                link.report(always=True)
                if loop.time() - link.heard > self._silence_s:
                    return f"it has been silent for {self._silence_s:g} s"
                if changed := self._objection(link):
                    return changed
            return link.problem or "it closed the connection"
        finally:
            self.link = None
            link.close()

    def _new_link(self, address: str) -> MasterLink:
        return MasterLink(self.follower, lambda link: self._following(link, address))

    def _following(self, link: MasterLink, address: str) -> None:
        self.link = link
        self._failures = 0
        log.info("following the log of %s from %d on", address, self.follower.position)
        self._said = ""

    def _objection(self, link: MasterLink) -> str:
        """Why to leave this master, though it is there; empty when there is no reason."""
        return ""


class MasterLink(asyncio.Protocol):
    """`on_following` is told when the master begins to send."""

    HEAD: ClassVar[Struct] = BLOCK_HEAD

    def __init__(self, follower: LogFollower, on_following: Callable[[MasterLink], None]) -> None:
        loop = asyncio.get_running_loop()
        self._follower = follower
        self._on_following = on_following
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._reported = -1
        self.lost: asyncio.Future[None] = loop.create_future()
        self.heard = loop.time()
        self.problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._begin()

    def _begin(self) -> None:
        # The first report says where the master goes on, whether it is on the device or not.
        self._write(self._follower.begin())
        self._on_following(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        try:
            self._take(data)
        except (OSError, StoreError, WireError) as error:
            self.give_up(str(error))
            return
        self.report()

    def _take(self, data: bytes) -> None:
        """Whole blocks; what is left waits for the rest of it. Mostly nothing is left, and nothing copied for it."""
        buffer, at, head = self._buffer, 0, self.HEAD
        if buffer:
            buffer += data
        source = buffer or data
        try:
            while len(source) - at >= head.size and self._transport is not None:
                offset, size, *told = head.unpack_from(source, at)
                if not 0 <= size <= LARGEST_BLOCK_BYTES:
                    raise StoreError(f"a block of {size} bytes at {offset} is announced: this is no master")
                self._check(offset)
                end = at + head.size + size
                if len(source) < end:
                    return
                self._take_block(offset, bytes(source[at + head.size : end]), *told)
                at = end
        finally:
            if source is data:
                buffer += data[at:]
            else:
                del buffer[:at]

    def _check(self, offset: int) -> None:
        """As soon as the head is there: a block may be long."""
        if offset < 0:
            raise StoreError(f"a block at {offset} is announced: this is no master")
        if self._follower.position and offset != self._follower.position:
            raise StoreError(
                f"the master is at {offset}, this log ends at {self._follower.position}: one of them has "
                "something that the other has not"
            )

    def _take_block(self, offset: int, data: bytes, *told: int) -> None:
        if data:
            self._follower.take(offset, data)

    def report(self, *, always: bool = False) -> None:
        offset = self._follower.confirmed
        if always or offset != self._reported:
            self._write(offset)

    def _write(self, offset: int) -> None:
        if self._transport is not None:
            self._reported = offset
            self._transport.write(REPORT.pack(offset))

    def give_up(self, problem: str) -> None:
        self.problem = self.problem or problem
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
