"""Transactions, and requests that wait for a reply."""

from __future__ import annotations

import asyncio

import pytest

import orbitmq
from orbitmq.client.check_back import transaction_id_of
from tests.client.suite.world import World, bodies, nothing_comes, take


class Oops(Exception):
    """What a failing database would raise."""


async def transaction_commits(world: World) -> None:
    async with world.client() as mq:
        first, second = await world.topic(mq), await world.topic(mq)
        producer = mq.producer(world.name("producers"))
        async with mq.consumer(world.name("group"), [first, second], start="first") as inbox:
            async with producer.transaction(first, b"order", keys="o-1", tag="new") as tx:
                await tx.send(second, b"stock")
                await nothing_comes(inbox)
            messages = await take(inbox, 2)
            assert {message.topic: message.body for message in messages} == {
                first: b"order",
                second: b"stock",
            }
            (order,) = [message for message in messages if message.topic == first]
            assert (order.keys, order.tag) == (["o-1"], "new")


async def transaction_rolls_back(world: World) -> None:
    async with world.client() as mq:
        topic = await world.topic(mq)
        producer = mq.producer(world.name("producers"))
        async with mq.consumer(world.name("group"), topic, start="first") as inbox:
            with pytest.raises(Oops):
                await _fail_inside(producer, topic)
            async with producer.transaction(topic, b"nor that") as tx:
                tx.rollback()
            await producer.send(topic, b"plain")
            assert bodies(await take(inbox, 1)) == [b"plain"]
            await nothing_comes(inbox, 1.5)


async def _fail_inside(producer: orbitmq.Producer, topic: str) -> None:
    async with producer.transaction(topic, b"never") as tx:
        await tx.send(topic, b"nor this")
        raise Oops


async def transaction_of_a_dead_process_is_checked(world: World) -> None:
    """The process that prepared the messages is gone: another one of its group answers the broker."""
    group = world.name("producers")
    async with world.client() as mq:
        topic = await world.topic(mq)
        saved = await _prepare_and_die(world, group, topic, b"saved")
        lost = await _prepare_and_die(world, group, topic, b"lost")
        asked: list[str] = []

        async def look(message: orbitmq.Message) -> bool:
            asked.append(transaction_id_of(message))
            return transaction_id_of(message) == saved

        mq.producer(group, check=look)
        async with mq.consumer(world.name("group"), topic, start="first") as inbox:
            assert bodies(await take(inbox, 1)) == [b"saved"]
            await nothing_comes(inbox, 1.5)
        assert {saved, lost} == set(asked)


async def _prepare_and_die(world: World, group: str, topic: str, body: bytes) -> str:
    mq = world.connect()
    try:
        transaction = mq.producer(group).transaction(topic, body)
        await transaction.__aenter__()
        return transaction.id
    finally:
        await mq.close()


async def request_and_reply(world: World) -> None:
    async with world.connect(instance="asker") as asker, world.connect(instance="server") as server:
        topic = await world.topic(asker)
        replier = server.producer(world.name("repliers"))

        async def answer(msg: orbitmq.Message) -> None:
            await replier.reply(msg, b"echo " + msg.body, properties={"by": "server"})

        async with server.consumer(world.name("group"), topic, start="first") as inbox:
            serving = asyncio.create_task(inbox.run(answer))
            producer = asker.producer(world.name("askers"))
            replies = await asyncio.gather(
                *(producer.request(topic, b"%d" % n, timeout=15) for n in range(10))
            )
            assert [reply.body for reply in replies] == [b"echo %d" % n for n in range(10)]
            assert replies[0].properties["by"] == "server"
            inbox.stop()
            await serving


SCENARIOS = (
    transaction_commits,
    transaction_rolls_back,
    transaction_of_a_dead_process_is_checked,
    request_and_reply,
)
