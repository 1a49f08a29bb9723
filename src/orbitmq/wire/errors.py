"""What can go wrong with bytes from a peer."""

from __future__ import annotations

from collections.abc import Sequence


class WireError(Exception):
    """The bytes do not follow the protocol."""


class FrameError(WireError):
    """A frame length is impossible or above the limit; nothing after it on the stream can be trusted.

    `frames` holds the good frames that came before the bad one in the same read, so that a peer's last valid
    requests are not lost with the connection.
    """

    def __init__(self, message: str, frames: Sequence[bytes] = ()) -> None:
        super().__init__(message)
        self.frames = list(frames)


class BadHeader(WireError):
    """A header lacks a field or holds a value of the wrong kind; only this one request is refused."""


class BadBody(WireError):
    """A request or response body is not what its code promises; only this one request is refused."""
