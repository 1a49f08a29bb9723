"""Connections that break in the middle of a frame, are slow, or swallow everything, under traffic."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

import orbitmq
from orbitmq.net.connection import Connection
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import Command
from orbitmq.wire.topics import RETRY_PREFIX
from tests.client.faults.traffic import SENDERS, Traffic
from tests.support.consuming import run, until
from tests.support.cut_proxy import CutProxy, cut_proxy
from tests.support.fake_servers import FakeServer, cluster_body, reply, route_body
from tests.support.server_process import BrokerProcess, ServerProcess

LIMIT_S = 40.0
QUEUES = 2
SMALL: dict[str, str | int] = {"mappedFileSizeCommitLog": 16 << 20}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of two brokers by name."""
    directory: Path = tmp_path_factory.mktemp("wires")
    with (
        ServerProcess(directory, **SMALL) as server,
        BrokerProcess(directory, server.namesrv, "broker-b", **SMALL) as other,
    ):
        yield {"broker-a": server.broker_addr, "broker-b": other.broker_addr}


@asynccontextmanager
async def wired(brokers: dict[str, str]) -> AsyncIterator[tuple[str, dict[str, CutProxy]]]:
    """A name server that only knows the brokers' proxies, and these by the brokers' names."""
    async with cut_proxy(brokers["broker-a"]) as a, cut_proxy(brokers["broker-b"]) as b:
        proxies = {"broker-a": a, "broker-b": b}
        addrs = {name: proxy.addr for name, proxy in proxies.items()}

        def route(conn: Connection, command: Command) -> Command:
            queues = 1 if command.ext["topic"].startswith(RETRY_PREFIX) else QUEUES
            return command.reply(body=route_body(addrs, queues=queues))

        names = FakeServer(
            {
                RequestCode.GET_ROUTEINFO_BY_TOPIC: route,
                RequestCode.GET_BROKER_CLUSTER_INFO: reply(body=cluster_body(addrs)),
            }
        )
        await names.start()
        try:
            yield names.addr, proxies
        finally:
            await names.stop()


def test_connections_are_cut_in_the_middle_of_frames(brokers: dict[str, str]) -> None:
    async def scenario() -> None:
        random = Random(5)
        async with wired(brokers) as (namesrv, proxies), orbitmq.connect(namesrv) as mq:
            await mq.admin.create_topic("cut", queues=QUEUES)
            async with Traffic(mq, "cut") as traffic:
                for number in range(12):
                    proxy = proxies["broker-a" if number % 2 else "broker-b"]
                    before = proxy.cuts
                    # Frames are some hundred bytes long: nearly every number of bytes ends inside of one.
                    proxy.cut_after(random.choice(("to_broker", "to_client")), random.randrange(1, 3000))
                    await until(lambda proxy=proxy, before=before: proxy.cuts > before, "a cut", limit_s=15.0)
                    await traffic.flows(f"after cut {number}", 20)
                duplicates = await traffic.check()
                print(f"{len(traffic.acked)} stored, {duplicates} handled twice")

    run(scenario, limit_s=LIMIT_S)


def test_a_slow_broker_is_avoided_and_still_consumed(brokers: dict[str, str]) -> None:
    async def scenario() -> None:
        async with wired(brokers) as (namesrv, proxies), orbitmq.connect(namesrv) as mq:
            await mq.admin.create_topic("slow", queues=QUEUES)
            async with Traffic(mq, "slow") as traffic:
                proxies["broker-b"].delay_s = 0.35  # both ways: an answer takes 0.7 s
                stored_before = Counter(traffic.acked.values())
                await traffic.flows("with a slow broker", 600)
                stored = Counter(traffic.acked.values()) - stored_before
                assert stored["broker-b"] < stored["broker-a"] / 4, "the slow broker is not avoided"
                duplicates = await traffic.check()
                # What took longer than a try's share of the time was sent to the other broker as well.
                assert duplicates <= 3 * SENDERS

    run(scenario, limit_s=LIMIT_S)


def test_a_wire_that_swallows_everything(brokers: dict[str, str]) -> None:
    async def scenario() -> None:
        async with wired(brokers) as (namesrv, proxies), orbitmq.connect(namesrv) as mq:
            await mq.admin.create_topic("swallowed", queues=QUEUES)
            async with Traffic(mq, "swallowed") as traffic:
                proxies["broker-b"].swallow()
                await traffic.flows("with one broker behind a dead wire", 300, broker="broker-a")
                await asyncio.sleep(0)
                proxies["broker-b"].cut()
                proxies["broker-b"].flow()
                await traffic.flows("after the wire was mended")
                duplicates = await traffic.check()
                print(f"{len(traffic.acked)} stored, {duplicates} handled twice")

    run(scenario, limit_s=LIMIT_S)
