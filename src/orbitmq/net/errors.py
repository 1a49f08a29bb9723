"""Errors of the network room.

Two families that must not be mixed up: `RemotingError` is raised to a *caller* whose request did not get
an answer (the peer was unreachable, silent, or hung up), and `RequestError` is raised by a *handler* to
answer a request with an error code.
"""

from __future__ import annotations


class RemotingError(Exception):
    """A request could not be completed over the network.

    `retryable` tells whether sending the same request again (perhaps to another address) can succeed;
    `hint` says what a person can do about it.
    """

    retryable: bool = True
    default_hint: str = "check that the address is right and that the server is running"

    def __init__(self, what: str, *, addr: str = "", hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.addr = addr
        self.hint = self.default_hint if hint is None else hint

    def __str__(self) -> str:
        return f"{self.what}; {self.hint}" if self.hint else self.what


class ConnectFailed(RemotingError):
    """No TCP connection could be made, so the request was certainly not processed."""


class RequestTimeout(RemotingError):
    """The peer did not answer in time. The request may or may not have been processed."""

    default_hint = (
        "the server may be overloaded or the timeout too short; the request may have been processed"
    )


class ConnectionClosed(RemotingError):
    """The connection ended before the answer came. The request may or may not have been processed."""

    default_hint = "connect again; the request may have been processed before the connection ended"


class SendRefused(RemotingError):
    """The request can never be sent as it is (for example, it is larger than a frame may be)."""

    retryable = False
    default_hint = "make the request smaller"


class RequestError(Exception):
    """Raised by a handler: answer the request with this response code and remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark
