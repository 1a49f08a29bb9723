"""Which queues are this member's: asked again every 20 s, and at once when members or routes change.

Every member works it out for itself from the same lists. An answer that may be wrong (no broker answers, this member
is missing from the list because a broker just restarted) moves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from orbitmq.client.assignments import Assignments
from orbitmq.client.cluster import Cluster
from orbitmq.client.core.allocation import Strategy, share
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.routes import TopicRoute
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import request
from orbitmq.wire.errors import WireError
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.topics import RETRY_PREFIX

log = logging.getLogger("orbitmq.consumer")

EVERY_S: Final = 20.0
SOON_S: Final = 1.0
# Members that start together announce themselves within moments: one rebalance serves them all.
GATHER_S: Final = 0.02
# After a broker was away its list of members fills up again one by one, as each of them reconnects.
DOUBT_S: Final = 4.0


class Rebalancer:
    """Decides; `Assignments` moves. `run` is a loop that the consumer's scope owns."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        client_id: str,
        topics: Collection[str],
        assignments: Assignments,
        *,
        strategy: Strategy,
        broadcast: bool,
        introduce: Callable[[], Awaitable[object]],
        every_s: float = EVERY_S,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._client_id = client_id
        self._topics = tuple(topics)
        self._assignments = assignments
        self._strategy = strategy
        self._broadcast = broadcast
        self._introduce = introduce
        self._every_s = every_s
        self._members: dict[str, list[str]] = {}
        self._wake = asyncio.Event()
        self._noticed: float | None = None
        self._doubt_until = 0.0
        self._now = asyncio.get_running_loop().time

    @property
    def members(self) -> list[str]:
        """The client ids of the group, as last heard."""
        return sorted(set().union(*self._members.values()))

    def wake(self) -> None:
        """Something changed: look again now."""
        if self._noticed is None:
            self._noticed = self._now()
        self._wake.set()

    def doubt(self) -> None:
        """A broker was away: members that are missing now may only not have come back yet."""
        self._doubt_until = self._now() + DOUBT_S

    async def run(self) -> None:
        while True:
            certain = await self.once()
            try:
                async with asyncio.timeout(self._every_s if certain else min(SOON_S, self._every_s)):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(GATHER_S)

    async def once(self) -> bool:
        """One look at everything; False when something could not be found out and should be asked again soon."""
        noticed = self._now() if self._noticed is None else self._noticed
        self._noticed = None
        self._wake.clear()
        wanted: set[MessageQueue] = set()
        from_others: set[MessageQueue] = set()
        certain = True
        for topic in self._topics:
            found = await self._share_of(topic)
            if found is None:
                wanted |= {queue for queue in self._assignments.holdings if queue.topic == topic}
                certain = certain and topic.startswith(RETRY_PREFIX)
                continue
            mine, awaited = found
            wanted |= mine
            from_others |= awaited
        self._assignments.apply(wanted, noticed, from_others=from_others)
        return certain

    async def _share_of(self, topic: str) -> tuple[set[MessageQueue], set[MessageQueue]] | None:
        """This member's queues of a topic, and those of them that a living member has to give away first."""
        try:
            route = await self._cluster.find_route(topic)
        except OrbitMQError as error:
            log.debug("no route of topic '%s': %s", topic, error)
            return None
        if route is None:
            return None
        queues = route.read_queues()
        if self._broadcast:
            return set(queues), set()
        members = await self._members_of(route)
        if self._client_id not in members:
            log.debug("this member is not in the list of group '%s' yet: %s", self._group, members)
            self.doubt()
            await self._introduce()
            return None
        before = self._members.get(topic)
        if before is not None and self._now() < self._doubt_until and not set(before) <= set(members):
            return None
        if before is None:
            before = [member for member in members if member != self._client_id]
        self._members[topic] = members
        mine = set(share(self._strategy, self._client_id, queues, members))
        return mine, self._awaited(mine, queues, before, members)

    def _awaited(
        self, mine: set[MessageQueue], queues: Collection[MessageQueue], before: list[str], members: list[str]
    ) -> set[MessageQueue]:
        """Queues that belonged to others before, who are still there to hand them over."""
        new = mine - self._assignments.holdings.keys()
        if not new:
            return set()
        others = [member for member in before if member != self._client_id and member in members]
        return {
            queue
            for member in others
            for queue in share(self._strategy, member, queues, before)
            if queue in new
        }

    async def _members_of(self, route: TopicRoute) -> list[str]:
        """Everybody that any broker of the topic knows: one that just restarted knows only some."""
        addrs = {
            addr
            for data in route.located_queues()
            if (addr := route.brokers[data.broker].readable_addr) is not None
        }
        found = await asyncio.gather(*(self._ask_members(addr) for addr in addrs))
        return sorted(set().union(*found))

    async def _ask_members(self, addr: str) -> list[str]:
        command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._group})
        try:
            response = await self._cluster.request(addr, command)
            return bodies.decode(bodies.ConsumerIdList, response.body).consumer_id_list
        except (OrbitMQError, WireError) as error:
            log.debug("the members of group '%s' are not known to %s: %s", self._group, addr, error)
            return []
