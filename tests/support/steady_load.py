"""A producer and a consumer that go on for the whole of a test, and know what was acknowledged and what was handled.

They use the native client with short periods, so that a test need not wait half a minute for a new route.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

from orbitmq.client.client import Client, connect
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.message import Message
from orbitmq.client.route_watch import RouteWatch
from orbitmq.loop_thread import LoopThread

PERIOD_S = 0.2
PAUSE_S = 0.005


class SteadyLoad:
    """In a thread of its own. `brokers` counts acknowledged messages by the broker that took them."""

    def __init__(self, namesrv: str, topic: str, group: str = "steady") -> None:
        self._namesrv = namesrv
        self._topic = topic
        self._group = group
        self._stopping = False
        self.acked: set[str] = set()
        self.handled: set[str] = set()
        self.failed: list[OrbitMQError] = []
        self.brokers: Counter[str] = Counter()
        self._loop = LoopThread("steady-load")
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        self._loop.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._loop.run(self._stop())
        finally:
            self._loop.close()

    def finish(self, limit_s: float = 20.0) -> None:
        """No more messages; everything that was acknowledged is handled when this returns."""
        self._stopping = True
        self._loop.run(self._until_handled(limit_s))

    def until(self, condition: Callable[[], bool], limit_s: float = 20.0) -> None:
        """Blocks the test's thread, not the load."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, (
                f"not within {limit_s:g} s; acknowledged by {dict(self.brokers)}"
            )
            time.sleep(0.01)

    def taken_by(self, broker: str) -> int:
        return self.brokers[broker]

    async def _start(self) -> None:
        for _ in range(2):
            client = connect(self._namesrv, instance=f"{id(self)}-{len(self._clients)}")
            client.routes = RouteWatch(client.cluster, period_s=PERIOD_S)
            self._clients.append(client)
        consumer = self._clients[1].consumer(
            self._group, self._topic, start="first", commit_every=PERIOD_S, rebalance_every=PERIOD_S
        )
        await consumer.start()
        self._consumer = consumer
        self._tasks = [asyncio.create_task(self._produce()), asyncio.create_task(consumer.run(self._handle))]

    async def _stop(self) -> None:
        self._stopping = True
        await self._tasks[0]
        await self._consumer.aclose()
        await self._tasks[1]
        for client in self._clients:
            await client.__aexit__(None, None, None)

    async def _produce(self) -> None:
        producer = self._clients[0].producer("steady-producer")
        count = 0
        while not self._stopping:
            count += 1
            try:
                receipt = await producer.send(self._topic, b"%d" % count)
            except OrbitMQError as error:
                self.failed.append(error)
            else:
                self.acked.add(str(count))
                self.brokers[receipt.broker] += 1
            await asyncio.sleep(PAUSE_S)

    async def _handle(self, msg: Message) -> None:
        self.handled.add(msg.text)

    async def _until_handled(self, limit_s: float) -> None:
        await self._tasks[0]
        deadline = asyncio.get_running_loop().time() + limit_s
        while missing := self.acked - self.handled:
            assert asyncio.get_running_loop().time() < deadline, f"acknowledged and not handled: {missing}"
            await asyncio.sleep(0.01)
