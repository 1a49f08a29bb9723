"""The desks of a producer: which topics it can send to now, each kept up to date with its route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orbitmq.client.core.faults import Faults
from orbitmq.client.core.queue_choice import Choice
from orbitmq.client.errors import NotFound, Unreachable
from orbitmq.client.outgoing import check_topic
from orbitmq.client.routes import TopicRoute
from orbitmq.client.topic_desk import Door, TopicDesk

if TYPE_CHECKING:
    from orbitmq.client.client import Client

# After a failure the route is asked for again, but not more often than this; so long is also the pause before the same
# broker is asked again when nobody else is there.
LOOK_AGAIN_S: Final = 0.1


class Desks:
    """`open` holds only desks with a queue: who finds none there waits in `get` until there is one."""

    def __init__(
        self, client: Client, group: str, choice: Choice, faults: Faults, check_open: Callable[[], None]
    ) -> None:
        self.open: dict[str, TopicDesk] = {}
        self._known: dict[str, TopicDesk] = {}
        self._client = client
        self._group = group
        self._choice = choice
        self._faults = faults
        self._check_open = check_open
        self._doors: dict[str, Door] = {}
        self._opening: dict[str, asyncio.Task[TopicDesk]] = {}
        self._unwatch: dict[str, Callable[[], None]] = {}

    async def get(self, topic: str, timeout_s: float) -> TopicDesk:
        """The desk of a topic; callers that come while its route is being asked for share the question."""
        check_topic(topic)
        self._check_open()
        self._client.start()
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_s
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await asyncio.shield(self._opening_of(topic))
            except TimeoutError:
                raise Unreachable(
                    f"the route of topic '{topic}' was not learnt within {timeout_s:g} s",
                    hint=f"check the name servers {'; '.join(self._client.cluster.namesrv_addrs)}",
                ) from None
            except NotFound as error:
                # A topic that was served a moment ago comes back with its next master.
                if topic not in self._known or not error.retryable or now() + LOOK_AGAIN_S >= deadline:
                    raise

    def _opening_of(self, topic: str) -> asyncio.Task[TopicDesk]:
        task = self._opening.get(topic)
        if task is None or task.done():
            task = self._opening[topic] = self._client.scope.spawn(
                self._open(topic), name=f"route-{topic}", awaited=True
            )
        return task

    async def _open(self, topic: str) -> TopicDesk:
        desk = self._known.get(topic)
        if desk is not None:
            # However many wait for the next master, its name server is asked ten times a second.
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, desk.next_look - now))
            desk.next_look = max(now, desk.next_look) + LOOK_AGAIN_S
        route = await self._client.cluster.publish_route(topic, refresh=desk is not None)
        self._check_open()
        if desk is None:
            desk = TopicDesk(self._group, topic, self._client.rng, self._choice)
        desk.follow(route, self._doors)
        if not desk.slots:
            raise desk.no_queue()
        self.open[topic] = self._known[topic] = desk
        if topic not in self._unwatch:
            self._unwatch[topic] = self._client.on_route_change(topic, lambda new: self._follow(topic, new))
        return desk

    def _follow(self, topic: str, route: TopicRoute | None) -> None:
        desk = self._known[topic]
        if route is None:
            # The topic was deleted: the next send asks anew and finds out whether it may be made again.
            self._unwatch.pop(topic)()
        else:
            for broker in desk.follow(route, self._doors):
                self._faults.forgive(broker)
        if route is None or not desk.slots:
            self.open.pop(topic, None)
        else:
            self.open[topic] = desk

    def address_of(self, broker: str) -> str:
        """The master of a broker that was sent to."""
        door = self._doors.get(broker)
        if door is None:
            raise Unreachable(
                f"broker '{broker}' is in no route any more",
                hint="wait until it registers with a name server",
            )
        return door.addr

    def close(self) -> None:
        self.open.clear()
        for unwatch in self._unwatch.values():
            unwatch()
        self._unwatch.clear()
