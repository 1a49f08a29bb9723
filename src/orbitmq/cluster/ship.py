"""The master's side: every slave that connects gets the log from where it stands, and says how far it has come.

`LogShipper` is what both protocols share; `Shipper` speaks the plain one, as Java brokers do, `group_ship` the other.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orbitmq.cluster.confirm import Confirmations
from orbitmq.cluster.frames import REPORT
from orbitmq.cluster.slave_link import SlaveLink

if TYPE_CHECKING:
    import socket

    from orbitmq.store.message_store import MessageStore

TICK_S: Final = 0.5


class LogShipper(ABC):
    """Listens for slaves. `heartbeat_ms` of silence make a heartbeat, `silence_ms` without a report end a link.

    With `linger_ms` what was appended waits so long for company: where nobody waits for a slave, one block of many
    messages costs both sides a fraction of many blocks.
    """

    def __init__(
        self,
        store: MessageStore,
        now_s: Callable[[], float],
        *,
        block_bytes: int,
        heartbeat_ms: int,
        silence_ms: int,
        tick_s: float = TICK_S,
        linger_ms: int = 0,
    ) -> None:
        self.store = store
        self.now_s = now_s
        self.block_bytes = block_bytes
        self.heartbeat_s = heartbeat_ms / 1000
        self.silence_s = silence_ms / 1000
        self.slaves: set[SlaveLink] = set()
        self._tick_s = tick_s
        self._linger_s = linger_ms / 1000
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waking = False

    @abstractmethod
    def _new_link(self) -> SlaveLink: ...

    @abstractmethod
    def _expire(self) -> None:
        """At every tick: who waited too long."""

    async def start_on(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._new_link, sock=bound)
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
        if self.slaves:
            self._wake()

    def _wake(self) -> None:
        """Once per turn of the loop, however many commits it had; or when the first of them has waited its time."""
        if self.slaves and not self._waking:
            self._waking = True
            loop = asyncio.get_running_loop()
            if self._linger_s:
                loop.call_later(self._linger_s, self._pump_all)
            else:
                loop.call_soon(self._pump_all)

    def _pump_all(self) -> None:
        self._waking = False
        for slave in list(self.slaves):
            slave.pump()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)
        self._expire()
        now = self.now_s()
        for slave in list(self.slaves):
            slave.tick(now)


class Shipper(LogShipper):
    """Whoever connects and reports is a slave."""

    def __init__(
        self,
        store: MessageStore,
        confirmations: Confirmations,
        now_s: Callable[[], float],
        *,
        block_bytes: int,
        heartbeat_ms: int,
        silence_ms: int,
        linger_ms: int = 0,
    ) -> None:
        super().__init__(
            store,
            now_s,
            block_bytes=block_bytes,
            heartbeat_ms=heartbeat_ms,
            silence_ms=silence_ms,
            linger_ms=linger_ms,
        )
        self.confirmations = confirmations

    def _new_link(self) -> SlaveLink:
        return PlainLink(self)

    def _expire(self) -> None:
        self.confirmations.expire()


class PlainLink(SlaveLink):
    """The slave reports 8-byte offsets; the first says from where on it wants the log."""

    def __init__(self, shipper: Shipper) -> None:
        super().__init__(shipper)
        self._confirmations = shipper.confirmations

    def connection_lost(self, error: Exception | None) -> None:
        self._confirmations.lost(self)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        data = self._partial + data
        whole = len(data) - len(data) % REPORT.size
        self._partial = data[whole:]
        if not whole:
            return
        # Only the newest report counts.
        (offset,) = REPORT.unpack_from(data, whole - REPORT.size)
        self._last_report = self._shipper.now_s()
        begins = self._next < 0
        if begins:
            (first,) = REPORT.unpack_from(data, 0)
            if not self._begin(first):
                return
        if self._can_have(offset):
            self.reported = offset
            self._confirmations.confirmed(self, offset)
            if begins:  # from then on the log's growth wakes it, or room in the socket
                self.pump()
