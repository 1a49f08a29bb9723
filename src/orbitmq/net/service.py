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

Handler = Callable[[Connection, Command], "Command | None | Awaitable[Command | None]"]


class RequestService:
    """Answers requests by a table of handlers."""

    def __init__(self, handlers: dict[int, Handler]) -> None:
        self.handlers = handlers
        self._tasks: set[asyncio.Task[None]] = set()

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
            task = asyncio.ensure_future(self._finish(conn, command, result))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self.answer(conn, command, result)

    async def _finish(self, conn: Connection, command: Command, result: Awaitable[Command | None]) -> None:
        try:
            reply = await result
        except Exception as error:
            reply = error_reply(command, error)
        self.answer(conn, command, reply)

    @staticmethod
    def answer(conn: Connection, command: Command, reply: Command | None) -> None:
        if reply is not None and not command.flag & 2:
            conn.send(encode(reply))

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
