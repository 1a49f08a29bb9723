"""Answers that one event gives to several requests: what goes to the same connection goes there with one write.

A write, with the waking of whoever reads it, is the dearest part of a lone answer.
"""

from __future__ import annotations

from typing import Final

from orbitmq.net.connection import Connection

MOST_BYTES: Final = 1 << 18
"""What is kept for one connection; more goes out at once, so that one that reads too little is noticed."""


class Together:
    __slots__ = ("_connections",)

    def __init__(self) -> None:
        self._connections: list[Connection] = []

    def collect(self, conn: Connection) -> None:
        """What is sent to this connection is kept until `release`, or till the end of its read if it is in one."""
        if conn.collect():
            self._connections.append(conn)

    def sent(self, conn: Connection) -> None:
        if conn.collected_bytes > MOST_BYTES and conn in self._connections:
            self._connections.remove(conn)
            conn.release()

    def release(self) -> None:
        if self._connections:
            connections, self._connections = self._connections, []
            for conn in connections:
                conn.release()
