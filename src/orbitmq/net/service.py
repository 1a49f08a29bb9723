"""The general way from a frame to its answer: decode, look up the handler, map errors, encode.

Services with hot paths override `frame` and fall back to this for everything else.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from orbitmq.net.connection import Connection
from orbitmq.net.errors import RequestError
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.command import Command, decode, encode
from orbitmq.wire.errors import BadHeader, WireError

log = logging.getLogger("orbitmq.net")

Handler = Callable[[Connection, Command], "Command | Awaitable[Command | None] | None"]


class RequestService:
    """Answers requests by a table of handlers."""

    def __init__(self, handlers: dict[int, Handler]) -> None:
        self.handlers = handlers
        self._tasks: set[asyncio.Future[Command | None]] = set()

    def frame(self, conn: Connection, data: bytes, start: int, stop: int) -> None:
        try:
            command = decode(data[start:stop])
        except WireError as error:
            log.warning("%s closed: %s", conn.peer, error)
            conn.abort()
            return
        if command.flag & 1:
            conn.answered(command)
            return
        self.command(conn, command)

    def bulk(self, conn: Connection, data: bytes, start: int, stop: int) -> int:
        return start

    def command(self, conn: Connection, command: Command) -> None:
        handler = self.handlers.get(command.code)
        if handler is None:
            self.answer(conn, command, self.unknown(command))
            return
        try:
            result = handler(conn, command)
        except Exception as error:
            self.answer(conn, command, error_reply(command, error))
            return
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(result)
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._finished(conn, command, done))
        else:
            self.answer(conn, command, result)

    def _finished(self, conn: Connection, command: Command, task: asyncio.Future[Command | None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.answer(conn, command, task.result())
        elif isinstance(error, Exception):
            self.answer(conn, command, error_reply(command, error))

    @staticmethod
    def answer(conn: Connection, command: Command, reply: Command | None) -> None:
        if reply is None or command.flag & 2:
            return
        try:
            frame = encode(reply)
        except WireError as error:  # the answer does not fit into a frame
            frame = encode(command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
        conn.send(frame)

    @staticmethod
    def unknown(command: Command) -> Command:
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported"
        )

    def read_done(self, conn: Connection) -> None:
        return

    def connection_lost(self, conn: Connection) -> None:
        return

    async def stop_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def error_reply(command: Command, error: Exception) -> Command:
    if isinstance(error, RequestError):
        return command.reply(error.code, remark=error.remark)
    if isinstance(error, BadHeader | WireError):
        return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
    log.exception("request %d failed", command.code, exc_info=error)
    return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
