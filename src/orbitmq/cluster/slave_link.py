"""One slave's connection at the master: getting the log across, which is the same in both protocols."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

from orbitmq.cluster.frames import BLOCK_HEAD

if TYPE_CHECKING:
    from orbitmq.cluster.ship import LogShipper

log = logging.getLogger("orbitmq.cluster")

# Behind this much in the socket's buffer a slave is slow, and the log waits in its files.
WRITE_HIGH_BYTES: Final = 1 << 20
MOST_BLOCKS_AT_ONCE: Final = 64


class SlaveLink(asyncio.Protocol):
    """Sends from `_next` on; -1 there means that the slave has not said yet where it stands."""

    def __init__(self, shipper: LogShipper) -> None:
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
        if self._next >= 0:
            log.warning("slave %s is gone; it had the log up to %d", self.peer, self.reported)

    @property
    def buffered_bytes(self) -> int:
        """Sent, as far as this process is concerned, and not yet taken by the system."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
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

    def _can_have(self, offset: int) -> bool:
        end = self._shipper.store.log.position
        if offset > end:
            self.close(f"it reports {offset} and the log ends at {end}: its store is another one")
        return offset <= end

    def pump(self) -> None:
        """Sends what is there until the socket is full; a few blocks at a time, so that clients get their turn."""
        transport, shipper = self._transport, self._shipper
        if transport is None or self._next < 0:
            return
        self._before_log()
        commit_log = shipper.store.log
        for _ in range(MOST_BLOCKS_AT_ONCE):
            if self._paused or self._transport is None:
                return
            segment_end = (
                self._next - self._next % commit_log.series.segment_bytes + commit_log.series.segment_bytes
            )
            end = min(self._next + shipper.block_bytes, segment_end, commit_log.position)
            if end <= self._next:
                self._after_log()
                return
            data = commit_log.read(self._next, end - self._next)
            if not data:
                self.close(f"log offset {self._next}, where it stands, was cleaned away; empty its store")
                return
            transport.write(self._head(self._next, len(data)) + data)
            self._next = end
            self._last_write = shipper.now_s()
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump_on)

    def _pump_on(self) -> None:
        self._pumping = False
        self.pump()

    def _head(self, offset: int, size: int) -> bytes:
        return BLOCK_HEAD.pack(offset, size)

    def _before_log(self) -> None:
        """For what has to be there first."""

    def _after_log(self) -> None:
        """The slave was sent everything."""

    def _beat(self) -> None:
        if self._transport is not None:
            self._transport.write(self._head(self._next, 0))
            self._last_write = self._shipper.now_s()

    def tick(self, now: float) -> None:
        if now - self._last_report > self._shipper.silence_s:
            self.close(f"no report for {self._shipper.silence_s:g} s")
            return
        silent = now - self._last_write >= self._shipper.heartbeat_s
        if silent and self._next >= 0 and not self._paused:
            self._beat()

    def close(self, reason: str) -> None:
        if self._transport is not None:
            log.warning("the connection of slave %s is closed: %s", self.peer, reason)
            self._transport.abort()
