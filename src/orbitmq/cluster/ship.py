"""The master's side: every slave that connects gets the log from where it stands, and says how far it has come.

A block is (log offset 8, size 4, bytes); a size of 0 is a heartbeat. A slave reports 8-byte offsets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final, cast

from orbitmq.cluster.confirm import Confirmations

if TYPE_CHECKING:
    import socket

    from orbitmq.store.message_store import MessageStore

log = logging.getLogger("orbitmq.cluster")

BLOCK_HEAD: Final = Struct(">qi")
REPORT: Final = Struct(">q")
TICK_S: Final = 0.5
# Behind this much in the socket's buffer a slave is slow, and the log waits in its files.
WRITE_HIGH_BYTES: Final = 1 << 20
MOST_BLOCKS_AT_ONCE: Final = 64


class Shipper:
    """Listens for slaves. `heartbeat_ms` of silence make a heartbeat, `silence_ms` without a report end a link."""

    def __init__(
        self,
        store: MessageStore,
        confirmations: Confirmations,
        now_s: Callable[[], float],
        *,
        block_bytes: int,
        heartbeat_ms: int,
        silence_ms: int,
    ) -> None:
        self.store = store
        self.confirmations = confirmations
        self.now_s = now_s
        self.block_bytes = block_bytes
        self.heartbeat_s = heartbeat_ms / 1000
        self.silence_s = silence_ms / 1000
        self.slaves: set[SlaveLink] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waking = False

    async def start_on(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: SlaveLink(self), sock=bound)
        self.store.on_growth = self._grown
        self._tick()

    async def stop(self) -> None:
        self.store.on_growth = None
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        for slave in list(self.slaves):
            slave.close("the master stops")
        if self._server is not None:
            await self._server.wait_closed()

    def _grown(self) -> None:
        """Once per turn of the loop, however many commits it had."""
        if self.slaves and not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._pump_all)

    def _pump_all(self) -> None:
        self._waking = False
        for slave in list(self.slaves):
            slave.pump()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self.confirmations.expire()
        now = self.now_s()
        for slave in list(self.slaves):
            slave.tick(now)


class SlaveLink(asyncio.Protocol):
    """One slave's connection."""

    def __init__(self, shipper: Shipper) -> None:
        self._shipper = shipper
        self._transport: asyncio.Transport | None = None
        self._partial = b""
        self._paused = False
        self._next = -1
        self._pumping = False
        self._last_write = self._last_report = shipper.now_s()
        self.peer = "?"
        self.reported = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self._shipper.slaves.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._shipper.slaves.discard(self)
        self._shipper.confirmations.lost(self)
        if self._next >= 0:
            log.warning("slave %s is gone; it had the log up to %d", self.peer, self.reported)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    def data_received(self, data: bytes) -> None:
        data = self._partial + data
        whole = len(data) - len(data) % REPORT.size
        self._partial = data[whole:]
        if not whole:
            return
        # Only the newest report counts.
        (offset,) = REPORT.unpack_from(data, whole - REPORT.size)
        self._last_report = self._shipper.now_s()
        store = self._shipper.store
        if self._next < 0:
            (first,) = REPORT.unpack_from(data, 0)
            if not self._begin(first):
                return
        if offset > store.log.position:
            self.close(
                f"it reports {offset} and the log ends at {store.log.position}: its store is another one"
            )
            return
        self.reported = offset
        self._shipper.confirmations.confirmed(self, offset)
        self.pump()

    def _begin(self, offset: int) -> bool:
        """From where the slave stands; an empty one gets everything there is."""
        store = self._shipper.store
        start = offset or store.log.start
        if not store.log.start <= start <= store.log.position:
            self.close(
                f"it stands at {offset}, this log reaches from {store.log.start} to {store.log.position}: "
                "empty the slave's store so that it begins anew"
            )
            return False
        self._next = start
        log.info("slave %s follows from log offset %d on", self.peer, start)
        return True

    def pump(self) -> None:
        """Sends what is there until the socket is full; a few blocks at a time, so that clients get their turn."""
        transport, shipper = self._transport, self._shipper
        if transport is None or self._next < 0:
            return
        commit_log = shipper.store.log
        for _ in range(MOST_BLOCKS_AT_ONCE):
            if self._paused or self._transport is None:
                return
            segment_end = (
                self._next - self._next % commit_log.series.segment_bytes + commit_log.series.segment_bytes
            )
            end = min(self._next + shipper.block_bytes, segment_end, commit_log.position)
            if end <= self._next:
                return
            data = commit_log.read(self._next, end - self._next)
            if not data:
                self.close(f"log offset {self._next}, where it stands, was cleaned away; empty its store")
                return
            transport.write(BLOCK_HEAD.pack(self._next, len(data)) + data)
            self._next = end
            self._last_write = shipper.now_s()
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump_on)

    def _pump_on(self) -> None:
        self._pumping = False
        self.pump()

    def tick(self, now: float) -> None:
        if now - self._last_report > self._shipper.silence_s:
            self.close(f"no report for {self._shipper.silence_s:g} s")
            return
        silent = now - self._last_write >= self._shipper.heartbeat_s
        if silent and self._next >= 0 and self._transport is not None and not self._paused:
            self._transport.write(BLOCK_HEAD.pack(self._next, 0))
            self._last_write = now

    def close(self, reason: str) -> None:
        if self._transport is not None:
            log.warning("the connection of slave %s is closed: %s", self.peer, reason)
            self._transport.abort()
