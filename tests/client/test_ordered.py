"""Ordered consumption against a real broker: one at a time, in place, one owner."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from orbitmq.client.client import connect
from orbitmq.client.message import Message
from orbitmq.testing import Server
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import request
from tests.support.consuming import Crowd, collect, run, send, until


def test_every_queue_keeps_its_order_under_concurrency(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        under_way: set[int] = set()
        seen: dict[int, list[int]] = defaultdict(list)

        async def handle(msg: Message) -> None:
            assert msg.queue_id not in under_way, "two messages of one queue at the same time"
            under_way.add(msg.queue_id)
            await asyncio.sleep(0.0002 * (int(msg.text) % 3))
            seen[msg.queue_id].append(int(msg.text))
            under_way.discard(msg.queue_id)

        async with connect(orbitmq_server.namesrv) as mq:
            for queue in range(4):
                await send(mq, "steps", range(50), queue_id=queue)
            async with mq.consumer("flow", "steps", ordered=True, concurrency=8) as consumer:
                task = asyncio.create_task(consumer.run(handle))
                await until(lambda: sum(map(len, seen.values())) == 200)
                consumer.stop()
                await task
        assert seen == {queue: list(range(50)) for queue in range(4)}

    run(scenario)


def test_a_failed_message_holds_up_its_queue_and_no_other(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        seen: list[tuple[int, str, int]] = []

        async def handle(msg: Message) -> None:
            seen.append((msg.queue_id, msg.text, msg.reconsume_times))
            if msg.text == "bad" and msg.reconsume_times < 3:
                msg.retry(after=0.02)

        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "steps", ["bad", "after"], queue_id=0)
            await send(mq, "steps", ["free"], queue_id=1)
            async with mq.consumer("flow", "steps", ordered=True) as consumer:
                task = asyncio.create_task(consumer.run(handle))
                await until(lambda: len(seen) == 6)
                consumer.stop()
                await task
        assert [entry for entry in seen if entry[0] == 0] == [
            *((0, "bad", times) for times in range(4)),
            (0, "after", 0),
        ]
        assert seen.index((1, "free", 0)) < seen.index((0, "after", 0))

    run(scenario)


def test_after_its_retries_it_is_a_dead_letter_and_the_queue_goes_on(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        tries: list[str] = []

        async def handle(msg: Message) -> None:
            tries.append(msg.text)
            if msg.text == "bad":
                msg.retry(after=0.01, reason="out of stock")

        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "steps", ["bad", "after"], queue_id=0)
            async with mq.consumer("flow", "steps", ordered=True, max_retries=2) as consumer:
                task = asyncio.create_task(consumer.run(handle))
                await until(lambda: "after" in tries)
                consumer.stop()
                await task
        assert tries == ["bad"] * 3 + ["after"]
        (dead,) = orbitmq_server.dead("flow")
        assert dead.body == b"bad" and dead.properties["DLQ_REASON"] == "out of stock"

    run(scenario)


def test_a_queue_is_handed_over_without_gap_or_overlap(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        under_way: set[int] = set()

        async def handle(msg: Message) -> None:
            assert msg.queue_id not in under_way, "two members work on one queue"
            under_way.add(msg.queue_id)
            await asyncio.sleep(0.001)
            under_way.discard(msg.queue_id)

        crowd = Crowd(orbitmq_server.namesrv, "flow", "steps", ordered=True, start="first")
        async with connect(orbitmq_server.namesrv) as mq:
            for queue in range(4):
                await send(mq, "steps", range(100), queue_id=queue)
            async with crowd.member("one", handle):
                await until(lambda: len(crowd.handled) > 40)
                async with crowd.member("two", handle):
                    await crowd.settled(4)
                    start = len(crowd.handled)
                    for queue in range(4):
                        await send(mq, "steps", range(100, 200), queue_id=queue)
                    await until(lambda: {name for name, _ in crowd.handled[start:]} == {"one", "two"})
                await until(lambda: len(crowd.handled) >= 800)
                await crowd.settled(4)
        for queue in range(4):
            numbers = [int(msg.text) for _, msg in crowd.handled if msg.queue_id == queue]
            assert numbers == list(range(200))

    run(scenario)


def test_nothing_is_handled_while_somebody_else_has_the_lock(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "steps", ["one"], queue_id=0)
            body = (
                b'{"clientId":"other","consumerGroup":"flow","mqSet":'
                b'[{"brokerName":"broker-a","queueId":0,"topic":"steps"}]}'
            )
            addr = orbitmq_server.address
            await mq.cluster.request(addr, request(RequestCode.LOCK_BATCH_MQ, body=body))
            async with mq.consumer("flow", "steps", ordered=True) as consumer:
                await until(lambda: len([queue for queue in consumer.queues if queue.topic == "steps"]) == 3)
                await asyncio.sleep(0.1)
                assert all(queue.queue_id != 0 for queue in consumer.queues if queue.topic == "steps")
                await mq.cluster.request(addr, request(RequestCode.UNLOCK_BATCH_MQ, body=body))
                assert await collect(consumer, 1) == ["one"]

    run(scenario)
