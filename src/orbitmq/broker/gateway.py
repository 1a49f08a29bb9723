"""Where frames enter the broker: the hot requests by their first bytes, all others by the table of handlers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any

from orbitmq.broker import admin, client_handlers
from orbitmq.broker.pull import PullHandler
from orbitmq.broker.send import SendHandler
from orbitmq.broker.send_hot import HotSend
from orbitmq.net.connection import Connection
from orbitmq.net.service import Handler, RequestService
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import Command

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

Hot = Callable[[Connection, bytes, int, int, int], None]

# Codec and header length, then the header's first bytes: JSON headers begin with the code in every client we know of.
_HEAD = Struct(">I12s")
_HEAD_BYTES = _HEAD.size
_unpack_head = _HEAD.unpack_from
_FIRST_BINARY = 1 << 24
_PULL = b'{"code":11,"'


_SAVED = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    }
)


class Gateway(RequestService):
    def __init__(self, broker: Broker, sends: SendHandler) -> None:
        super().__init__({})
        self._broker = broker
        self.before_read: Callable[[], None] | None = None
        self.hot_send = HotSend(broker, super().frame)
        self.pulls = PullHandler(broker, super().frame)
        self.read_done = self.hot_send.finish  # type: ignore[method-assign]  # one call less for each read
        handlers: dict[int, Handler] = {
            RequestCode.SEND_MESSAGE: sends.handle,
            RequestCode.SEND_MESSAGE_V2: sends.handle,
            RequestCode.SEND_BATCH_MESSAGE: sends.handle,
            RequestCode.PULL_MESSAGE: self.pulls.handle,
            RequestCode.LITE_PULL_MESSAGE: self.pulls.handle,
        }
        for table in (client_handlers.HANDLERS, admin.HANDLERS):
            handlers.update({code: _bound(code, handler, broker) for code, handler in table.items()})
        self.handlers: dict[int, Handler] = handlers
        self._hot: dict[bytes, Hot] = {
            b'{"code":310,': self.hot_send.v2,
            b'{"code":320,': self.hot_send.batch,
            b'{"code":10,"': self.hot_send.v1,
            _PULL: self._pull,
        }

    def frame(self, conn: Connection, data: bytes, start: int, stop: int) -> None:
        if stop - start >= _HEAD_BYTES:
            mark, head = _unpack_head(data, start)
            if mark < _FIRST_BINARY and (hot := self._hot.get(head)) is not None:
                header_end = start + 4 + mark
                if header_end <= stop:
                    hot(conn, data, start, header_end, stop)
                    return
        # The order of requests within a connection is kept: what is staged goes before anything else is looked at.
        self.hot_send.slow(conn, data, start, stop)

    def add_hot(self, head: bytes, hot: Hot) -> None:
        """A room's own quick way for requests whose header begins with these twelve bytes."""
        self._hot[head] = hot

    def bulk(self, conn: Connection, data: bytes, start: int, stop: int) -> int:
        if self.before_read is not None:
            self.before_read()
        if data.startswith(_PULL, start + 8):  # the commonest of those that are no sends
            if start:  # else nothing has come before it in this read
                self.hot_send.finish(conn)
            return self.pulls.bulk(conn, data, start, stop)
        return self.hot_send.bulk(conn, data, start, stop)

    def _pull(self, conn: Connection, data: bytes, start: int, header_end: int, stop: int) -> None:
        # A pull sees what its connection sent before; it may also store a message, for which the log must be free.
        self.hot_send.finish(conn)
        self.pulls.hot(conn, data, start, header_end, stop)

    def connection_lost(self, conn: Connection) -> None:
        self._broker.connection_lost(conn)


def _bound(code: int, handler: Callable[..., Any], broker: Broker) -> Handler:
    return partial(_saved, handler, broker) if code in _SAVED else partial(handler, broker)


async def _saved(
    handler: Callable[..., Command], broker: Broker, conn: Connection, command: Command
) -> Command:
    """Done means that neither a crash nor another master undoes it."""
    reply = handler(broker, conn, command)
    await broker.saved()
    await broker.replication.tables_copied()
    return reply
