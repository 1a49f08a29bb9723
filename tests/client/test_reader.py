"""Reading without a group: ranges in order of time, held pulls, gaps, and brokers that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from orbitmq.client import reader as reader_module
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError, Refused
from orbitmq.client.reader import Follower, Gap, offsets_at, parse_tags, read_range
from orbitmq.net.connection import Connection
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import encode_record
from orbitmq.wire.properties import encode_properties
from tests.support.fake_servers import FakeCluster, fake_cluster, reply


class FakeQueues:
    """Queues in memory behind PULL_MESSAGE; a pull at the end waits for `add`, as a broker holds it."""

    def __init__(self, count: int) -> None:
        self.records: list[list[bytes]] = [[] for _ in range(count)]
        self.first = 0
        self.batch = 2
        self.arrived = asyncio.Event()

    def add(self, queue_id: int, store_ms: int, body: bytes, tag: str = "") -> None:
        queue = self.records[queue_id]
        properties = encode_properties({"TAGS": tag}) if tag else b""
        queue.append(
            encode_record(
                topic="TopicA",
                body=body,
                properties=properties,
                queue_id=queue_id,
                queue_offset=len(queue),
                store_ms=store_ms,
            )
        )
        self.arrived.set()

    def offset(self, which: str) -> Callable[[Connection, Command], Command]:
        def handle(conn: Connection, command: Command) -> Command:
            end = len(self.records[int(command.ext["queueId"])])
            return command.reply(ext={"offset": str(end if which == "last" else self.first)})

        return handle

    async def pull(self, conn: Connection, command: Command) -> Command:
        queue = self.records[int(command.ext["queueId"])]
        offset = int(command.ext["queueOffset"])
        held = int(command.ext["sysFlag"]) & 2
        while held and offset >= len(queue):
            self.arrived.clear()
            await self.arrived.wait()
        ext = {"suggestWhichBrokerId": "0", "minOffset": str(self.first), "maxOffset": str(len(queue))}
        if offset < self.first:
            return command.reply(
                ResponseCode.PULL_OFFSET_MOVED, ext={**ext, "nextBeginOffset": str(self.first)}
            )
        if offset >= len(queue):
            return command.reply(ResponseCode.PULL_NOT_FOUND, ext={**ext, "nextBeginOffset": str(offset)})
        found = queue[offset : offset + self.batch]
        return command.reply(ext={**ext, "nextBeginOffset": str(offset + len(found))}, body=b"".join(found))

    @property
    def answers(self) -> dict[int, Any]:
        return {
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.GET_MIN_OFFSET: self.offset("first"),
            RequestCode.GET_MAX_OFFSET: self.offset("last"),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.offset("first"),
        }


def with_queues(work: Callable[[Cluster, FakeQueues, FakeCluster], Awaitable[None]], count: int = 2) -> None:
    async def scenario() -> None:
        queues = FakeQueues(count)
        async with (
            fake_cluster(queues.answers, queues=count) as fake,
            Cluster(fake.namesrv.addr, timeout_s=2) as cluster,
        ):
            await asyncio.wait_for(work(cluster, queues, fake), 10)

    asyncio.run(scenario())


def test_a_range_comes_in_order_of_time_over_all_queues() -> None:
    async def work(cluster: Cluster, queues: FakeQueues, fake: FakeCluster) -> None:
        for second in range(10):
            queues.add(second % 2, 1000 + second, b"%d" % second)
        route = await cluster.route("TopicA")
        start, end = await offsets_at(cluster, route, "first"), await offsets_at(cluster, route, "last")
        bodies = [message.body async for message in read_range(cluster, route, start, end)]
        assert bodies == [b"%d" % second for second in range(10)]

    with_queues(work)


def test_a_range_ends_where_it_was_told_to() -> None:
    async def work(cluster: Cluster, queues: FakeQueues, fake: FakeCluster) -> None:
        queues.batch = 32
        for number in range(9):
            queues.add(0, 1000 + number, b"%d" % number)
        route = await cluster.route("TopicA")
        queue = MessageQueue("TopicA", "broker-a", 0)
        bodies = [message.body async for message in read_range(cluster, route, {queue: 3}, {queue: 6})]
        assert bodies == [b"3", b"4", b"5"]

    with_queues(work)


def test_cleaned_messages_are_reported_as_a_gap() -> None:
    async def work(cluster: Cluster, queues: FakeQueues, fake: FakeCluster) -> None:
        for number in range(6):
            queues.add(0, 1000 + number, b"%d" % number)
        queues.first = 4
        route = await cluster.route("TopicA")
        queue = MessageQueue("TopicA", "broker-a", 0)
        gaps: list[Gap] = []
        stream = read_range(cluster, route, {queue: 1}, {queue: 6}, on_gap=gaps.append)
        assert [message.body async for message in stream] == [b"4", b"5"]
        assert gaps == [Gap(queue, 1, 4)]

    with_queues(work)


def test_tags_that_only_share_a_hash_are_left_out() -> None:
    async def work(cluster: Cluster, queues: FakeQueues, fake: FakeCluster) -> None:
        for number, tag in enumerate(["A", "B", "", "C"]):
            queues.add(0, 1000 + number, tag.encode() or b"none", tag)
        route = await cluster.route("TopicA")
        queue = MessageQueue("TopicA", "broker-a", 0)
        stream = read_range(cluster, route, {queue: 0}, {queue: 4}, tags="A || C")
        assert [message.body async for message in stream] == [b"A", b"C"]
        assert fake.brokers["broker-a"].requests(RequestCode.PULL_MESSAGE)[0].ext["subscription"] == "A || C"

    with_queues(work)


def test_a_follower_gets_what_arrives_and_leaves_nothing_behind() -> None:
    async def work(cluster: Cluster, queues: FakeQueues, fake: FakeCluster) -> None:
        route = await cluster.route("TopicA")
        start = await offsets_at(cluster, route, "last")
        before = asyncio.all_tasks()
        async with Follower(cluster, route, start) as arriving:
            await asyncio.sleep(0.05)
            queues.add(1, 5, b"one")
            assert (await anext(arriving)).body == b"one"
            queues.add(0, 6, b"two")
            assert (await anext(arriving)).body == b"two"
        assert {task for task in asyncio.all_tasks() - before if "_follow" in repr(task)} == set()
        pull = fake.brokers["broker-a"].requests(RequestCode.PULL_MESSAGE)[0]
        assert (pull.ext["consumerGroup"], pull.ext["sysFlag"]) == ("TOOLS_CONSUMER", "6")

    with_queues(work)


def test_a_follower_waits_for_a_broker_that_went_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "RETRY_AFTER_S", 0.02)

    async def work(cluster: Cluster, queues: FakeQueues, fake: FakeCluster) -> None:
        route = await cluster.route("TopicA")
        queue = MessageQueue("TopicA", "broker-a", 0)
        troubles: list[OrbitMQError] = []
        broker = fake.brokers["broker-a"]
        broker.answers[RequestCode.PULL_MESSAGE] = reply(ResponseCode.SYSTEM_BUSY)
        async with Follower(cluster, route, {queue: 0}, on_trouble=troubles.append) as arriving:
            await asyncio.sleep(0.1)
            broker.answers[RequestCode.PULL_MESSAGE] = queues.pull
            queues.add(0, 5, b"back")
            assert (await anext(arriving)).body == b"back"
        assert len(troubles) == 1

    with_queues(work)


def test_an_answer_that_waiting_cannot_change_ends_the_following() -> None:
    async def work(cluster: Cluster, queues: FakeQueues, fake: FakeCluster) -> None:
        fake.brokers["broker-a"].answers[RequestCode.PULL_MESSAGE] = reply(ResponseCode.NO_PERMISSION)
        route = await cluster.route("TopicA")
        async with Follower(cluster, route, {MessageQueue("TopicA", "broker-a", 0): 0}) as arriving:
            with pytest.raises(Refused, match="NO_PERMISSION"):
                await anext(arriving)

    with_queues(work)


def test_damaged_records_are_an_error_not_a_gap() -> None:
    async def work(cluster: Cluster, queues: FakeQueues, fake: FakeCluster) -> None:
        queues.add(0, 5, b"x" * 50)
        queues.records[0][0] = queues.records[0][0][:-20]
        route = await cluster.route("TopicA")
        queue = MessageQueue("TopicA", "broker-a", 0)
        with pytest.raises(OrbitMQError, match="bad"):
            [message async for message in read_range(cluster, route, {queue: 0}, {queue: 1})]

    with_queues(work)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("*", ()), ("", ()), ("A", ("A",)), (" A||B || ", ("A", "B")), ("A || *", ("A",))],
)
def test_tag_expressions(expression: str, tags: tuple[str, ...]) -> None:
    assert parse_tags(expression) == frozenset(tags)
