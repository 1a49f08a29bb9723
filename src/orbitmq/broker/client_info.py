"""A client as the broker sees it: an identity on a connection, alive as long as it is heard of."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from orbitmq.wire.command import Command

# Four heartbeats may be lost before a client counts as gone.
CLIENT_EXPIRE_MS: Final = 120_000


class Channel(Protocol):
    """A connection. The tables compare channels by identity and hand them out, but never write to them."""

    @property
    def peer(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def oneway(self, command: Command, /) -> None: ...
    def close(self) -> None: ...


class Client:
    """One client instance on one connection, in one producer or consumer group."""

    __slots__ = ("client_id", "conn", "joined_ms", "language", "last_seen_ms", "version")

    def __init__(self, conn: Channel, client_id: str, language: str, version: int, now_ms: int) -> None:
        self.conn = conn
        self.client_id = client_id
        self.language = language
        self.version = version
        self.joined_ms = now_ms
        self.last_seen_ms = now_ms

    def seen(self, client_id: str, language: str, version: int, now_ms: int) -> None:
        self.client_id = client_id
        self.language = language
        self.version = version
        self.last_seen_ms = now_ms

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.client_id!r}, {self.conn.peer})"


class GroupChange(NamedTuple):
    """The members or topics of a consumer group changed: its connections should rebalance now."""

    group: str
    conns: tuple[Channel, ...]
