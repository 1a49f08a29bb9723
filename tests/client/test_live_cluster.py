"""The client against real servers that go away."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orbitmq.client import admin
from orbitmq.client.cluster import Cluster
from orbitmq.client.reader import offsets_at, read_range
from orbitmq.client.sender import Sender
from tests.support.server_process import BrokerProcess, OrbitProcess, ServerProcess, free_port

SMALL = {"mappedFileSizeCommitLog": 16 * 1024 * 1024}


async def _send(sender: Sender, topic: str, numbers: range) -> list[str]:
    receipts = [await sender.send(sender.prepare(topic, b"%d" % number)) for number in numbers]
    return [receipt.broker for receipt in receipts]


async def _bodies(cluster: Cluster, topic: str) -> list[int]:
    route = await cluster.route(topic, refresh=True)
    start, end = await offsets_at(cluster, route, "first"), await offsets_at(cluster, route, "last")
    return sorted([int(message.body) async for message in read_range(cluster, route, start, end)])


def test_sends_go_on_when_one_of_two_brokers_is_killed(tmp_path: Path) -> None:
    async def scenario(server: ServerProcess, other: BrokerProcess) -> None:
        async with Cluster(server.namesrv) as cluster:
            assert sorted(await admin.create_topic(cluster, "Both", read_queues=2, write_queues=2)) == [
                "broker-a",
                "broker-b",
            ]
            sender = Sender(cluster)
            assert set(await _send(sender, "Both", range(8))) == {"broker-a", "broker-b"}
            other.kill()
            assert set(await _send(sender, "Both", range(8, 16))) == {"broker-a"}
            other.restart()
            assert await _bodies(cluster, "Both") == list(range(16))

    with (
        ServerProcess(tmp_path, **SMALL) as server,
        BrokerProcess(tmp_path, server.namesrv, "broker-b", **SMALL) as other,
    ):
        asyncio.run(scenario(server, other))


def test_sends_go_on_without_any_name_server(tmp_path: Path) -> None:
    port = free_port()
    args = ["namesrv", "--port", str(port), "--data", str(tmp_path / "ns")]
    addr = f"127.0.0.1:{port}"

    async def scenario(namesrv: OrbitProcess) -> None:
        now = 0
        async with Cluster(addr, timeout_s=2, clock=lambda: now) as cluster:
            await admin.create_topic(cluster, "Kept")
            sender = Sender(cluster)
            await _send(sender, "Kept", range(4))
            namesrv.kill()
            now += 60_000
            await _send(sender, "Kept", range(4, 8))
            namesrv.start()

    with (
        OrbitProcess(args, ready="OrbitMQ name server ready") as namesrv,
        BrokerProcess(tmp_path, addr, "broker-a", **SMALL),
    ):
        asyncio.run(scenario(namesrv))
