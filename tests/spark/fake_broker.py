"""A name server and broker in a thread, whose store the test writes by hand: limits, losses and slaves at will."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, decode, encode
from orbitmq.wire.fastjson import dumps
from orbitmq.wire.frame import FrameReader

Record = Callable[[int], bytes]


class FakeBroker:
    """One topic on one broker. `first` and `end` bound what it has; `record(offset)` makes a message."""

    def __init__(
        self,
        record: Record,
        *,
        end: int,
        first: int = 0,
        most: int = 32,
        topic: str = "orders",
        queues: int = 1,
    ) -> None:
        self.record, self.first, self.end, self.most = record, first, end, most
        self.topic, self.queues = topic, queues
        self.missing: set[int] = set()
        self.seen: list[Command] = []
        self.hang_up_after: int | None = None
        """Pulls answered before it closes the connection, once."""
        self.stays_away = False
        """Whether it takes no connection any more after that."""
        self.members: dict[int, str] | None = None
        """Addresses in the route; this one as master unless given."""
        self.committed: dict[tuple[str, int], int] = {}
        self.store_ms: Callable[[int], int] = lambda offset: 1000 * offset
        self.search: Callable[[int], int] | None = None
        self._server = socket.create_server(("127.0.0.1", 0))
        self.addr = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._hang_up()
        for thread in self._threads:
            thread.join(5)

    def _hang_up(self) -> None:
        # Only a shutdown wakes the threads that wait on these sockets.
        for opened in (self._server, *self._open):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def pulls(self) -> list[Command]:
        return [command for command in self.seen if command.code == RequestCode.PULL_MESSAGE]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        frames = FrameReader()
        with connection:
            try:
                while data := connection.recv(65536):
                    for frame in frames.feed(data):
                        command = decode(frame)
                        self.seen.append(command)
                        if self._hangs_up(command):
                            return
                        connection.sendall(encode(self._answer(command)))
            except OSError:
                return

    def _hangs_up(self, command: Command) -> bool:
        if self.hang_up_after is None or command.code != RequestCode.PULL_MESSAGE:
            return False
        self.hang_up_after -= 1
        if self.hang_up_after < 0:
            self.hang_up_after = None
            if self.stays_away:
                self._hang_up()
            return True
        return False

    def _answer(self, command: Command) -> Command:
        ext = command.ext
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if ext["topic"] != self.topic:
                return command.reply(ResponseCode.TOPIC_NOT_EXIST, "no route")
            return command.reply(body=self._route())
        if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return command.reply(body=dumps({"topicList": [self.topic]}))
        if command.code == RequestCode.GET_MIN_OFFSET:
            return command.reply(ext={"offset": str(self.first)})
        if command.code == RequestCode.GET_MAX_OFFSET:
            return command.reply(ext={"offset": str(self.end)})
        if command.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            assert self.search is not None
            return command.reply(ext={"offset": str(self.search(int(ext["timestamp"])))})
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.committed[ext["consumerGroup"], int(ext["queueId"])] = int(ext["commitOffset"])
            return command.reply()
        if command.code == RequestCode.PULL_MESSAGE:
            return self._pull(command, int(ext["queueOffset"]), int(ext["maxMsgNums"]))
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not in the script")

    def _pull(self, command: Command, offset: int, count: int) -> Command:
        bounds = {"minOffset": str(self.first), "maxOffset": str(self.end), "suggestWhichBrokerId": "0"}
        if offset == self.end:
            return command.reply(ResponseCode.PULL_NOT_FOUND, ext={**bounds, "nextBeginOffset": str(offset)})
        if not self.first <= offset < self.end:
            following = self.first if offset < self.first else self.end
            return command.reply(
                ResponseCode.PULL_OFFSET_MOVED, ext={**bounds, "nextBeginOffset": str(following)}
            )
        stop = min(offset + min(count, self.most), self.end)
        body = b"".join(self.record(i) for i in range(offset, stop) if i not in self.missing)
        code = ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY
        return command.reply(code, ext={**bounds, "nextBeginOffset": str(stop)}, body=body)

    def _route(self) -> bytes:
        members = {0: self.addr} if self.members is None else self.members
        broker = {"brokerAddrs": members, "brokerName": "broker-a", "cluster": "c"}
        queues = {
            "brokerName": "broker-a",
            "perm": 6,
            "readQueueNums": self.queues,
            "topicSysFlag": 0,
            "writeQueueNums": self.queues,
        }
        return dumps({"brokerDatas": [broker], "filterServerTable": {}, "queueDatas": [queues]})
