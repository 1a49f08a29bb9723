"""Who is told a group's progress when the route is older than the truth."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import Unreachable
from orbitmq.client.offset_store import FIRST, BrokerOffsets
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.fastjson import MessageQueue
from tests.support.fake_servers import FakeCluster, FakeServer, fake_cluster, reply, route_body
from tests.support.server_process import free_port

QUEUE = MessageQueue("TopicA", "broker-a", 0)
KEEPS = {
    RequestCode.UPDATE_CONSUMER_OFFSET: reply(),
    RequestCode.QUERY_CONSUMER_OFFSET: reply(ext={"offset": "7"}),
}


@asynccontextmanager
async def pair(slaves: dict[int, str]) -> AsyncIterator[tuple[FakeCluster, Cluster]]:
    """A master with these slaves, which the name server goes on naming whatever becomes of it."""
    async with fake_cluster(KEEPS) as fake:
        body = route_body(fake.addrs, slaves=slaves)
        fake.namesrv.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = reply(body=body)
        async with Cluster(fake.namesrv.addr, timeout_s=1) as cluster:
            yield fake, cluster


def test_a_dead_master_that_the_route_still_names_costs_no_progress() -> None:
    async def scenario() -> None:
        slave = FakeServer(KEEPS)
        await slave.start()
        async with pair({1: f"127.0.0.1:{free_port()}", 2: slave.addr}) as (fake, cluster):
            store = BrokerOffsets(cluster, "g", FIRST)
            assert await store.save({QUEUE: 5}) == {QUEUE}, "the master has it: certain"
            await fake.brokers["broker-a"].stop()
            assert await store.save({QUEUE: 6}) == set(), "the master is to get it later"
            told = slave.requests(RequestCode.UPDATE_CONSUMER_OFFSET)
            assert [command.ext["commitOffset"] for command in told] == ["6"]
        await slave.stop()

    asyncio.run(scenario())


def test_progress_that_nobody_takes_is_not_certain() -> None:
    async def scenario() -> None:
        async with pair({1: f"127.0.0.1:{free_port()}"}) as (fake, cluster):
            await fake.brokers["broker-a"].stop()
            assert await BrokerOffsets(cluster, "g", FIRST).save({QUEUE: 6}) == set()

    asyncio.run(scenario())


def test_an_offset_is_asked_of_the_next_master_as_soon_as_the_route_names_it() -> None:
    async def scenario() -> None:
        slave = FakeServer(KEEPS)
        await slave.start()
        async with pair({1: slave.addr}) as (fake, cluster):
            await cluster.route("TopicA")
            await fake.brokers["broker-a"].stop()
            body = route_body({"broker-a": slave.addr})
            fake.namesrv.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = reply(body=body)
            store = BrokerOffsets(cluster, "g", FIRST)
            with pytest.raises(Unreachable):  # a slave may not know yet what the master was told last
                await store.load(QUEUE)
            assert not slave.requests(RequestCode.QUERY_CONSUMER_OFFSET)
            assert await store.load(QUEUE) == 7
        await slave.stop()

    asyncio.run(scenario())
