"""One accepted TCP connection: frames in, replies out, and requests of our own towards the peer."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Protocol, cast

from orbitmq.net.errors import ConnectionClosed, RequestTimeout
from orbitmq.net.limits import Limits
from orbitmq.wire.command import Command, encode

if TYPE_CHECKING:
    from orbitmq.net.listener import ConnectionRegistry

log = logging.getLogger("orbitmq.net")

_LENGTH = Struct(">I")
_MIN_FRAME = 4
_LEGAL_OPAQUE = 0x7FFFFFFF
_LARGE_PART_BYTES = 16 * 1024


class Service(Protocol):
    """What a listener talks to: a name server, a broker, a controller."""

    def frame(self, conn: Connection, data: bytes, start: int, stop: int) -> None:
        """One frame lies in data[start:stop], without its length prefix."""

    def bulk(self, conn: Connection, data: bytes, start: int, stop: int) -> int:
        """Takes as many whole frames (with their lengths) from data[start:stop] as it can handle together.

        Returns where it stopped: at the first frame that has to be handed over by itself.
        """

    def read_done(self, conn: Connection) -> None:
        """All complete frames of one read have been handed over."""

    def connection_lost(self, conn: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """Server side of one connection. Not thread-safe: the loop's thread owns it."""

    __slots__ = (
        "_chunks",
        "_corked",
        "_fd",
        "_have",
        "_limits",
        "_need",
        "_next_opaque",
        "_out",
        "_out_bytes",
        "_pending",
        "_registry",
        "_service",
        "_stalled",
        "_transport",
        "closed",
        "congested",
        "held",
        "last_active",
        "local_port",
        "peer",
        "peer_bytes",
        "tags",
    )

    def __init__(self, service: Service, limits: Limits, registry: ConnectionRegistry) -> None:
        self._service = service
        self._limits = limits
        self._registry = registry
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0
        self._stalled = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._corked = False
        self.congested = False
        """The peer leaves so much unread that whatever can wait should."""
        self._pending: dict[int, asyncio.Future[Command]] = {}
        self._next_opaque = 0
        self.closed = False
        self.last_active = 0.0
        self.peer = ""
        self.peer_bytes = b""
        self.local_port = 0
        self.tags: dict[str, object] = {}
        self.held = 0
        """Requests of this peer that wait for something to happen."""

    # --- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        if not peername:  # the peer was gone before we looked
            self._transport.abort()
            return
        host, port = peername[0], peername[1]
        if host.startswith("::ffff:"):
            host = host[7:]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.peer_bytes = socket.inet_pton(family, host.partition("%")[0]) + _LENGTH.pack(port)
        self.peer = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
        sock = transport.get_extra_info("socket")
        if sock is not None and transport.get_extra_info("sslcontext") is None:
            self._fd = sock.fileno()
        sockname = transport.get_extra_info("sockname")
        self.local_port = sockname[1] if sockname else 0
        self.last_active = self._registry.now()
        self._transport.set_write_buffer_limits(high=self._limits.write_high_bytes)
        if not self._registry.admit(self):
            log.warning(
                "connection from %s refused: %d connections are open, the limit (maxConnections)",
                self.peer,
                self._limits.max_connections,
            )
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.closed and self._transport is None:
            return
        self.closed = True
        self._transport = None
        self._registry.forget(self, self._have)
        self._chunks.clear()
        self._have = 0
        self._out.clear()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(
                    ConnectionClosed(f"{self.peer} closed the connection before it answered")
                )
        self._pending.clear()
        self._service.connection_lost(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self._registry.now()
        if self._have or self._stalled:
            data = self._joined_with_rest(data)
            if not data:
                return
        self._consume(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.congested = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.congested = False
        if self._transport is None:
            return
        self._transport.resume_reading()
        if self._stalled:
            self._stalled = False
            data = b"".join(self._chunks)
            self._registry.partial_bytes -= self._have
            self._chunks.clear()
            self._have = self._need = 0
            self._consume(data)

    # --- reading ----------------------------------------------------------------------------------------------

    def _joined_with_rest(self, data: bytes) -> bytes:
        """Collects pieces until the announced frame is whole, so that a large frame is copied once, not per read."""
        self._chunks.append(data)
        self._have += len(data)
        if not self._count_partial(len(data)) or self._stalled or self._have < self._need:
            return b""
        whole = b"".join(self._chunks)
        self._registry.partial_bytes -= self._have
        self._chunks.clear()
        self._have = self._need = 0
        return whole

    def _consume(self, data: bytes) -> None:
        service_frame, service_bulk = self._service.frame, self._service.bulk
        max_frame = self._limits.max_frame_bytes
        end = len(data)
        pos = 0
        self._corked = True
        try:
            while end - pos >= 4:
                pos = service_bulk(self, data, pos, end)
                if end - pos < 4:
                    break
                (size,) = _LENGTH.unpack_from(data, pos)
                if size < _MIN_FRAME or size > max_frame - 4:
                    self._refuse_length(data, pos, size)
                    return
                stop = pos + 4 + size
                if stop > end:
                    break
                service_frame(self, data, pos + 4, stop)
                pos = stop
                if self._out_bytes > 1_000_000:
                    # Many big answers to one read: hand them over now, and wait if the peer does not take them.
                    self._flush_out()
                    if self.congested:
                        self._stalled = True
                        break
                if self.closed:
                    return
        finally:
            self._service.read_done(self)
            self._corked = False
            self._flush_out()
        if pos < end and not self.closed:
            self._keep_rest(data, pos, end)

    def _keep_rest(self, data: bytes, pos: int, end: int) -> None:
        rest = data[pos:] if pos else data
        self._chunks.append(rest)
        self._have = end - pos
        self._need = 4 + _LENGTH.unpack_from(data, pos)[0] if end - pos >= 4 else 4
        self._count_partial(self._have)

    def _count_partial(self, more: int) -> bool:
        """False when that was too much, and the connection is gone."""
        self._registry.partial_bytes += more
        if self._registry.partial_bytes <= self._limits.max_partial_bytes:
            return True
        log.warning("%s closed: unfinished frames hold more than maxInFlightBytes in all", self.peer)
        self.abort()
        return False

    def _refuse_length(self, data: bytes, pos: int, size: int) -> None:
        first = data[pos]
        if first == 0x16:
            why = "it speaks TLS, and TLS is not enabled on this port"
        elif data[pos : pos + 4] in (b"GET ", b"POST", b"HEAD", b"PUT "):
            why = "it speaks HTTP; this port takes the remoting protocol"
        else:
            why = f"a frame of {size} bytes was announced, allowed are 4 to {self._limits.max_frame_bytes}"
        log.warning("%s closed: %s", self.peer, why)
        self.abort()

    # --- writing ----------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if self.closed:
            return
        if self._corked:
            self._out.append(frame)
            self._out_bytes += len(frame)
        elif self._transport is not None:
            self._transport.write(frame)

    def send_parts(self, parts: list[bytes]) -> None:
        """Several pieces that belong together, joined with whatever else this read answers."""
        if self.closed:
            return
        if self._corked:
            self._out += parts
            self._out_bytes += sum(map(len, parts))
        elif self._transport is not None:
            _write(self._transport, parts, sum(map(len, parts)))

    def idle_fd(self) -> int:
        """The socket's number, for who can write to it without copying first; -1 when something is to go before."""
        transport = self._transport
        if self._fd < 0 or transport is None or self._out:
            return -1
        return -1 if transport.is_closing() or transport.get_write_buffer_size() else self._fd

    def collect(self) -> bool:
        """Keeps what is sent until `release`, to write it together. False when somebody else does so already."""
        if self._corked:
            return False
        self._corked = True
        return True

    def release(self) -> None:
        self._corked = False
        self._flush_out()

    @property
    def collected_bytes(self) -> int:
        return self._out_bytes

    def _flush_out(self) -> None:
        out = self._out
        if out:
            if self._transport is not None:
                if len(out) == 1:
                    self._transport.write(out[0])
                else:
                    _write(self._transport, out, self._out_bytes)
            out.clear()
            self._out_bytes = 0

    def close(self) -> None:
        """Closes after what was already answered has been written."""
        if self._transport is not None and not self.closed:
            self._flush_out()
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self.closed = True
            self._transport.abort()

    # --- our own requests towards the peer --------------------------------------------------------------------

    def oneway(self, command: Command) -> None:
        self._number(command)
        command.flag |= 2
        self.send(encode(command))

    async def request(self, command: Command, timeout_s: float) -> Command:
        if self.closed:
            raise ConnectionClosed(f"{self.peer} is not connected any more")
        self._number(command)
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._pending[command.opaque] = future
        try:
            self.send(encode(command))
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise RequestTimeout(
                f"{self.peer} did not answer request {command.code} within {timeout_s} s"
            ) from None
        finally:
            self._pending.pop(command.opaque, None)

    def answered(self, response: Command) -> None:
        """A frame with the response flag arrived; late or unknown ones are dropped."""
        future = self._pending.get(response.opaque)
        if future is not None and not future.done():
            future.set_result(response)

    def _number(self, command: Command) -> None:
        self._next_opaque = (self._next_opaque + 1) & _LEGAL_OPAQUE
        command.opaque = self._next_opaque


ConnectionFactory = Callable[[], Connection]


def _write(transport: asyncio.Transport, parts: list[bytes], total: int) -> None:
    """Small parts are joined into one; pages of messages are too large to be copied once more."""
    if len(parts) == 1:
        transport.write(parts[0])
    elif total >= len(parts) * _LARGE_PART_BYTES:
        transport.writelines(parts)
    else:
        transport.write(b"".join(parts))
