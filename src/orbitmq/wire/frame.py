"""Cuts a byte stream into frames.

A frame on the wire is a 4-byte big-endian length followed by that many bytes. The reader holds at most one
unfinished frame, refuses a length before taking memory for it, and touches each byte a constant number of
times however small the pieces are.
"""

from __future__ import annotations

from typing import Final

from orbitmq.wire.errors import FrameError

# Java counts the length field too; a frame above this closes the connection on either side.
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
LENGTH_BYTES: Final = 4
# Codec byte and header length are always present, so no frame is shorter.
MIN_CONTENT_BYTES: Final = 4

_FOREIGN_STARTS: Final = (
    (b"\x16\x03", "a TLS handshake; this port expects plain text, or TLS is not enabled here"),
    (b"GET ", "an HTTP request; this port speaks the remoting protocol"),
    (b"POST", "an HTTP request; this port speaks the remoting protocol"),
    (b"HEAD", "an HTTP request; this port speaks the remoting protocol"),
    (b"PRI ", "an HTTP/2 (gRPC) preface; this port speaks the remoting protocol"),
)


class FrameReader:
    """Turns chunks of a stream into whole frames, each without its length prefix."""

    __slots__ = ("_limit", "_need", "_rest")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit = max_frame_bytes - LENGTH_BYTES
        self._rest = bytearray()
        # Bytes of _rest needed before looking at it again: keeps a large frame in small pieces linear.
        self._need = LENGTH_BYTES

    @property
    def pending_bytes(self) -> int:
        """Bytes held of a frame that is not complete yet."""
        return len(self._rest)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take the next chunk of the stream and return the frames it completes, oldest first."""
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._need:
                return []
            data = bytes(rest)
            rest.clear()
        elif type(data) is not bytes:
            data = bytes(data)
        frames: list[bytes] = []
        pos, size = 0, len(data)
        limit = self._limit
        while size - pos >= LENGTH_BYTES:
            start = pos + LENGTH_BYTES
            length = int.from_bytes(data[pos:start], "big")
            if not MIN_CONTENT_BYTES <= length <= limit:
                raise FrameError(explain_length(data[pos:start], limit), frames)
            end = start + length
            if end > size:
                self._need = end - pos
                rest += data[pos:]
                return frames
            frames.append(data[start:end])
            pos = end
        self._need = LENGTH_BYTES
        if pos < size:
            rest += data[pos:]
        return frames


def explain_length(prefix: bytes, limit: int) -> str:
    """Why these four bytes cannot be a frame length, in words that help to find the peer's mistake."""
    for start, meaning in _FOREIGN_STARTS:
        if prefix.startswith(start):
            return f"the stream looks like {meaning}"
    length = int.from_bytes(prefix, "big")
    if length < MIN_CONTENT_BYTES:
        return f"frame length {length} is below the {MIN_CONTENT_BYTES} every frame has; close the connection"
    return (
        f"frame length {length} is above the limit of {limit} bytes; close the connection, "
        "and send smaller bodies or raise the limit on both sides"
    )
