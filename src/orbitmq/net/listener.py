"""A listening socket and the connections it accepted."""

from __future__ import annotations

import asyncio
import logging
import socket
import time

from orbitmq.net.connection import Connection, Service
from orbitmq.net.limits import Limits

log = logging.getLogger("orbitmq.net")


def bind_socket(host: str, port: int) -> socket.socket:
    """Takes the port (0: any free one) without accepting anything yet, so that its number is known early."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise OSError(
            error.errno,
            f"cannot listen on {host or '*'}:{port}: {error.strerror}; is another server running there?",
        ) from error
    return bound


class ConnectionRegistry:
    """The connections of one listener and the memory their unfinished frames hold."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.connections: set[Connection] = set()
        self.partial_bytes = 0
        self.now = time.monotonic

    def admit(self, conn: Connection) -> bool:
        if len(self.connections) >= self._limits.max_connections:
            return False
        self.connections.add(conn)
        return True

    def forget(self, conn: Connection, partial: int) -> None:
        self.partial_bytes -= partial
        self.connections.discard(conn)

    def idle(self) -> list[Connection]:
        before = self.now() - self._limits.idle_seconds
        return [conn for conn in self.connections if conn.last_active < before]


class Listener:
    """Accepts connections for a service; may listen on several ports with one set of limits."""

    def __init__(self, service: Service, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.registry = ConnectionRegistry(self.limits)
        self._service = service
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        return await self.start_on(bind_socket(host, port))

    async def start_on(self, bound: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(self._service, self.limits, self.registry), sock=bound, backlog=1024
        )
        self._servers.append(server)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="idle-sweeper")
        return int(server.sockets[0].getsockname()[1])

    def stop_accepting(self) -> None:
        for server in self._servers:
            server.close()

    async def stop(self) -> None:
        """Closes the port first, then lets what is already answered reach the peers."""
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
        for conn in list(self.registry.connections):
            conn.close()
        for _ in range(50):
            if not self.registry.connections:
                break
            await asyncio.sleep(0.01)
        for conn in list(self.registry.connections):
            conn.abort()
        self._servers.clear()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.limits.sweep_seconds)
            for conn in self.registry.idle():
                log.info("%s closed: silent for %.0f s", conn.peer, self.limits.idle_seconds)
                if conn.congested or conn.closed:
                    conn.abort()  # it takes no answers, so it would never be done with them
                else:
                    conn.close()
