"""Queue locks on the brokers: who has one owns the queue until 60 s after it was last renewed.

Ordered consumers handle nothing without the lock. Other consumers take it as well where they can: a member that is to
get a queue from another one then notices when that one has finished and committed, instead of starting too early.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.offset_store import master_of
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.errors import WireError
from orbitmq.wire.fastjson import MessageQueue

log = logging.getLogger("orbitmq.consumer")

RENEW_EVERY_S: Final = 20.0
# The broker's side lasts 60 s; the margin is for clocks and delays.
VALID_S: Final = 30.0
EXPIRES_S: Final = 60.0


class Locks:
    """Locks of one member of a group."""

    def __init__(self, cluster: Cluster, group: str, client_id: str) -> None:
        self._cluster = cluster
        self._group = group
        self._client_id = client_id

    async def take(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Takes or renews; gives the queues that are locked now. A broker that does not answer locks nothing."""
        found = await asyncio.gather(
            *(self._take(addr, some) for addr, some in (await self._by_addr(queues)).items())
        )
        return set().union(*found)

    async def give(self, queues: Iterable[MessageQueue]) -> None:
        """Gives locks back, so that the next owner need not wait for their end."""

        async def one(addr: str, some: list[MessageQueue]) -> None:
            try:
                await self._cluster.request(addr, self._command(RequestCode.UNLOCK_BATCH_MQ, some))
            except OrbitMQError as error:
                log.info("locks at %s are not given back and end by themselves: %s", addr, error)

        await asyncio.gather(*(one(addr, some) for addr, some in (await self._by_addr(queues)).items()))

    async def _take(self, addr: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        try:
            response = await self._cluster.request(addr, self._command(RequestCode.LOCK_BATCH_MQ, queues))
            return set(bodies.decode(bodies.LockBatchResult, response.body).lock_ok_mq_set)
        except (OrbitMQError, WireError) as error:
            log.info("no locks at %s: %s", addr, error)
            return set()

    async def _by_addr(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            try:
                addr = await master_of(self._cluster, queue)
            except OrbitMQError as error:
                log.info("queue %d of topic '%s' cannot be locked: %s", queue.queue_id, queue.topic, error)
                continue
            found.setdefault(addr, []).append(queue)
        return found

    def _command(self, code: int, queues: list[MessageQueue]) -> Command:
        body = bodies.LockBatchBody(client_id=self._client_id, consumer_group=self._group, mq_set=queues)
        return request(code, body=bodies.encode(body))
