"""Name server choice, route look-up and what is said when something is missing."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from orbitmq.client.cluster import Cluster, parse_namesrv
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError, Unreachable
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import request
from tests.support.fake_servers import FakeServer, cluster_body, fake_cluster, reply, route_body, silent
from tests.support.server_process import free_port


@pytest.mark.parametrize(
    ("text", "addrs"),
    [
        ("h:1", ("h:1",)),
        ("h", ("h:9876",)),
        (" a:1 ; b:2;", ("a:1", "b:2")),
        ("a:1,b:2", ("a:1", "b:2")),
        ("a:1;a:1", ("a:1",)),
        ("[::1]", ("[::1]:9876",)),
        ("[::1]:7", ("[::1]:7",)),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, addrs: tuple[str, ...]) -> None:
    assert parse_namesrv(text) == addrs


@pytest.mark.parametrize("text", ["", " ; ", "h:port", "h:0", "h:70000", ":9876"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_namesrv(text)


def test_the_first_name_server_is_random() -> None:
    chosen = {Cluster("a:1;b:1;c:1", rng=Random(seed)).namesrv for seed in range(30)}
    assert chosen == {"a:1", "b:1", "c:1"}


def test_a_dead_name_server_is_left_for_the_next_and_not_asked_again() -> None:
    async def scenario() -> None:
        living = FakeServer({RequestCode.GET_ROUTEINFO_BY_TOPIC: reply(body=route_body({"a": "h:1"}))})
        await living.start()
        dead = f"127.0.0.1:{free_port()}"
        async with Cluster(f"{dead};{living.addr}", timeout_s=1) as cluster:
            while cluster.namesrv != dead:
                cluster._namesrv_index = (cluster._namesrv_index + 1) % 2
            assert (await cluster.route("T")).masters() == {"a": "h:1"}
            assert cluster.namesrv == living.addr
        await living.stop()

    asyncio.run(scenario())


def test_all_name_servers_dead_is_told_once_with_each_cause() -> None:
    async def scenario() -> None:
        dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        async with Cluster(";".join(dead), timeout_s=1) as cluster:
            with pytest.raises(Unreachable) as caught:
                await cluster.route("T")
        assert all(addr in str(caught.value) for addr in dead)
        assert "orbitmq server" in caught.value.hint

    asyncio.run(scenario())


def test_a_silent_name_server_costs_one_timeout() -> None:
    async def scenario() -> None:
        mute = FakeServer({RequestCode.GET_ROUTEINFO_BY_TOPIC: silent})
        await mute.start()
        async with Cluster(mute.addr, timeout_s=0.2) as cluster:
            with pytest.raises(Unreachable):
                await asyncio.wait_for(cluster.route("T"), 2)
        await mute.stop()

    asyncio.run(scenario())


def test_a_route_is_kept_for_its_time_and_outlives_the_name_server() -> None:
    async def scenario() -> None:
        now = 1_000_000
        async with (
            fake_cluster({}) as fake,
            Cluster(fake.namesrv.addr, clock=lambda: now, timeout_s=1) as cluster,
        ):
            first = await cluster.route("TopicA")
            assert await cluster.route("TopicA") is first
            now += 30_000
            assert await cluster.route("TopicA") == first
            assert len(fake.namesrv.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 2
            await fake.namesrv.stop()
            now += 30_000
            assert await cluster.route("TopicA") == first

    asyncio.run(scenario())


def test_many_that_lost_their_broker_share_one_look_at_the_route() -> None:
    async def scenario() -> None:
        async with fake_cluster({}) as fake, Cluster(fake.namesrv.addr, timeout_s=1) as cluster:
            asked = fake.namesrv.requests
            await asyncio.gather(*(cluster.renewed_route("TopicA") for _ in range(50)))
            assert len(asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1
            await asyncio.sleep(0.12)
            assert await cluster.renewed_route("TopicA") is not None
            assert len(asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 2
            await fake.namesrv.stop()
            await asyncio.sleep(0.12)
            assert await cluster.renewed_route("TopicA") is not None, "the last one known is better than none"

    asyncio.run(scenario())


def test_a_missing_topic_is_told_apart_from_missing_brokers() -> None:
    async def scenario() -> None:
        async with fake_cluster({}) as fake, Cluster(fake.namesrv.addr) as cluster:
            with pytest.raises(NotFound, match="'Nope' does not exist") as caught:
                await cluster.route("Nope")
            assert "orbitmq topic create Nope" in caught.value.hint
            fake.namesrv.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = reply(body=cluster_body({}))
            with pytest.raises(NotFound, match="no broker is registered"):
                await cluster.route("Nope")

    asyncio.run(scenario())


def test_the_default_topic_leads_the_first_message_of_a_new_topic() -> None:
    async def scenario() -> None:
        async with (
            fake_cluster({}, topics=("TBW102",), queues=8) as fake,
            Cluster(fake.namesrv.addr) as cluster,
        ):
            route = await cluster.publish_route("Fresh")
            assert {queue.topic for queue in route.publish_queues()} == {"Fresh"}
            assert len(route.publish_queues()) == 4

    asyncio.run(scenario())


def test_a_broker_is_found_by_name_or_taken_by_address() -> None:
    async def scenario() -> None:
        async with fake_cluster({}, {}) as fake, Cluster(fake.namesrv.addr) as cluster:
            assert await cluster.broker_addr("broker-b") == fake.addrs["broker-b"]
            assert await cluster.broker_addr("h:10911") == "h:10911"
            with pytest.raises(NotFound) as caught:
                await cluster.broker_addr("broker-z")
            assert "broker-a, broker-b" in caught.value.hint

    asyncio.run(scenario())


def test_an_answer_that_is_no_route_names_the_likely_cause() -> None:
    async def scenario() -> None:
        odd = FakeServer({RequestCode.GET_ROUTEINFO_BY_TOPIC: reply(body=b"<html>")})
        await odd.start()
        async with Cluster(odd.addr) as cluster:
            with pytest.raises(OrbitMQError, match="not understood"):
                await cluster.route("T")
        await odd.stop()

    asyncio.run(scenario())


def test_a_change_reaches_every_name_server() -> None:
    async def scenario() -> None:
        servers = [FakeServer({RequestCode.PUT_KV_CONFIG: reply()}) for _ in range(2)]
        for server in servers:
            await server.start()
        async with Cluster(";".join(server.addr for server in servers)) as cluster:
            await cluster.tell_namesrvs(lambda: request(RequestCode.PUT_KV_CONFIG, {"key": "k"}))
        assert [len(server.requests(RequestCode.PUT_KV_CONFIG)) for server in servers] == [1, 1]
        for server in servers:
            await server.stop()

    asyncio.run(scenario())
