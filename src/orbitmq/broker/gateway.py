"""Where frames enter the broker: the hot requests by their first bytes, all others by the table of handlers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from orbitmq.broker import admin, client_handlers
from orbitmq.broker.pull import PullHandler
from orbitmq.broker.send import SendHandler
from orbitmq.broker.send_hot import HotSend
from orbitmq.net.connection import Connection
from orbitmq.net.service import Handler, RequestService
from orbitmq.wire.codes import RequestCode

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

Hot = Callable[[Connection, bytes, int, int, int], None]

# A JSON header begins with its code in every client we know of; others take the general way.
_HEAD_BYTES = 12


class Gateway(RequestService):
    def __init__(self, broker: Broker, sends: SendHandler) -> None:
        super().__init__({})
        self._broker = broker
        self.hot_send = HotSend(broker, super().frame)
        self.pulls = PullHandler(broker, super().frame)
        handlers: dict[int, Handler] = {
            RequestCode.SEND_MESSAGE: sends.handle,
            RequestCode.SEND_MESSAGE_V2: sends.handle,
            RequestCode.SEND_BATCH_MESSAGE: sends.handle,
            RequestCode.PULL_MESSAGE: self.pulls.handle,
            RequestCode.LITE_PULL_MESSAGE: self.pulls.handle,
        }
        for table in (client_handlers.HANDLERS, admin.HANDLERS):
            handlers.update({code: _bound(handler, broker) for code, handler in table.items()})
        self.handlers = handlers
        self._hot: dict[bytes, Hot] = {
            b'{"code":310,': self.hot_send.v2,
            b'{"code":320,': self.hot_send.batch,
            b'{"code":10,"': self.hot_send.v1,
            b'{"code":11,"': self.pulls.hot,
        }

    def frame(self, conn: Connection, data: bytes, start: int, stop: int) -> None:
        # Byte 0 of the frame is the header's codec, the next three are its length.
        if not data[start]:
            hot = self._hot.get(data[start + 4 : start + 4 + _HEAD_BYTES])
            if hot is not None:
                header_end = start + 4 + (data[start + 1] << 16 | data[start + 2] << 8 | data[start + 3])
                if header_end <= stop:
                    hot(conn, data, start, header_end, stop)
                    return
        # The order of requests within a connection is kept: what is staged goes before anything else is looked at.
        self.hot_send.slow(conn, data, start, stop)

    def read_done(self, conn: Connection) -> None:
        self.hot_send.finish(conn)

    def connection_lost(self, conn: Connection) -> None:
        self._broker.connection_lost(conn)


def _bound(handler: Callable[..., Any], broker: Broker) -> Handler:
    return partial(handler, broker)
