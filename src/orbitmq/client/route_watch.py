"""Keeps the routes of topics in use fresh and tells those who care when one changes.

Every 30 seconds the name server is asked again. A topic that has no route yet is asked for sooner, so that the
first consumer of a topic does not wait half a minute for the topic's first message to be noticed; so is one that has
lost a master, or a whole broker a moment ago: it may only be restarted. A route that is new or has just changed is
looked at again soon, too: brokers come one after the other to a name server that has just started, or make a topic one
after the other, and whoever asks in between is told of the first ones only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.routes import TopicRoute

log = logging.getLogger("orbitmq.client")

PERIOD_S: Final = 30.0
# A route that may grow: asked after one second, then less and less often.
DOUBT_FIRST_S: Final = 1.0
DOUBT_LONGEST_S: Final = 5.0
# A broker that left the route is looked for that long; then it is taken for gone.
LOST_S: Final = 60.0
# A route may grow that long after it changed.
SETTLING_S: Final = 10.0

RouteChanged = Callable[[TopicRoute | None], None]
"""Called with the new route, or None when the topic is gone."""


class RouteWatch:
    """`run` is the loop; its owner decides where it runs."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        period_s: float = PERIOD_S,
        doubt_first_s: float = DOUBT_FIRST_S,
    ) -> None:
        self._cluster = cluster
        self._period_s = period_s
        self._doubt_first_s = doubt_first_s
        self._doubt_pause_s = doubt_first_s
        self._watchers: dict[str, list[RouteChanged]] = {}
        self._last: dict[str, TopicRoute | None] = {}
        self._lost: dict[str, tuple[frozenset[str], float]] = {}
        self._settling: dict[str, float] = {}
        self._changed = asyncio.Event()

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._watchers)

    def watch(self, topic: str, callback: RouteChanged) -> Callable[[], None]:
        """Calls back at every change from now on, until the function given back is called."""
        watchers = self._watchers.setdefault(topic, [])
        watchers.append(callback)
        if topic not in self._last:
            self._last[topic] = self._cluster.routes.stale(topic)
            self._look_soon(topic)

        def unwatch() -> None:
            if callback in watchers:
                watchers.remove(callback)
            if not watchers and self._watchers.get(topic) is watchers:
                del self._watchers[topic]
                self._last.pop(topic, None)
                self._lost.pop(topic, None)
                self._settling.pop(topic, None)

        return unwatch

    async def refresh(self, topic: str) -> TopicRoute | None:
        """Asks the name server now and tells the watchers what is new."""
        route = await self._cluster.find_route(topic, refresh=True)
        self.note(topic, route)
        return route

    async def look_again(self, topic: str) -> TopicRoute | None:
        """As `refresh`, for many who ask at the same time because a broker failed."""
        route = await self._cluster.renewed_route(topic)
        self.note(topic, route)
        return route

    def note(self, topic: str, route: TopicRoute | None) -> None:
        """Takes over a route that somebody else has learnt."""
        if topic not in self._watchers or self._last.get(topic) == route:
            return
        self._note_lost(topic, self._last.get(topic), route)
        self._last[topic] = route
        self._look_soon(topic)
        for callback in tuple(self._watchers[topic]):
            try:
                callback(route)
            except Exception:
                log.exception("what should follow a new route of topic '%s' failed", topic)

    def _look_soon(self, topic: str) -> None:
        self._settling[topic] = asyncio.get_running_loop().time() + SETTLING_S
        self._doubt_pause_s = self._doubt_first_s
        self._changed.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        next_round = loop.time() + self._period_s
        while True:
            doubtful = [topic for topic in self._watchers if self._may_grow(topic)]
            pause_s = self._doubt_pause_s if doubtful else self._period_s
            self._changed.clear()
            try:
                async with asyncio.timeout_at(min(next_round, loop.time() + pause_s)):
                    await self._changed.wait()
            except TimeoutError:
                pass
            else:
                continue
            if loop.time() >= next_round:
                next_round = loop.time() + self._period_s
                due = list(self._watchers)
            else:
                due = doubtful
                self._doubt_pause_s = min(self._doubt_pause_s * 2, DOUBT_LONGEST_S)
            for topic in due:
                try:
                    await self.refresh(topic)
                except OrbitMQError as error:
                    log.warning("the route of topic '%s' is not refreshed: %s", topic, error)

    def _note_lost(self, topic: str, before: TopicRoute | None, route: TopicRoute | None) -> None:
        now_s = asyncio.get_running_loop().time()
        here = frozenset(route.brokers) if route is not None else frozenset()
        gone = frozenset(before.brokers) - here if before is not None else frozenset()
        earlier, until_s = self._lost.pop(topic, (frozenset(), now_s))
        lost = gone | (earlier - here)
        if lost:
            self._lost[topic] = (lost, now_s + LOST_S if gone else until_s)

    def _may_grow(self, topic: str) -> bool:
        route = self._last.get(topic)
        if route is None or route.lacks_a_master:
            return True
        _, lost_until_s = self._lost.get(topic, (frozenset(), 0.0))
        return asyncio.get_running_loop().time() < max(lost_until_s, self._settling[topic])
