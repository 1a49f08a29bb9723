"""A name server that has just started knows no broker yet: its clients go on with what they know."""

from __future__ import annotations

import asyncio

from orbitmq.client.cluster import Cluster
from orbitmq.wire.codes import RequestCode, ResponseCode
from tests.support.fake_servers import cluster_body, fake_cluster, reply


def test_a_route_is_forgotten_only_when_the_name_server_knows_its_brokers() -> None:
    async def main() -> None:
        async with fake_cluster({}) as fake, Cluster(fake.namesrv.addr) as cluster:
            known = await cluster.find_route("TopicA")
            assert known is not None
            answers = fake.namesrv.answers
            answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = reply(ResponseCode.TOPIC_NOT_EXIST)
            answers[RequestCode.GET_BROKER_CLUSTER_INFO] = reply(body=cluster_body({}))
            assert await cluster.find_route("TopicA", refresh=True) == known
            assert await cluster.find_route("TopicB", refresh=True) is None  # never heard of
            answers[RequestCode.GET_BROKER_CLUSTER_INFO] = reply(body=cluster_body({"broker-z": "z:1"}))
            assert await cluster.find_route("TopicA", refresh=True) == known
            # Now it knows the broker, and the broker has no such topic: it was deleted.
            answers[RequestCode.GET_BROKER_CLUSTER_INFO] = reply(body=cluster_body(fake.addrs))
            assert await cluster.find_route("TopicA", refresh=True) is None
            assert cluster.routes.stale("TopicA") is None

    asyncio.run(main())
