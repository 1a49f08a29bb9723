"""The public reader: pages, iteration, places, ranges, and what happens when a broker goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orbitmq.client.client import Client, connect
from orbitmq.client.errors import BadRequest, Closed, NotFound, OrbitMQError
from orbitmq.client.paging import Filter, split_page
from orbitmq.client.reader import Gap
from orbitmq.client.sender import Sender
from orbitmq.testing import BROKER_NAME, Server
from orbitmq.wire.fastjson import MessageQueue

LIMIT_S = 15.0
TOPIC = "Readings"


def run(server: Server, work: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S), connect(server.namesrv) as mq:
            await work(mq)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"

    asyncio.run(bounded())


async def send(mq: Client, *bodies: bytes, queue_id: int | None = None, **options: Any) -> None:
    sender = Sender(mq.cluster)
    for body in bodies:
        await sender.send(sender.prepare(TOPIC, body, **options), queue_id=queue_id)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue(TOPIC, BROKER_NAME, queue_id)


@pytest.fixture
def server(orbitmq_server: Server) -> Server:
    orbitmq_server.create_topic(TOPIC, queues=2)
    return orbitmq_server


def test_read_gives_what_is_there_in_the_order_of_each_queue(server: Server) -> None:
    async def work(mq: Client) -> None:
        await send(mq, *numbered(0, 100), queue_id=0)
        await send(mq, *numbered(100, 150), queue_id=1)
        async with mq.reader(TOPIC) as reader:
            found = []
            while len(found) < 150:
                page = await reader.read(max_messages=40)
                assert 0 < len(page) <= 40
                found += page
            assert await reader.read(max_wait=0.05) == []
        by_queue = {
            number: [message.body for message in found if message.queue_id == number] for number in (0, 1)
        }
        assert by_queue == {0: numbered(0, 100), 1: numbered(100, 150)}
        assert [message.queue_offset for message in found if message.queue_id == 1] == list(range(50))

    run(server, work)


def test_read_waits_for_the_first_message_and_no_longer(server: Server) -> None:
    async def work(mq: Client) -> None:
        async with mq.reader(TOPIC, start="latest") as reader:
            waiting = asyncio.create_task(reader.read(max_wait=timedelta(seconds=10)))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await send(mq, b"at last")
            assert [message.body for message in await waiting] == [b"at last"]

    run(server, work)


def test_iteration_goes_on_with_what_arrives_and_mixes_with_read(server: Server) -> None:
    async def work(mq: Client) -> None:
        await send(mq, *numbered(0, 10), queue_id=0)
        async with mq.reader(TOPIC) as reader:
            found = []
            async for message in reader:
                found.append(message.body)
                if len(found) == 4:
                    break
            assert reader.positions[queue(0)] == 4
            found += [message.body for message in await reader.read(max_messages=3)]
            assert reader.positions[queue(0)] == 7
            found += [message.body for message in await reader.read()]
            await send(mq, b"new", queue_id=1)
            async for message in reader:
                found.append(message.body)
                break
            assert found == [*numbered(0, 10), b"new"]

    run(server, work)


def test_positions_go_on_where_another_reader_stopped(server: Server) -> None:
    async def work(mq: Client) -> None:
        await send(mq, *numbered(0, 6), queue_id=0)
        await send(mq, *numbered(6, 9), queue_id=1)
        async with mq.reader(TOPIC, queues=[0]) as reader:
            assert len(await reader.read(max_messages=4)) == 4
            kept = reader.positions
        assert kept == {queue(0): 4}
        async with mq.reader(TOPIC, start=kept) as reader:
            found = sorted([(await anext(reader)).body for _ in range(5)])
        assert found == numbered(4, 9), "the queue without a kept position is read from its beginning"

    run(server, work)


def test_a_reader_starts_and_seeks_by_time_offset_or_end(server: Server) -> None:
    async def work(mq: Client) -> None:
        await send(mq, *numbered(0, 3), queue_id=0)
        middle = server.advance(hours=1)
        await send(mq, *numbered(3, 6), queue_id=0)
        async with mq.reader(TOPIC, start=middle, queues=[("broker-a", 0)]) as reader:

            async def following() -> list[bytes]:
                return [message.body for message in await reader.read(max_wait=0.2)]

            assert await following() == numbered(3, 6)
            await reader.seek("earliest")
            assert await following() == numbered(0, 6)
            await reader.seek(5)
            assert await following() == numbered(5, 6)
            await reader.seek({0: 1})
            assert await following() == numbered(1, 6)
            await reader.seek("latest")
            assert await following() == []
            assert await reader.ends() == reader.positions == {queue(0): 6}

    run(server, work)


def test_a_range_is_replayed_in_the_order_of_storing_and_ends(server: Server) -> None:
    async def work(mq: Client) -> None:
        await send(mq, b"too early", queue_id=0)
        first = server.advance(minutes=1)
        for number in range(10):
            await send(mq, b"%d" % number, queue_id=number % 2)
            server.advance(seconds=1)
        last = server.advance(minutes=1)
        await send(mq, b"too late", queue_id=1)
        async with mq.reader(TOPIC, start="latest") as reader:
            before = reader.positions
            assert [message.body async for message in reader.range(first, last)] == numbered(0, 10)
            by_offset = [message.body async for message in reader.range({0: 1, 1: 0}, {0: 3, 1: 1})]
            assert by_offset == [b"0", b"1", b"2"]
            everything = [message.body async for message in reader.range("earliest", "latest")]
            assert everything == [b"too early", *numbered(0, 10), b"too late"]
            nothing = datetime.now(UTC) + timedelta(days=30)
            assert [message async for message in reader.range(nothing, nothing)] == []
            assert reader.positions == before

    run(server, work)


def test_tags_and_conditions_choose_messages(server: Server) -> None:
    async def work(mq: Client) -> None:
        for number in range(9):
            await send(
                mq, b"%d" % number, tag=("new", "paid", "BB")[number % 3], properties={"price": str(number)}
            )
        for options, wanted in (
            ({"tags": "paid || new"}, [0, 1, 3, 4, 6, 7]),
            # "Aa" and "BB" have the same hash, so the broker alone would let them through.
            ({"tags": "Aa"}, []),
            ({"tags": "BB"}, [2, 5, 8]),
            ({"sql": "price BETWEEN 3 AND 5"}, [3, 4, 5]),
        ):
            async with mq.reader(TOPIC, **options) as reader:
                found: list[bytes] = []
                while page := await reader.read(max_wait=0.2):
                    found += [message.body for message in page]
                assert sorted(found) == [b"%d" % number for number in wanted], options

    run(server, work)


def test_reading_goes_on_when_the_broker_comes_back(server: Server) -> None:
    async def work(mq: Client) -> None:
        await send(mq, b"before", queue_id=0)
        async with mq.reader(TOPIC) as reader:
            assert (await anext(reader)).body == b"before"
            await asyncio.to_thread(server.stop_broker)
            assert await reader.read(max_wait=0.3) == []
            await asyncio.to_thread(server.start_broker)
            await mq.cluster.route(TOPIC, refresh=True)
            await send(mq, b"after", queue_id=0)
            assert (await anext(reader)).body == b"after"

    run(server, work)


def test_a_topic_that_grows_is_read_whole(server: Server) -> None:
    async def work(mq: Client) -> None:
        async with mq.reader(TOPIC, start="latest") as reader:
            server.create_topic(TOPIC, queues=4)
            await mq.cluster.route(TOPIC, refresh=True)
            await send(mq, b"in a new queue", queue_id=3)
            await mq.routes.refresh(TOPIC)
            assert (await anext(reader)).body == b"in a new queue"

    run(server, work)


def test_an_offset_that_is_gone_is_told_and_passed_over(server: Server) -> None:
    gaps: list[Gap] = []

    async def work(mq: Client) -> None:
        await send(mq, *numbered(0, 3), queue_id=0)
        async with mq.reader(TOPIC, start=1000, queues=[0], on_gap=gaps.append) as reader:
            while not gaps:
                assert await reader.read(max_wait=0.1) == []
            assert gaps[0] == Gap(queue(0), 1000, 3)
            await send(mq, b"next", queue_id=0)
            assert (await anext(reader)).body == b"next"

    run(server, work)


def test_wrong_use_is_told_with_its_remedy(server: Server) -> None:
    async def refused(kind: type[OrbitMQError], text: str, hint: str, reader: Any) -> None:
        with pytest.raises(kind, match=text) as caught:
            async with reader:
                pass
        assert hint in caught.value.hint

    async def work(mq: Client) -> None:
        await refused(NotFound, "'Nowhere' does not exist", "topic create", mq.reader("Nowhere"))
        await refused(BadRequest, "'begin' is no position", "earliest", mq.reader(TOPIC, start="begin"))
        await refused(
            BadRequest, "no time zone", "UTC", mq.reader(TOPIC, start=datetime.now(UTC).replace(tzinfo=None))
        )
        await refused(BadRequest, "-3 is no offset", "latest", mq.reader(TOPIC, start=-3))
        await refused(NotFound, "no queue 7", "broker-a/0", mq.reader(TOPIC, queues=[7]))
        with pytest.raises(BadRequest, match="tags= and sql="):
            mq.reader(TOPIC, tags="a", sql="b = 1")
        reader = mq.reader(TOPIC)
        with pytest.raises(Closed, match="not opened") as caught:
            await reader.read()
        assert "async with" in caught.value.hint
        async with reader:
            with pytest.raises(BadRequest, match="max_messages=0"):
                await reader.read(max_messages=0)
        with pytest.raises(Closed, match="closed"):
            await reader.read()

    run(server, work)


def test_a_message_that_was_only_read_cannot_be_acknowledged(server: Server) -> None:
    async def work(mq: Client) -> None:
        await send(mq, b"read only")
        async with mq.reader(TOPIC) as reader:
            with pytest.raises(BadRequest, match="without a consumer group"):
                (await anext(reader)).ack()

    run(server, work)


def test_the_client_closes_its_readers(server: Server) -> None:
    async def work(mq: Client) -> None:
        reader = mq.reader(TOPIC)
        await reader.open()
        waiting = asyncio.create_task(reader.read(max_wait=10))
        await asyncio.sleep(0.02)
        await mq.close()
        with pytest.raises(Closed):
            await waiting

    run(server, work)


def test_a_deleted_topic_ends_the_reading_with_its_error(server: Server) -> None:
    async def work(mq: Client) -> None:
        await send(mq, b"last")
        async with mq.reader(TOPIC) as reader:
            await anext(reader)
            await mq.admin.delete_topic(TOPIC)
            with pytest.raises(OrbitMQError):
                async with asyncio.timeout(5):
                    await anext(reader)

    run(server, work)


@pytest.mark.parametrize(
    "damage", [b"\x00\x00", b"\x00\x00\x00\x05" + bytes(100), b"\x7f\xff\xff\xff" + bytes(100)]
)
def test_a_damaged_page_is_an_error_and_no_endless_loop(damage: bytes) -> None:
    with pytest.raises(OrbitMQError, match="no readable message"):
        split_page(damage, "broker-a")


def test_tags_are_compared_here_as_well_unless_all_are_wanted() -> None:
    assert Filter("a || b").tags == {"a", "b"}
    assert Filter("*").tags == Filter("").tags == Filter("price > 3", is_sql=True).tags == frozenset()
