"""One blocking connection to a server: requests go out, answers come back in whatever order the server likes.

Spark runs a source in plain worker processes, one task at a time, so there is nothing an event loop could do
meanwhile. Bodies are handed on where they were received: a page of megabytes is never copied.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from orbitmq.spark.errors import BrokerLost
from orbitmq.wire import header_binary, header_json
from orbitmq.wire.command import CODEC_BINARY, FLAG_RESPONSE, Command, encode
from orbitmq.wire.errors import WireError
from orbitmq.wire.frame import LENGTH_BYTES, MAX_FRAME_BYTES, MIN_CONTENT_BYTES, explain_length

if TYPE_CHECKING:
    import numpy.typing as npt

_MARK_BYTES: Final = 4
_HEADER_MASK: Final = 0xFFFFFF
_MOST_OPAQUE: Final = 0x7FFFFFFF


class Answer(NamedTuple):
    code: int
    ext: dict[str, str]
    remark: str | None
    body: npt.NDArray[np.uint8]


class Connection:
    """Close it after use. Any error leaves it unusable: answers may be missing then."""

    def __init__(self, addr: str, timeout_s: float) -> None:
        self.addr = addr
        host, _, port = addr.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        except (OSError, ValueError) as error:
            raise BrokerLost(f"{addr} cannot be reached: {error}") from error
        self._socket.settimeout(timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timeout_s = timeout_s
        self._opaques: Iterator[int] = itertools.count(1)
        self._early: dict[int, Answer] = {}
        self._awaited: set[int] = set()

    def send(self, *commands: Command) -> list[int]:
        """Sends requests with one write; the numbers to `receive` their answers by."""
        opaques: list[int] = []
        frames: list[bytes] = []
        for command in commands:
            command.opaque = next(self._opaques) & _MOST_OPAQUE
            opaques.append(command.opaque)
            frames.append(encode(command))
        try:
            self._socket.sendall(b"".join(frames))
        except OSError as error:
            raise self._lost(error) from error
        self._awaited.update(opaques)
        return opaques

    def receive(self, opaque: int) -> Answer:
        """The answer to one request; answers to others that come first are kept for their turn."""
        self._awaited.discard(opaque)
        while opaque not in self._early:
            self._read_frame(opaque)
        return self._early.pop(opaque)

    def forget(self, opaque: int) -> None:
        """Nobody will ask for this answer any more."""
        self._awaited.discard(opaque)
        self._early.pop(opaque, None)

    def ask(self, command: Command) -> Answer:
        return self.receive(self.send(command)[0])

    def close(self) -> None:
        self._socket.close()

    def _read_frame(self, wanted: int) -> None:
        prefix = self._exactly(LENGTH_BYTES + _MARK_BYTES).tobytes()
        length = int.from_bytes(prefix[:LENGTH_BYTES], "big")
        if not MIN_CONTENT_BYTES <= length <= MAX_FRAME_BYTES:
            raise BrokerLost(
                f"{self.addr} does not speak the protocol: {explain_length(prefix[:LENGTH_BYTES], MAX_FRAME_BYTES)}"
            )
        mark = int.from_bytes(prefix[LENGTH_BYTES:], "big")
        header_bytes = mark & _HEADER_MASK
        body_bytes = length - _MARK_BYTES - header_bytes
        if body_bytes < 0:
            raise BrokerLost(f"{self.addr} sent a bad answer: its header ends behind its frame")
        read = header_binary.decode if mark >> 24 == CODEC_BINARY else header_json.decode
        header = self._exactly(header_bytes).tobytes()
        body = self._exactly(body_bytes)  # by itself: numbers in it lie where the machine likes them
        try:
            code, flag, opaque, ext, remark, _, _ = read(header)
        except WireError as error:
            raise BrokerLost(f"{self.addr} sent a bad answer: {error}") from error
        # Servers also send requests of their own; a reader has no use for any of them.
        if flag & FLAG_RESPONSE and (opaque == wanted or opaque in self._awaited):
            self._early[opaque] = Answer(code, ext, remark, body)

    def _exactly(self, size: int) -> npt.NDArray[np.uint8]:
        buffer = np.empty(size, dtype=np.uint8)
        view = buffer.data
        have = 0
        while have < size:
            try:
                got = self._socket.recv_into(view[have:])
            except OSError as error:
                raise self._lost(error) from error
            if not got:
                raise BrokerLost(f"{self.addr} closed the connection")
            have += got
        return buffer

    def _lost(self, error: OSError) -> BrokerLost:
        if isinstance(error, TimeoutError):
            return BrokerLost(f"{self.addr} did not answer within {self._timeout_s:g} s")
        return BrokerLost(f"the connection to {self.addr} broke: {error}")
