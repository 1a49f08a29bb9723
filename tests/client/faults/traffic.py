"""Senders and handlers that go on whatever happens, and what must be true of them at the end.

Some handlers fail at first, so that messages also travel the way back to the broker while things are broken.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

import orbitmq
from tests.support.consuming import until

SENDERS = 8
FAIL_EVERY = 40
LIMIT_S = 25.0
SEND_TIMEOUT_S = 3.0
# A send may not take longer than its timeout; the rest is what a busy machine needs to notice.
SLACK_S = 1.0


class Oops(Exception):
    """What a failing handler raises."""


class Traffic:
    """One topic, one group with one member, eight senders."""

    def __init__(self, mq: orbitmq.Client, topic: str) -> None:
        self.mq = mq
        self.topic = topic
        self.acked: dict[bytes, str] = {}
        """Bodies, and the broker that stored each."""
        self.failures: list[orbitmq.OrbitMQError] = []
        self.handled: Counter[bytes] = Counter()
        self.slowest_send_s = 0.0
        self.handling = 0
        self.inbox = mq.consumer(f"{topic}-group", topic, start="first")
        self._producer = mq.producer(f"{topic}-producers", timeout=SEND_TIMEOUT_S)
        self._numbers = itertools.count()
        self._failed_once: set[bytes] = set()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.inbox.start()
        self._tasks = [asyncio.create_task(self._send()) for _ in range(SENDERS)]
        self._tasks.append(asyncio.create_task(self.inbox.run(self._handle)))
        await self.flows("before anything is broken")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self.inbox.stop()
        for task in self._tasks:
            if error is not None:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=error is not None)

    async def _send(self) -> None:
        while not self._stopping:
            body = b"%06d" % next(self._numbers)
            began = time.monotonic()
            try:
                receipt = await self._producer.send(self.topic, body)
                self.acked[body] = receipt.broker
            except orbitmq.OrbitMQError as error:
                assert error.retryable and error.hint, f"{error!r} says neither what to do nor to try again"
                self.failures.append(error)
                await asyncio.sleep(0.05)
            self.slowest_send_s = max(self.slowest_send_s, time.monotonic() - began)
            await asyncio.sleep(0.01)

    async def _handle(self, msg: orbitmq.Message) -> None:
        self.handling += 1
        try:
            await asyncio.sleep(0.001)
            body = msg.body
            if int(body) % FAIL_EVERY == 0 and body not in self._failed_once:
                self._failed_once.add(body)
                await msg.retry(after=1, reason="not yet")
                return
            self.handled[body] += 1
        finally:
            self.handling -= 1

    async def flows(self, when: str, count: int = 100, *, broker: str | None = None) -> None:
        """Until so many more messages were stored, and so many more handled."""
        acked, handled = self._stored_on(broker), len(self.handled)

        def enough() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()  # whatever ended it is the reason to fail with
            return self._stored_on(broker) >= acked + count and len(self.handled) >= handled + count

        await until(enough, f"the flow of messages {when}", limit_s=LIMIT_S)

    async def fails(self, count: int) -> None:
        """Until so many more sends have failed."""
        before = len(self.failures)
        await until(lambda: len(self.failures) >= before + count, "failing sends", limit_s=LIMIT_S)

    def _stored_on(self, broker: str | None) -> int:
        return sum(broker in (None, stored) for stored in self.acked.values())

    async def check(self, *, failures_allowed: bool = False) -> int:
        """Stops sending. Everything acknowledged is handled at last; gives how many were handled more than once."""
        self._stopping = True
        _, late = await asyncio.wait(self._tasks[:SENDERS], timeout=SEND_TIMEOUT_S + SLACK_S)
        assert not late, "a send outlives its timeout"
        assert self.slowest_send_s < SEND_TIMEOUT_S + SLACK_S
        if not failures_allowed:
            assert self.failures == [], "a send was not retried elsewhere"
        await self._all_handled(lambda: [body for body in self.acked if not self.handled[body]])
        await until(lambda: self.handling == 0, "the end of all handlers")
        return sum(count - 1 for count in self.handled.values())

    async def _all_handled(self, missing: Callable[[], list[bytes]]) -> None:
        try:
            await until(lambda: not missing(), limit_s=LIMIT_S)
        except AssertionError:
            places = Counter(self.acked[body] for body in missing())
            raise AssertionError(
                f"acknowledged and never handled: {missing()[:5]}, by broker {dict(places)}"
            ) from None
