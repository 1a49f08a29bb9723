"""Short words for tests of consumers: a clean run, messages sent, messages collected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from orbitmq.client.client import Client, connect
from orbitmq.client.consumer import Consumer
from orbitmq.client.message import Message
from orbitmq.client.sender import Receipt, Sender

LIMIT_S = 20.0


def run(scenario: Callable[[], Awaitable[None]], *, limit_s: float = LIMIT_S) -> None:
    """Runs it within the limit; a task that is left behind afterwards fails the test."""

    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await scenario()
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, f"tasks left behind: {others}"

    asyncio.run(bounded())


async def send(client: Client, topic: str, bodies: Iterable[object], **options: Any) -> list[Receipt]:
    """One after the other, by the plain sender; `queue_id` and `broker` keep them in one place."""
    sender = Sender(client.cluster)
    place = {name: options.pop(name) for name in ("queue_id", "broker") if name in options}
    return [
        await sender.send(sender.prepare(topic, str(body).encode(), **options), **place) for body in bodies
    ]


async def collect(consumer: Consumer, count: int, *, limit_s: float = 10.0) -> list[str]:
    """Handles so many messages and gives their bodies."""
    found: list[str] = []
    async with asyncio.timeout(limit_s):
        async for msg in consumer:
            async with msg:
                found.append(msg.text)
            if len(found) == count:
                break
    return found


async def nothing_more(consumer: Consumer, *, for_s: float = 0.15) -> None:
    """Fails when a message comes within this time."""
    try:
        async with asyncio.timeout(for_s):
            raise AssertionError(f"not expected: {(await anext(consumer)).text}")
    except TimeoutError:
        return


async def until(condition: Callable[[], object], what: str = "it", *, limit_s: float = 10.0) -> None:
    try:
        async with asyncio.timeout(limit_s):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true within {limit_s:g} s") from None


class Crowd:
    """Members of one group, each on a client of its own, that write down who handled what."""

    def __init__(self, namesrv: str, group: str, topic: str, **options: Any) -> None:
        self.namesrv = namesrv
        self.group = group
        self.topic = topic
        self.options = options
        self.handled: list[tuple[str, Message]] = []
        self.members: dict[str, Consumer] = {}

    @property
    def bodies(self) -> list[str]:
        return [msg.text for _, msg in self.handled]

    @asynccontextmanager
    async def member(
        self, name: str, handle: Callable[[Message], Awaitable[None]] | None = None, **options: Any
    ) -> AsyncIterator[Consumer]:
        async def note(msg: Message) -> None:
            if handle is not None:
                await handle(msg)
            self.handled.append((name, msg))

        async with (
            connect(self.namesrv, instance=f"{name}#{id(self)}") as client,
            client.consumer(self.group, self.topic, **{**self.options, **options}) as consumer,
        ):
            task = asyncio.create_task(consumer.run(note))
            self.members[name] = consumer
            try:
                yield consumer
            finally:
                await consumer.aclose()
                await task
                del self.members[name]

    async def settled(self, queues: int, *, unequal: bool = False) -> None:
        """Until the members together own all queues of the topic, each exactly once, in shares as equal as can be.

        On the way there all queues may be owned while one is still to move on. `unequal`: it is enough that as many
        as can have a queue have one.
        """

        def shared_out() -> bool:
            shares = [
                [queue for queue in consumer.queues if queue.topic == self.topic]
                for consumer in self.members.values()
            ]
            owned = [queue for share in shares for queue in share]
            sizes = sorted(map(len, shares))
            fair = sizes[-1] - sizes[0] <= 1
            if unequal:
                fair = sum(map(bool, sizes)) == min(len(sizes), queues)
            return fair and len(owned) == queues == len(set(owned))

        await until(shared_out, f"{queues} queues shared out")
