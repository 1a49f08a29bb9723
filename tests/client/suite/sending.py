"""Everything a producer can do with one message, seen by a reader."""

from __future__ import annotations

import asyncio
import random
import time

import orbitmq
from orbitmq.client.outgoing import Out
from tests.client.suite.world import World, bodies, take, until


async def read(mq: orbitmq.Client, topic: str, count: int) -> list[orbitmq.Message]:
    found: list[orbitmq.Message] = []
    async with asyncio.timeout(20), mq.reader(topic) as reader:
        while len(found) < count:
            found += await reader.read(max_messages=1000, max_wait=5)
    return found


async def one_with_everything(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq)
        receipt = await mq.producer(world.name("producers")).send(
            topic,
            "жук 日本".encode(),
            tag="paid",
            keys=["order-42", "customer-7"],
            properties={"region": "eu", "note": "日本"},
        )
        assert receipt.status == "SEND_OK" and receipt.ok
        (message,) = await read(mq, topic, 1)
        assert message.body == "жук 日本".encode()
        assert (message.topic, message.tag, message.keys) == (topic, "paid", ["order-42", "customer-7"])
        assert message.properties["region"] == "eu" and message.properties["note"] == "日本"
        assert message.msg_id == receipt.msg_id
        assert message.offset_msg_id == receipt.offset_msg_id
        assert (message.queue_id, message.queue_offset) == (receipt.queue_id, receipt.queue_offset)
        assert abs(message.store_ms - time.time() * 1000) < 10_000


async def round_robin_one_way_and_posted(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq)
        producer = mq.producer(world.name("producers"))
        receipts = [await producer.send(topic, b"awaited %d" % n) for n in range(8)]
        assert sorted(receipt.queue_id for receipt in receipts) == [0, 0, 1, 1, 2, 2, 3, 3]
        for n in range(8):
            await producer.send_oneway(topic, b"oneway %d" % n)
        posted = [await producer.post(topic, b"posted %d" % n) for n in range(8)]
        await producer.flush()
        assert all(future.result().ok for future in posted)
        expected = [b"%s %d" % (kind, n) for kind in (b"awaited", b"oneway", b"posted") for n in range(8)]
        assert bodies(await read(mq, topic, 24)) == sorted(expected)


async def many_at_once(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq)
        producer = mq.producer(world.name("producers"))
        outs = [Out(body=b"out %04d" % n, tag=f"t{n % 3}", keys=f"key-{n}") for n in range(500)]
        plain = [b"plain %04d" % n for n in range(500)]
        receipts = await producer.send_many(topic, [*outs, *plain])
        assert len({receipt.msg_id for receipt in receipts}) == 1000
        found = {message.msg_id: message for message in await read(mq, topic, 1000)}
        assert len(found) == 1000
        for receipt, out in zip(receipts, outs, strict=False):
            message = found[receipt.msg_id]
            assert (message.body, message.tag, message.keys) == (out.body, out.tag, [out.keys])
            assert (message.queue_id, message.queue_offset) == (receipt.queue_id, receipt.queue_offset)
        assert [found[receipt.msg_id].body for receipt in receipts[500:]] == plain


async def in_order_by_key_and_to_a_queue(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq)
        producer = mq.producer(world.name("producers"))
        for n in range(10):
            for user in range(6):
                await producer.send(topic, b"%d:%02d" % (user, n), order_key=f"user-{user}")
        (queue, *_) = (await mq.admin.route(topic)).read_queues()
        chosen = await producer.send(topic, b"chosen", queue=(queue.broker_name, 3))
        assert chosen.queue_id == 3
        messages = [m for m in await read(mq, topic, 61) if m.body != b"chosen"]
        for user in range(6):
            own = [m for m in messages if m.body.startswith(b"%d:" % user)]
            assert len({m.queue_id for m in own}) == 1, "messages of one key are in several queues"
            own.sort(key=lambda m: m.queue_offset)
            assert [m.body for m in own] == [b"%d:%02d" % (user, n) for n in range(10)]


async def large_and_compressed(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq)
        producer = mq.producer(world.name("producers"))
        random_body = random.Random(3).randbytes(1_000_000)
        text_body = b"compresses well " * 20_000
        await producer.send(topic, random_body)
        await producer.send(topic, text_body)
        small, large = sorted(await read(mq, topic, 2), key=lambda message: message.size)
        assert small.body == text_body and small.size < 20_000, "it was not stored compressed"
        assert large.body == random_body


async def delayed_by_level(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq)
        producer = mq.producer(world.name("producers"))
        async with mq.consumer(world.name("group"), topic, start="first") as inbox:
            began = time.monotonic()
            await producer.send(topic, b"a second later", delay_level=1)
            await producer.send(topic, b"at once")
            first, second = await take(inbox, 2)
            assert (first.body, second.body) == (b"at once", b"a second later")
            assert 0.9 < time.monotonic() - began < 6


async def found_by_key_and_id(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq)
        producer = mq.producer(world.name("producers"))
        receipts = [
            await producer.send(topic, b"%d" % n, keys=[f"order-{n}", "all"], tag="t") for n in range(5)
        ]

        async def indexed() -> bool:
            return len(await mq.admin.messages_by_key(topic, "all")) == 5

        await until(indexed)
        (found,) = await mq.admin.messages_by_key(topic, "order-3")
        assert (found.body, found.msg_id, found.tag) == (b"3", receipts[3].msg_id, "t")
        assert (await mq.admin.message(topic, receipts[2].msg_id)).body == b"2"
        assert (await mq.admin.message(topic, receipts[1].offset_msg_id)).body == b"1"


SCENARIOS = (
    one_with_everything,
    round_robin_one_way_and_posted,
    many_at_once,
    in_order_by_key_and_to_a_queue,
    large_and_compressed,
    delayed_by_level,
    found_by_key_and_id,
)
