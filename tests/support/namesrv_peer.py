"""A name server under test and a client that talks to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from orbitmq.config import NamesrvConfig
from orbitmq.namesrv.service import NameServer
from orbitmq.net.channel import Channel
from orbitmq.wire import register_body
from orbitmq.wire.bodies import RegisterBrokerBody
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import Command, request


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class Peer:
    """A client of the name server under test."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    async def ask(self, code: int, body: bytes = b"", version: int = 399, **ext: str) -> Command:
        cmd = request(code, dict(ext), body)
        cmd.version = version
        return await self.channel.request(cmd)

    async def ok(self, code: int, body: bytes = b"", version: int = 399, **ext: str) -> Command:
        reply = await self.ask(code, body, version, **ext)
        assert reply.code == 0, reply.remark
        return reply

    async def register(
        self,
        name: str = "broker-a",
        broker_id: int = 0,
        addr: str = "127.0.0.1:10911",
        topics: tuple[str, ...] = ("TopicA",),
        counter: int = 1,
        *,
        compressed: bool = False,
        cluster: str = "DefaultCluster",
        sys_flag: int = 0,
        version: int = 407,
        crc: int | None = None,
        body: bytes | None = None,
    ) -> Command:
        if body is None:
            body = wrapper_body(topics, counter, sys_flag, compressed)
        return await self.ask(
            RequestCode.REGISTER_BROKER,
            body,
            version,
            brokerName=name,
            brokerAddr=addr,
            clusterName=cluster,
            haServerAddr=addr.rpartition(":")[0] + ":10912",
            brokerId=str(broker_id),
            compressed="true" if compressed else "false",
            bodyCrc32=str(register_body.crc32(body) if crc is None else crc),
        )

    async def route(self, topic: str) -> dict[str, Any]:
        reply = await self.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, version=407, topic=topic)
        route: dict[str, Any] = json.loads(reply.body)
        return route


def topic_config(name: str, sys_flag: int = 0) -> dict[str, object]:
    return {
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": sys_flag,
        "writeQueueNums": 4,
    }


def wrapper_body(topics: tuple[str, ...], counter: int, sys_flag: int = 0, compressed: bool = False) -> bytes:
    plain = msgspec.json.encode(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": {"counter": counter, "timestamp": 1700000000000},
                "topicConfigTable": {name: topic_config(name, sys_flag) for name in topics},
            },
        }
    )
    if not compressed:
        return plain
    return register_body.encode(msgspec.json.decode(plain, type=RegisterBrokerBody), compressed=True)


def make_config(tmp_path: Path) -> NamesrvConfig:
    config, _ = NamesrvConfig.from_properties(
        {
            "listenHost": "127.0.0.1",
            "listenPort": "0",
            "kvConfigPath": str(tmp_path / "kvConfig.json"),
            "configStorePath": str(tmp_path / "namesrv.properties"),
        }
    )
    return config


@asynccontextmanager
async def served(config: NamesrvConfig, clock: Clock | None = None) -> AsyncIterator[tuple[NameServer, Peer]]:
    server = NameServer(config, clock)
    port = await server.start()
    channel = await Channel.connect(f"127.0.0.1:{port}")
    try:
        yield server, Peer(channel)
    finally:
        await channel.aclose()
        await server.stop()
