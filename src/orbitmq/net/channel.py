"""The client's end of a TCP connection: requests out, answers matched by opaque, server requests served.

A `Channel` never reconnects: a lost connection fails everything that waited on it and stays closed, so the
caller decides what is safe to repeat. `ChannelPool` keeps one living channel per address.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, cast

from orbitmq.net.errors import (
    ConnectFailed,
    ConnectionClosed,
    RequestError,
    RequestTimeout,
    SendRefused,
)
from orbitmq.net.hot_waiters import FIRST_OPAQUE, HotWaiters
from orbitmq.wire.answer_json import ANSWER, Answer, from_command
from orbitmq.wire.codes import RequestCode, ResponseCode, request_name
from orbitmq.wire.command import Command, decode, encode
from orbitmq.wire.errors import WireError
from orbitmq.wire.frame import MAX_FRAME_BYTES, FrameReader
from orbitmq.wire.header_json import HOT_ERRORS

log = logging.getLogger("orbitmq.net")

DEFAULT_TIMEOUT_S: Final = 3.0
# Above the high mark `request` and `drain` wait; above the hard limit even `oneway` refuses.
WRITE_HIGH_BYTES: Final = 1024 * 1024
WRITE_HARD_BYTES: Final = 2 * MAX_FRAME_BYTES
# A server that floods us with requests gets "busy" instead of an unbounded number of tasks.
MAX_SERVED_AT_ONCE: Final = 256
_decode_answer: Final = ANSWER.decode

OnRequest = Callable[["Channel", Command], "Command | Awaitable[Command | None] | None"]
OnLost = Callable[["Channel"], None]


def parse_addr(addr: str) -> tuple[str, int]:
    """Splits "host:port"; an IPv6 host may stand in brackets."""
    host, colon, port = addr.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        error = ConnectFailed(
            f"{addr!r} is not an address", addr=addr, hint="write it as host:port, for example 127.0.0.1:9876"
        )
        error.retryable = False
        raise error
    return host, int(port)


class Channel(asyncio.Protocol):
    """One connection to a server. Not thread-safe: the loop that connected it owns it."""

    def __init__(
        self, addr: str, *, on_request: OnRequest | None = None, on_lost: OnLost | None = None
    ) -> None:
        self.addr = addr
        self.peer = addr
        self.local = ""
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._on_request = on_request
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._opaque = 0
        self._pending: dict[int, asyncio.Future[Command]] = {}
        self._hot = HotWaiters(self._loop, self._expire_hot)
        self.next_opaque = self._hot.next_opaque
        """The number for the next frame that is given to `submit`."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._serving: set[asyncio.Future[Command | None]] = set()
        self._why_closed = ""
        self._lost = self._loop.create_future()
        self._writable = asyncio.Event()
        self._writable.set()
        self.writable = True

    @classmethod
    async def connect(
        cls,
        addr: str,
        *,
        on_request: OnRequest | None = None,
        on_lost: OnLost | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> Channel:
        """Connects; the host name is resolved anew each time, because names move."""
        host, port = parse_addr(addr)
        loop = asyncio.get_running_loop()
        channel = cls(addr, on_request=on_request, on_lost=on_lost)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(
                    lambda: channel, host, port, ssl=tls, server_hostname=host if tls else None
                )
        except TimeoutError:
            raise ConnectFailed(
                f"could not connect to {addr} within {timeout_s:g} s",
                addr=addr,
                hint="check the address, a firewall in between, and that the server is running",
            ) from None
        except OSError as error:
            raise ConnectFailed(f"could not connect to {addr}: {error}", addr=addr) from error
        return channel

    async def request(self, cmd: Command, timeout_s: float = DEFAULT_TIMEOUT_S) -> Command:
        """Sends a request and returns its answer, whatever its code; raises a RemotingError if none came."""
        deadline = self._loop.time() + timeout_s
        if not self._writable.is_set():
            await self._drain_until(cmd, deadline, timeout_s)
        frame = self._numbered_frame(cmd)
        opaque = cmd.opaque
        answer: asyncio.Future[Command] = self._loop.create_future()
        self._pending[opaque] = answer
        timer = self._loop.call_at(deadline, self._expire, answer, cmd.code, timeout_s)
        self._write(frame)
        try:
            return await answer
        finally:
            timer.cancel()
            self._pending.pop(opaque, None)

    def submit(self, opaque: int, frame: bytes, deadline: float, timeout_s: float) -> asyncio.Future[Answer]:
        """Sends a ready frame numbered by `next_opaque` and gives its answer, which fails at the deadline.

        For hot paths: no command is made, and nothing waits here. The caller sees to it that `writable` is true.
        """
        if self.closed:
            raise self._closed_error("connect again; the request was not sent")
        answer: asyncio.Future[Answer] = self._loop.create_future()
        hot = self._hot
        hot.waiting[opaque] = (answer, deadline, timeout_s)
        if deadline < hot.due:
            hot.arm(deadline)
        self._write(frame)
        return answer

    def push(self, frame: bytes) -> None:
        """Sends a ready frame that gets no answer; the caller sees to it that `writable` is true."""
        if self.closed:
            raise self._closed_error("connect again; the request was not sent")
        self._write(frame)

    def oneway(self, cmd: Command) -> None:
        """Sends a request that gets no answer. Callers in a loop should `await drain()` now and then."""
        cmd.flag |= 2
        frame = self._numbered_frame(cmd)
        if self._buffered_bytes() > WRITE_HARD_BYTES:
            raise RequestTimeout(
                f"{request_name(cmd.code)} was not sent: {self.addr} does not read what was already sent",
                addr=self.addr,
                hint="send more slowly, or await drain() between sends",
            )
        self._write(frame)

    async def drain(self) -> None:
        """Waits until the write buffer has room."""
        self._flush()
        await self._writable.wait()
        if self.closed:
            raise self._closed_error()

    def close(self) -> None:
        """Closes after what was sent has been written; everything that waits fails at once."""
        self._shut("it was closed on this side")
        if self._transport is not None:
            self._transport.close()

    async def wait_closed(self) -> None:
        """Returns when the connection is gone and no task of this channel is left."""
        await asyncio.shield(self._lost)
        if self._serving:
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def aclose(self) -> None:
        self.close()
        try:
            async with asyncio.timeout(1.0):
                await asyncio.shield(self._lost)
        except TimeoutError:
            # The peer does not read the rest of our buffer; it will not get it.
            if self._transport is not None:
                self._transport.abort()
        await self.wait_closed()

    def _shut(self, why: str) -> None:
        if self.closed:
            return
        self._flush()
        self.closed = True
        self._why_closed = why
        self._writable.set()
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(self._closed_error())
        self._pending.clear()
        for hot in self._hot.close():
            hot.set_exception(self._closed_error())
        for task in self._serving:
            task.cancel()

    def _abort(self, why: str) -> None:
        self._shut(why)
        if self._transport is not None:
            self._transport.abort()

    def _closed_error(self, hint: str | None = None) -> ConnectionClosed:
        what = f"the connection to {self.addr} ended: {self._why_closed}"
        return ConnectionClosed(what, addr=self.addr, hint=hint)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        self.peer = _text_addr(transport.get_extra_info("peername")) or self.addr
        self.local = _text_addr(transport.get_extra_info("sockname"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._shut(f"{exc}" if exc else "the server closed it")
        if not self._lost.done():
            self._lost.set_result(None)
        if self._on_lost is not None:
            self._on_lost(self)

    def pause_writing(self) -> None:
        self.writable = False
        self._writable.clear()

    def resume_writing(self) -> None:
        self.writable = True
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        hot = self._hot
        try:
            for frame in self._reader.feed(data):
                # A JSON header and no body, while sends are under way: most likely the answer to one.
                if hot.waiting and int.from_bytes(frame[:4], "big") == len(frame) - 4:
                    try:
                        quick = _decode_answer(frame[4:])
                    except HOT_ERRORS:
                        self._received(decode(frame))
                        continue
                    if quick.flag & 1 and quick.opaque >= FIRST_OPAQUE:
                        hot.resolve(quick)
                        continue
                self._received(decode(frame))
        except WireError as error:
            log.warning("closing the connection to %s: it sent what cannot be read: %s", self.addr, error)
            self._abort(f"the server sent what cannot be read ({error})")

    def _received(self, cmd: Command) -> None:
        if not cmd.is_response:
            self._serve(cmd)
        elif cmd.opaque >= FIRST_OPAQUE:
            self._hot.resolve(from_command(cmd))
        else:
            answer = self._pending.get(cmd.opaque)
            # No entry: the answer came after its timeout, and nobody waits for it any more.
            if answer is not None and not answer.done():
                answer.set_result(cmd)

    def _serve(self, cmd: Command) -> None:
        if self._on_request is None:
            self._answer(cmd, _unsupported(cmd))
            return
        if len(self._serving) >= MAX_SERVED_AT_ONCE:
            log.warning("%s from %s not served: too many are under way", request_name(cmd.code), self.addr)
            self._answer(
                cmd, cmd.reply(ResponseCode.SYSTEM_BUSY, remark="the client is busy; try again later")
            )
            return
        try:
            result = self._on_request(self, cmd)
        except Exception as error:
            self._answer(cmd, _error_reply(cmd, error))
            return
        if not inspect.isawaitable(result):
            self._answer(cmd, result)
            return
        task = asyncio.ensure_future(result)
        self._serving.add(task)
        task.add_done_callback(lambda done: self._served(cmd, done))

    def _served(self, cmd: Command, task: asyncio.Future[Command | None]) -> None:
        self._serving.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._answer(cmd, task.result())
        elif isinstance(error, Exception):
            self._answer(cmd, _error_reply(cmd, error))

    def _answer(self, cmd: Command, reply: Command | None) -> None:
        if reply is None or cmd.is_oneway or self.closed:
            return
        if self._buffered_bytes() > WRITE_HARD_BYTES:
            log.warning("closing the connection to %s: it asks but does not read the answers", self.addr)
            self._abort("the server does not read our answers")
            return
        self._write(encode(reply))

    def _numbered_frame(self, cmd: Command) -> bytes:
        if self.closed:
            raise self._closed_error("connect again; the request was not sent")
        self._opaque = (self._opaque + 1) % FIRST_OPAQUE
        cmd.opaque = self._opaque
        try:
            return encode(cmd)
        except WireError as error:
            raise SendRefused(f"{request_name(cmd.code)} cannot be sent: {error}", addr=self.addr) from error

    def _write(self, frame: bytes) -> None:
        """Frames of one turn of the loop leave in one system call."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)
        self._out_bytes += len(frame)
        if self._out_bytes > WRITE_HIGH_BYTES:
            self._flush()

    def _flush(self) -> None:
        out = self._out
        if out:
            if self._transport is not None and not self.closed:
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()
            self._out_bytes = 0

    def _buffered_bytes(self) -> int:
        below = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return below + self._out_bytes

    async def _drain_until(self, cmd: Command, deadline: float, timeout_s: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._writable.wait()
        except TimeoutError:
            raise RequestTimeout(
                f"{request_name(cmd.code)} was not sent within {timeout_s:g} s: {self.addr} does not read "
                "what was already sent",
                addr=self.addr,
                hint="the server is overloaded or stuck; the request was not processed",
            ) from None

    def _expire(self, answer: asyncio.Future[Command], code: int, timeout_s: float) -> None:
        if not answer.done():
            what = f"{self.addr} did not answer {request_name(code)} within {timeout_s:g} s"
            answer.set_exception(RequestTimeout(what, addr=self.addr))

    def _expire_hot(self, answer: asyncio.Future[Answer], timeout_s: float) -> None:
        what = f"{self.addr} did not answer {RequestCode.SEND_MESSAGE_V2.name} within {timeout_s:g} s"
        answer.set_exception(RequestTimeout(what, addr=self.addr))


class ChannelPool:
    """One channel per address, connected when first asked for and again after it died."""

    def __init__(
        self,
        *,
        on_request: OnRequest | None = None,
        on_lost: OnLost | None = None,
        connect_timeout_s: float = DEFAULT_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._on_request = on_request
        self._on_lost = on_lost
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._closed = False

    def peek(self, addr: str) -> Channel | None:
        """The living channel to an address, if there is one; never connects."""
        channel = self._channels.get(addr)
        return None if channel is None or channel.closed else channel

    async def get(self, addr: str) -> Channel:
        """The channel to an address. Callers that come while it is being connected share the attempt."""
        channel = self._channels.get(addr)
        if channel is not None and not channel.closed:
            return channel
        if self._closed:
            raise ConnectionClosed(f"not connecting to {addr}: the channels were closed", addr=addr, hint="")
        task = self._connecting.get(addr)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(addr), name=f"connect-{addr}")
            self._connecting[addr] = task
            task.add_done_callback(lambda done: self._connected(addr, done))
        # One caller that gives up must not fail the attempt for the others.
        return await asyncio.shield(task)

    async def request(self, addr: str, cmd: Command, timeout_s: float = DEFAULT_TIMEOUT_S) -> Command:
        channel = self.peek(addr) or await self.get(addr)
        return await channel.request(cmd, timeout_s)

    async def oneway(self, addr: str, cmd: Command) -> None:
        channel = self.peek(addr) or await self.get(addr)
        channel.oneway(cmd)

    def drop(self, addr: str) -> None:
        """Closes the channel to an address; the next `get` connects again."""
        channel = self._channels.pop(addr, None)
        if channel is not None:
            channel.close()

    async def close(self) -> None:
        self._closed = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        late = await asyncio.gather(*connecting, return_exceptions=True)
        channels = [*self._channels.values(), *(made for made in late if isinstance(made, Channel))]
        self._channels.clear()
        await asyncio.gather(*(channel.aclose() for channel in channels))

    async def _connect(self, addr: str) -> Channel:
        return await Channel.connect(
            addr,
            on_request=self._on_request,
            on_lost=self._forget,
            timeout_s=self._connect_timeout_s,
            tls=self._tls,
        )

    def _connected(self, addr: str, task: asyncio.Task[Channel]) -> None:
        self._connecting.pop(addr, None)
        if task.cancelled() or task.exception() is not None:
            return
        channel = task.result()
        if not self._closed and not channel.closed:
            self._channels[addr] = channel

    def _forget(self, channel: Channel) -> None:
        if self._channels.get(channel.addr) is channel:
            del self._channels[channel.addr]
        if self._on_lost is not None:
            self._on_lost(channel)


def _unsupported(cmd: Command) -> Command:
    remark = f" request type {cmd.code} not supported"
    return cmd.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)


def _error_reply(cmd: Command, error: Exception) -> Command:
    if isinstance(error, RequestError):
        return cmd.reply(error.code, remark=error.remark)
    if not isinstance(error, WireError):
        log.exception("serving %s failed", request_name(cmd.code), exc_info=error)
    return cmd.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def _text_addr(name: object) -> str:
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    host, port = str(name[0]), name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
