"""Groups: retries, dead letters, order, broadcast, sharing, filters."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import orbitmq
from tests.client.suite.world import World, bodies, nothing_comes, take, until


class Oops(Exception):
    """What a failing handler raises."""


async def retried_until_it_works(world: World) -> None:
    async with world.client() as mq:
        topic, group = await world.topic(mq), world.name("group")
        tries: dict[bytes, list[int]] = defaultdict(list)
        async with mq.consumer(group, topic, start="first") as inbox:
            sent = await mq.producer(world.name("producers")).send(topic, b"hard", keys="k", tag="t")
            await mq.producer(world.name("producers")).send(topic, b"easy")
            async with asyncio.timeout(30):
                async for msg in inbox:
                    tries[msg.body].append(msg.reconsume_times)
                    if msg.body == b"hard" and msg.reconsume_times < 2:
                        await msg.retry(after=1, reason="not yet")
                        continue
                    async with msg:
                        assert (msg.topic, msg.msg_id) == (topic, sent.msg_id) or msg.body == b"easy"
                    if msg.body == b"hard":
                        assert (msg.keys, msg.tag) == (["k"], "t")
                        break
            assert tries == {b"hard": [0, 1, 2], b"easy": [0]}
            await nothing_comes(inbox)


async def given_up_as_a_dead_letter(world: World) -> None:
    async with world.client() as mq:
        topic, group = await world.topic(mq), world.name("group")
        await mq.admin.create_group(group)
        producer = mq.producer(world.name("producers"))
        async with mq.consumer(group, topic, start="first", max_retries=1) as inbox:
            await producer.send(topic, b"poison", keys="p-1")
            await producer.send(topic, b"hopeless", keys="h-1")
            seen: Counter[bytes] = Counter()
            async with asyncio.timeout(30):
                async for msg in inbox:
                    seen[msg.body] += 1
                    if msg.body == b"hopeless":
                        await msg.dead("no such order")
                    else:
                        await msg.retry(after=1)
                    if seen == {b"poison": 2, b"hopeless": 1}:
                        break
            await nothing_comes(inbox)
        letters: list[orbitmq.DeadLetter] = []

        async def arrived() -> bool:
            letters[:] = [letter async for letter in mq.admin.dead_letters(group)]
            return len(letters) == 2

        await until(arrived)
        assert {letter.message.body for letter in letters} == {b"poison", b"hopeless"}
        assert {letter.topic for letter in letters} == {topic}


async def ordered_with_a_failure_in_the_middle(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq)
        producer = mq.producer(world.name("producers"))
        for n in range(20):
            for user in range(4):
                await producer.send(topic, b"%d:%02d" % (user, n), order_key=user)
        seen: dict[int, list[int]] = defaultdict(list)
        failed: set[bytes] = set()
        active: Counter[int] = Counter()

        async def handle(msg: orbitmq.Message) -> None:
            active[msg.queue_id] += 1
            assert active[msg.queue_id] == 1, "two messages of one queue are handled at the same time"
            await asyncio.sleep(0)
            active[msg.queue_id] -= 1
            if msg.body.endswith(b":07") and msg.body not in failed:
                failed.add(msg.body)
                raise Oops
            user, n = msg.body.split(b":")
            seen[int(user)].append(int(n))

        async with mq.consumer(world.name("group"), topic, start="first", ordered=True) as inbox:
            running = asyncio.create_task(inbox.run(handle))
            await until(lambda: sum(map(len, seen.values())) >= 80)
            inbox.stop()
            await running
        assert len(failed) == 4
        assert all(seen[user] == list(range(20)) for user in range(4))


async def broadcast_reaches_every_member(world: World) -> None:
    async with world.connect(instance="one") as one, world.connect(instance="two") as two:
        topic, group = await world.topic(one), world.name("group")
        options = {"broadcast": True, "start": "first", "offsets_dir": world.directory / group}
        producer = one.producer(world.name("producers"))
        async with (
            one.consumer(group, topic, **options) as first,
            two.consumer(group, topic, **options) as second,
        ):
            await producer.send_many(topic, [b"%d" % n for n in range(10)])
            expected = sorted(b"%d" % n for n in range(10))
            assert bodies(await take(first, 10)) == expected
            assert bodies(await take(second, 10)) == expected
    # What a member has seen it does not get again: its progress is in its own file.
    async with (
        world.connect(client_id=one.client_id) as again,
        again.consumer(group, topic, **options) as inbox,
    ):
        await again.producer(world.name("producers")).send(topic, b"new")
        assert bodies(await take(inbox, 1)) == [b"new"]


async def two_members_share_and_take_over(world: World) -> None:
    async with world.connect(instance="one") as one, world.connect(instance="two") as two:
        topic, group = await world.topic(one), world.name("group")
        producer = one.producer(world.name("producers"))
        got: Counter[bytes] = Counter()

        async def handle(msg: orbitmq.Message) -> None:
            got[msg.body] += 1

        async def send(numbers: range) -> None:
            await producer.send_many(topic, [b"%04d" % n for n in numbers])

        async with one.consumer(group, topic, start="first", rebalance_every=1) as first:
            running = [asyncio.create_task(first.run(handle))]
            await until(lambda: _own(first, topic) == 4)
            await send(range(100))
            async with two.consumer(group, topic, start="first", rebalance_every=1) as second:
                running.append(asyncio.create_task(second.run(handle)))
                await until(lambda: _own(first, topic) == _own(second, topic) == 2)
                await send(range(100, 200))
                await until(lambda: len(got) == 200)
                second.stop()
                await running[1]
            await until(lambda: _own(first, topic) == 4)
            await send(range(200, 300))
            await until(lambda: len(got) == 300)
            first.stop()
            await running[0]
        assert got == Counter({b"%04d" % n: 1 for n in range(300)}), "a message came twice"


def _own(consumer: orbitmq.Consumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.queues)


async def filtered_by_tag_and_by_sql(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq)
        producer = mq.producer(world.name("producers"))
        for n in range(12):
            await producer.send(topic, b"%02d" % n, tag="ABC"[n % 3], properties={"n": str(n)})
        async with mq.consumer(world.name("group"), topic, tags="A || C", start="first") as inbox:
            assert bodies(await take(inbox, 8)) == [b"%02d" % n for n in range(12) if n % 3 != 1]
            await nothing_comes(inbox)
        condition = "n BETWEEN 4 AND 7 AND TAGS <> 'B'"
        async with mq.consumer(world.name("group"), topic, sql=condition, start="first") as inbox:
            assert bodies(await take(inbox, 2)) == [b"05", b"06"]
            await nothing_comes(inbox)


SCENARIOS = (
    retried_until_it_works,
    given_up_as_a_dead_letter,
    ordered_with_a_failure_in_the_middle,
    broadcast_reaches_every_member,
    two_members_share_and_take_over,
    filtered_by_tag_and_by_sql,
)
