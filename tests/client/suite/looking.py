"""Readers and the administration: places by offset and by time, lag, reset."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import orbitmq
from tests.client.suite.world import World, bodies, take, until


async def reader_by_offset_and_time(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq, queues=2)
        producer = mq.producer(world.name("producers"))
        for n in range(20):
            await producer.send(topic, b"old %02d" % n)
        # Nearer to the old messages than to the new ones: a broker may answer with the nearest.
        await asyncio.sleep(0.01)
        between = datetime.now(UTC)
        await asyncio.sleep(0.2)
        for n in range(20):
            await producer.send(topic, b"new %02d" % n)
        new = [b"new %02d" % n for n in range(20)]

        async with mq.reader(topic, start=between) as reader:
            assert bodies(await _all(reader, 20)) == new
            assert await reader.read(max_wait=0.1) == []
            await reader.seek(datetime.now(UTC))
            assert await reader.read(max_wait=0.1) == [], "nothing was stored after now"
            await reader.seek("earliest")
            assert len(await _all(reader, 40)) == 40
            await reader.seek(15)
            tail = await _all(reader, 10)
            assert {message.queue_offset for message in tail} == {15, 16, 17, 18, 19}
            positions = reader.positions
            assert sorted(positions.values()) == [20, 20]
            ranged = [message async for message in reader.range(between, "latest")]
            assert bodies(ranged) == new
            times = [message.store_ms for message in ranged]
            assert times == sorted(times), "a range is merged by the time of storing"
        async with mq.reader(topic, start=positions) as reader:
            await producer.send(topic, b"newest")
            assert bodies(await _all(reader, 1)) == [b"newest"]
        async with mq.reader(topic, queues=[0]) as reader:
            assert {message.queue_id for message in await _all(reader, 20)} == {0}


async def reader_filters_by_tag(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq, queues=2)
        producer = mq.producer(world.name("producers"))
        for n in range(30):
            await producer.send(topic, b"%02d" % n, tag="ABC"[n % 3])
        async with mq.reader(topic, tags="B") as reader:
            assert bodies(await _all(reader, 10)) == [b"%02d" % n for n in range(1, 30, 3)]
            assert await reader.read(max_wait=0.1) == []


async def _all(reader: orbitmq.Reader, count: int) -> list[orbitmq.Message]:
    found: list[orbitmq.Message] = []
    async with asyncio.timeout(15):
        while len(found) < count:
            found += await reader.read(max_messages=count - len(found), max_wait=5)
    return found


async def lag_and_reset(world: World) -> None:
    async with world.client() as mq:
        topic, group = await world.topic(mq), world.name("group")
        producer = mq.producer(world.name("producers"))
        await producer.send_many(topic, [b"%02d" % n for n in range(40)])
        async with mq.consumer(group, topic, start="first") as inbox:
            await take(inbox, 40)
            await inbox.commit()
            await _lag_becomes(mq, group, topic, 0)
        await producer.send_many(topic, [b"%02d" % n for n in range(40, 50)])
        await _lag_becomes(mq, group, topic, 10)

        plan = await mq.admin.reset(group, topic, to="earliest", preview=True)
        assert await _lag(mq, group, topic) == 10, "a preview changed something"
        await mq.admin.apply(plan)
        assert await _lag(mq, group, topic) == 50
        async with mq.consumer(group, topic) as inbox:
            assert bodies(await take(inbox, 50)) == [b"%02d" % n for n in range(50)]

        await mq.admin.reset(group, topic, to="earliest")
        await mq.admin.reset(group, topic, to="latest")
        assert await _lag(mq, group, topic) == 0


async def _lag(mq: orbitmq.Client, group: str, topic: str) -> int:
    lag = await mq.admin.lag(group, topic=topic)
    assert isinstance(lag, orbitmq.Lag), lag
    return lag.messages


async def _lag_becomes(mq: orbitmq.Client, group: str, topic: str, expected: int) -> None:
    """A broker may count a message a moment after it has acknowledged it, and a commit after other questions."""

    async def reached() -> bool:
        return await _lag(mq, group, topic) == expected

    await until(reached)


async def running_group_is_reset(world: World) -> None:
    async with world.client() as mq:
        topic, group = await world.topic(mq), world.name("group")
        await mq.producer(world.name("producers")).send_many(topic, [b"%02d" % n for n in range(20)])
        async with mq.consumer(group, topic, start="first") as inbox:
            await take(inbox, 20)
            await inbox.commit()
            await mq.admin.reset(group, topic, to="earliest")
            assert bodies(await take(inbox, 20)) == [b"%02d" % n for n in range(20)]


async def running_group_without_progress_is_reset(world: World) -> None:
    """A member that has committed nothing yet can be moved, too."""
    async with world.client() as mq:
        topic, group = await world.topic(mq), world.name("group")
        async with mq.consumer(group, topic, start="first") as inbox:
            await mq.admin.reset(group, topic, to="latest")
            await mq.producer(world.name("producers")).send(topic, b"after the reset")
            assert bodies(await take(inbox, 1)) == [b"after the reset"]


async def topics_and_groups_come_and_go(world: World) -> None:
    async with world.client() as mq:
        topic, group = await world.topic(mq), world.name("group")
        assert topic in await mq.admin.topics()
        async with mq.consumer(group, topic) as inbox:
            members = await mq.admin.members(group)
            assert [member.client_id for member in members.members] == [mq.client_id]
            await until(lambda: sum(queue.topic == topic for queue in inbox.queues) == 4)
        assert group in await mq.admin.groups()
        await mq.admin.delete_group(group)
        await mq.admin.delete_topic(topic)

        async def gone() -> bool:
            return topic not in await mq.admin.topics() and group not in await mq.admin.groups()

        await until(gone)


SCENARIOS = (
    reader_by_offset_and_time,
    reader_filters_by_tag,
    lag_and_reset,
    running_group_is_reset,
    running_group_without_progress_is_reset,
    topics_and_groups_come_and_go,
)
