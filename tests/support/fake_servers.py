"""Servers that answer from a script: what a client does is seen without any broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from orbitmq.net.connection import Connection
from orbitmq.net.listener import Listener
from orbitmq.net.service import Handler, RequestService
from orbitmq.wire import fastjson
from orbitmq.wire.codes import OrbitCode, RequestCode, ResponseCode
from orbitmq.wire.command import Command

Answer = Callable[[Command], "Command | None"]


class FakeServer:
    """Remembers every request; answers by code, and with "not supported" what it has no answer for."""

    def __init__(self, answers: Mapping[int, Handler]) -> None:
        self.seen: list[Command] = []
        self.answers = dict(answers)
        self.addr = ""
        self._listener: Listener | None = None
        self._service: RequestService | None = None

    async def start(self) -> None:
        self._service = RequestService({code: self._recording(code) for code in (*RequestCode, *OrbitCode)})
        self._listener = Listener(self._service)
        port = await self._listener.start("127.0.0.1", 0)
        self.addr = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        if self._service is not None and self._listener is not None:
            await self._service.stop_tasks()
            await self._listener.stop()

    def _recording(self, code: int) -> Handler:
        def handle(conn: Connection, command: Command) -> Any:
            self.seen.append(command)
            answer = self.answers.get(code)
            if answer is None:
                return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="not in the script")
            return answer(conn, command)

        return handle

    def requests(self, code: int) -> list[Command]:
        return [command for command in self.seen if command.code == code]


def reply(
    code: int = 0, *, ext: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None
) -> Handler:
    """The same answer every time."""
    return lambda conn, command: command.reply(code, remark, ext, body)


def silent(conn: Connection, command: Command) -> None:
    """Takes a request and never answers it."""


def route_body(
    brokers: Mapping[str, str], *, queues: int = 4, perm: int = 6, slaves: Mapping[int, str] | None = None
) -> bytes:
    """TopicRouteData with one master per broker, and the same slaves for each."""
    return fastjson.dumps(
        {
            "brokerDatas": [
                {"brokerAddrs": {0: addr, **(slaves or {})}, "brokerName": name, "cluster": "DefaultCluster"}
                for name, addr in brokers.items()
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": name,
                    "perm": perm,
                    "readQueueNums": queues,
                    "topicSysFlag": 0,
                    "writeQueueNums": queues,
                }
                for name in brokers
            ],
        }
    )


def cluster_body(brokers: Mapping[str, str]) -> bytes:
    """ClusterInfo with one master per broker."""
    return fastjson.dumps(
        {
            "brokerAddrTable": {
                name: {"brokerAddrs": {0: addr}, "brokerName": name, "cluster": "DefaultCluster"}
                for name, addr in brokers.items()
            },
            "clusterAddrTable": {"DefaultCluster": list(brokers)},
        }
    )


class FakeCluster:
    """One scripted name server and scripted brokers `broker-a`, `broker-b`, …"""

    def __init__(self, namesrv: FakeServer, brokers: dict[str, FakeServer]) -> None:
        self.namesrv = namesrv
        self.brokers = brokers

    @property
    def addrs(self) -> dict[str, str]:
        return {name: broker.addr for name, broker in self.brokers.items()}


@asynccontextmanager
async def fake_cluster(
    *broker_answers: Mapping[int, Handler], topics: tuple[str, ...] = ("TopicA",), queues: int = 4
) -> AsyncIterator[FakeCluster]:
    """A cluster in which every topic lives on every broker."""
    brokers = {f"broker-{chr(97 + i)}": FakeServer(answers) for i, answers in enumerate(broker_answers)}
    for broker in brokers.values():
        await broker.start()
    addrs = {name: broker.addr for name, broker in brokers.items()}

    def route(conn: Connection, command: Command) -> Command:
        if command.ext["topic"] not in topics:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        return command.reply(body=route_body(addrs, queues=queues))

    namesrv = FakeServer(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: route,
            RequestCode.GET_BROKER_CLUSTER_INFO: reply(body=cluster_body(addrs)),
        }
    )
    await namesrv.start()
    try:
        yield FakeCluster(namesrv, brokers)
    finally:
        await asyncio.gather(namesrv.stop(), *(broker.stop() for broker in brokers.values()))
