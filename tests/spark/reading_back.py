"""What a consumer would find: messages of a topic, read without Spark."""

from __future__ import annotations

import asyncio
from collections import Counter

from orbitmq.client.admin.half import half_messages
from orbitmq.client.cluster import Cluster
from orbitmq.client.reader import offsets_at, read_range
from orbitmq.wire.message import Message


def messages(namesrv: str, topic: str) -> list[Message]:
    async def body() -> list[Message]:
        async with asyncio.timeout(180), Cluster(namesrv, timeout_s=30) as cluster:
            route = await cluster.route(topic, refresh=True)
            start, end = await offsets_at(cluster, route, "first"), await offsets_at(cluster, route, "last")
            return [message async for message in read_range(cluster, route, start, end)]

    return asyncio.run(body())


def bodies(namesrv: str, topic: str) -> Counter[bytes]:
    return Counter(message.decoded_body() for message in messages(namesrv, topic))


def open_halves(namesrv: str, group: str) -> int:
    async def body() -> int:
        async with Cluster(namesrv, timeout_s=30) as cluster:
            return len((await half_messages(cluster, group=group, max_num=10_000)).messages)

    return asyncio.run(body())
