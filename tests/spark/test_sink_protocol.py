"""The sink's protocol against a real broker, without Spark: what is visible after every way a batch can go wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orbitmq.client.admin.half import half_messages
from orbitmq.client.admin.topics import create_topic
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.reader import offsets_at, read_range
from orbitmq.client.sender import Sender
from orbitmq.spark.errors import BadOption
from orbitmq.spark.sink_batches import BATCHES_AT_ONCE
from orbitmq.spark.sink_commit import Committer, TaskResult
from orbitmq.spark.sink_end import Ender
from orbitmq.spark.sink_handles import Handles
from orbitmq.spark.sink_markers import DONE, Markers
from orbitmq.spark.sink_options import SinkOptions, parse_sink_options, producer_group
from orbitmq.spark.sink_rows import BadRow, Row
from orbitmq.spark.sink_send import TaskSender
from orbitmq.wire.batch import iter_batch
from orbitmq.wire.message import Message
from orbitmq.wire.properties import Prop, decode_properties
from tests.support.server_process import ServerProcess


def plain_row(topic: str, body: bytes) -> Row:
    """One that asks for nothing."""
    return Row(topic, body, tag=None, keys=(), properties={}, order_key=None, deliver_ms=None, delay_level=0)


class Job:
    """One application that writes to a topic of its own."""

    def __init__(self, cluster: Cluster, options: SinkOptions, topic: str) -> None:
        self.cluster = cluster
        self.options = options
        self.topic = topic
        self.app_id = f"app-{topic}"

    def committer(self) -> Committer:
        """Spark makes a fresh one for every call."""
        return Committer(self.cluster, self.options, self.app_id)

    async def task(self, *bodies: str, task: int = 0, **fields: Any) -> TaskResult:
        group = producer_group(self.app_id) if self.options.transactional else "SPARK_SINK"
        sender = TaskSender(self.cluster, self.options, group, task)
        await sender.send(iter([self.row(body, **fields) for body in bodies]))
        return TaskResult(self.app_id, sender.rows, sender.handles.packed(), sender.ordered)

    def row(self, body: str, **fields: Any) -> Row:
        return plain_row(self.topic, body.encode())._replace(**fields)

    async def messages(self) -> list[Message]:
        route = await self.cluster.route(self.topic, refresh=True)
        start, end = (
            await offsets_at(self.cluster, route, "first"),
            await offsets_at(self.cluster, route, "last"),
        )
        return [message async for message in read_range(self.cluster, route, start, end)]

    async def visible(self) -> Counter[str]:
        return Counter([message.body.decode() for message in await self.messages()])

    async def left_open(self) -> int:
        found = await half_messages(self.cluster, group=producer_group(self.app_id), max_num=1000)
        return len(found.messages)

    def halves(self, *rows: int) -> int:
        """How many half messages tasks make of so many rows each."""
        return len(rows) if self.options.max_in_flight >= 2 * BATCHES_AT_ONCE else sum(rows)


def run(server: ServerProcess, topic: str, main: Callable[[Job], Awaitable[None]], **options: Any) -> None:
    async def body() -> None:
        async with asyncio.timeout(60), Cluster(server.namesrv, timeout_s=5) as cluster:
            await create_topic(cluster, topic, read_queues=4, write_queues=4)
            chosen = SinkOptions(server.namesrv, retry_timeout_s=10, request_timeout_s=5, **options)
            await main(Job(cluster, chosen, topic))

    asyncio.run(body())


Run = Callable[[ServerProcess, str, Callable[[Job], Awaitable[None]]], None]


@pytest.fixture(params=[True, False], ids=["together", "one by one"])
def both_ways(request: pytest.FixtureRequest) -> Run:
    """Rows of a task as one half message, and each as its own."""

    def run_so(server: ServerProcess, topic: str, main: Callable[[Job], Awaitable[None]]) -> None:
        if request.param:
            run(server, topic, main)
        else:
            run(server, f"{topic}Single", main, max_in_flight=BATCHES_AT_ONCE)

    return run_so


def test_rows_become_visible_at_the_commit_and_not_before(server: ServerProcess, both_ways: Run) -> None:
    async def main(job: Job) -> None:
        results = [await job.task("a", "b"), await job.task("c", task=1)]
        assert await job.visible() == Counter()
        outcome = await job.committer().commit(0, results)
        assert (outcome.committed, outcome.rolled_back, outcome.repeated) == (job.halves(2, 1), 0, False)
        assert await job.visible() == Counter("abc")
        assert await job.left_open() == 0

    both_ways(server, "Visible", main)


def test_every_column_arrives(server: ServerProcess, both_ways: Run) -> None:
    async def main(job: Job) -> None:
        rows = await job.task("x", "y", tag="T", keys=("k1", "k2"), properties={"colour": "red"})
        await job.committer().commit(0, [rows])
        assert await job.visible() == Counter("xy")
        for message in await job.messages():
            assert (message.tags, message.key_list) == ("T", ["k1", "k2"])
            assert message.properties["colour"] == "red"

    both_ways(server, "Columns", main)


def test_a_repeated_batch_changes_nothing_and_leaves_nothing_open(
    server: ServerProcess, both_ways: Run
) -> None:
    async def main(job: Job) -> None:
        await job.committer().commit(7, [await job.task("a", "b")])
        again = await job.committer().commit(7, [await job.task("a", "b", "other")])
        assert (again.committed, again.rolled_back, again.repeated) == (0, job.halves(3), True)
        older = await job.committer().commit(6, [await job.task("old")])
        assert older.repeated
        await job.committer().commit(8, [await job.task("c")])
        assert await job.visible() == Counter("abc")
        assert await job.left_open() == 0

    both_ways(server, "Repeated", main)


@pytest.mark.parametrize("ended_before", [0, 1, 3, 5])
def test_a_driver_that_dies_after_its_decision_is_finished_by_the_next(
    server: ServerProcess, both_ways: Run, ended_before: int
) -> None:
    async def main(job: Job) -> None:
        first = await job.task(*"abcde")
        handles = Handles.unpacked(first.packed)
        group = producer_group(job.app_id)
        await Markers(job.cluster, job.app_id).decide(3, group, handles, ordered=False)
        ender = Ender(job.cluster, group, retry_timeout_s=5)
        for broker in handles.of_broker:
            await ender.commit(broker, list(handles.pairs(broker))[:ended_before], perhaps_before=False)
        # The next run makes the batch again, perhaps in another order and cut differently.
        outcome = await job.committer().commit(3, [await job.task("e", "d"), await job.task(*"cba")])
        assert (outcome.committed, outcome.rolled_back, outcome.repeated) == (0, job.halves(2, 3), True)
        assert await job.visible() == Counter("abcde")
        newest = await Markers(job.cluster, job.app_id).newest()
        assert newest is not None and (newest.batch, newest.state) == (3, DONE)
        assert await job.left_open() == 0

    both_ways(server, f"Finished{ended_before}", main)


def test_a_batch_that_never_comes_back_is_finished_before_the_next_one(server: ServerProcess) -> None:
    async def main(job: Job) -> None:
        first = await job.task("a")
        handles = Handles.unpacked(first.packed)
        await Markers(job.cluster, job.app_id).decide(1, producer_group(job.app_id), handles, ordered=False)
        await job.committer().commit(2, [await job.task("b")])
        assert [message.body for message in await job.messages()] == [b"a", b"b"]

    run(server, "Overtaken", main)


def test_half_messages_of_a_killed_task_are_rolled_back_with_the_next_commit(
    server: ServerProcess, both_ways: Run
) -> None:
    async def main(job: Job) -> None:
        await job.task("lost", "lost too")
        outcome = await job.committer().commit(0, [await job.task("a")])
        assert (outcome.committed, outcome.rolled_back) == (1, job.halves(2))
        assert await job.visible() == Counter("a")
        assert await job.left_open() == 0

    both_ways(server, "Killed", main)


def test_the_first_rows_of_a_batch_are_not_the_batch(server: ServerProcess) -> None:
    """Where a broker cannot tell how it ended, only its last row shows that a commit came to its end."""

    async def main(job: Job) -> None:
        handles = Handles.unpacked((await job.task(*"abc")).packed)
        ((broker, _),) = handles.of_broker.items()
        stranger = Ender(job.cluster, "SomebodyElse", retry_timeout_s=1)
        half = await stranger._half(await job.cluster.broker_addr(broker), handles.of_broker[broker][0])
        ids = [decode_properties(text)[Prop.UNIQ_KEY] for _, _, text in iter_batch(half.body)]
        assert len(ids) == 3
        sender = Sender(job.cluster)
        for msg_id, body in zip(ids[:2], (b"a", b"b"), strict=True):
            await sender.send(sender.prepare(job.topic, body, msg_id=msg_id))
        with pytest.raises(OrbitMQError, match="producer group"):
            await stranger.commit(broker, handles.pairs(broker), perhaps_before=True)
        await sender.send(sender.prepare(job.topic, b"c", msg_id=ids[2]))
        await stranger.commit(broker, handles.pairs(broker), perhaps_before=True)

    run(server, "FirstRows", main)


def test_abort_rolls_back_unless_the_commit_itself_may_have_begun(
    server: ServerProcess, both_ways: Run
) -> None:
    async def main(job: Job) -> None:
        result = await job.task("a", "b")
        assert await job.committer().abort([result], anonymous=False) == 0
        assert await job.committer().abort([result, None], anonymous=False) == job.halves(2)
        await job.task("unreported")
        assert await job.committer().abort([None], anonymous=True) == 1
        assert await job.visible() == Counter()
        assert await job.left_open() == 0

    both_ways(server, "Aborted", main)


def test_of_two_drivers_with_one_batch_the_first_decision_counts(
    server: ServerProcess, both_ways: Run
) -> None:
    async def main(job: Job) -> None:
        mine, theirs = await job.task("a", "b"), await job.task("a", "b")
        outcomes = await asyncio.gather(
            job.committer().commit(0, [mine]), job.committer().commit(0, [theirs]), return_exceptions=True
        )
        assert any(not isinstance(outcome, BaseException) for outcome in outcomes), outcomes
        assert await job.visible() == Counter("ab")

    both_ways(server, "TwoDrivers", main)


def test_a_broker_that_does_not_know_any_more_how_it_ended_is_not_the_end(
    server: ServerProcess, both_ways: Run
) -> None:
    """Here it refuses because the group is another: then the messages themselves tell."""

    async def main(job: Job) -> None:
        handles = Handles.unpacked((await job.task("a", "b")).packed)
        ((broker, _),) = handles.of_broker.items()
        stranger = Ender(job.cluster, "SomebodyElse", retry_timeout_s=1)
        with pytest.raises(OrbitMQError, match="producer group"):
            await stranger.commit(broker, handles.pairs(broker), perhaps_before=True)
        ours = Ender(job.cluster, producer_group(job.app_id), retry_timeout_s=5)
        await ours.commit(broker, handles.pairs(broker), perhaps_before=False)
        assert await stranger.commit(broker, handles.pairs(broker), perhaps_before=True) == job.halves(2)
        assert await job.visible() == Counter("ab")

    both_ways(server, "Forgotten", main)


def test_more_handles_than_one_marker_holds(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orbitmq.spark.sink_markers.PART_BYTES", 16 * 10)

    async def main(job: Job) -> None:
        bodies = [f"m{number}" for number in range(57)]
        result = await job.task(*bodies)
        markers = Markers(job.cluster, job.app_id)
        marker, _ = await markers.decide(
            0, producer_group(job.app_id), Handles.unpacked(result.packed), ordered=False
        )
        assert await markers.handles(marker) == Handles.unpacked(result.packed)
        await job.committer().commit(0, [])
        assert await job.visible() == Counter(bodies)

    run(server, "Parts", main)


def test_rows_with_an_order_key_keep_their_order_in_one_queue(server: ServerProcess) -> None:
    async def main(job: Job) -> None:
        bodies = [f"{number:03}" for number in range(200)]
        await job.committer().commit(0, [await job.task(*bodies, order_key="customer 7")])
        found = await job.messages()
        assert len({message.queue_id for message in found}) == 1
        ordered = sorted(found, key=lambda message: message.queue_offset)
        assert [message.body.decode() for message in ordered] == bodies

    run(server, "Ordered", main)


def test_at_least_once_sends_at_once_and_in_order(server: ServerProcess) -> None:
    async def main(job: Job) -> None:
        bodies = [f"{number:03}" for number in range(100)]
        result = await job.task(*bodies, order_key="k")
        assert result.packed == {}
        found = sorted(await job.messages(), key=lambda message: message.queue_offset)
        assert [message.body.decode() for message in found] == bodies

    run(server, "Plain", main, delivery="at-least-once")


def test_a_delayed_row_waits_and_is_committed_once(server: ServerProcess) -> None:
    async def main(job: Job) -> None:
        due = datetime.now(UTC) + timedelta(seconds=1.5)
        due_ms = round(due.timestamp() * 1000)
        result = await job.task("later", deliver_ms=due_ms)
        await job.committer().commit(0, [result])
        await job.committer().commit(0, [await job.task("later", deliver_ms=due_ms)])
        assert await job.visible() == Counter()
        while not await job.visible():
            await asyncio.sleep(0.1)
        (message,) = await job.messages()
        assert message.store_ms >= due_ms - 1000
        await asyncio.sleep(0.5)
        assert await job.visible() == Counter(["later"])

    run(server, "Delayed", main)


def test_errors_name_the_row(server: ServerProcess) -> None:
    async def main(job: Job) -> None:
        with pytest.raises(
            BadRow, match=r"row 1 of task 3 \(topic Wrong, keys k9\).*body has 40 bytes.*maxBodyBytes"
        ):
            await job.task("small", "x" * 40, task=3, keys=("k9",))
        with pytest.raises(BadRow, match="row 0 of task 0.*body is empty"):
            await job.task("")
        with pytest.raises(BadRow, match="property 'UNIQ_KEY' is reserved"):
            await job.task("a", properties={"UNIQ_KEY": "x"})

    run(server, "Wrong", main, max_body_bytes=32)


def test_a_broker_that_restarts_in_the_middle_loses_nothing(tmp_path: Path, both_ways: Run) -> None:
    server = ServerProcess(tmp_path)
    try:

        async def main(job: Job) -> None:
            before = await job.task(*"abc")
            await asyncio.to_thread(server.restart)
            outcome = await job.committer().commit(0, [before, await job.task(*"de")])
            assert outcome.committed == job.halves(3, 2)
            again = await job.committer().commit(0, [await job.task(*"abcde")])
            assert again.repeated
            assert await job.visible() == Counter("abcde")

        both_ways(server, "Restarted", main)
    finally:
        server.stop()


def test_a_broker_that_stays_away_is_an_error_after_the_time_allowed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)

    async def main(job: Job) -> None:
        await asyncio.to_thread(server.stop)
        with pytest.raises(OrbitMQError, match=r"row 0 of task 0 .*was not stored"):
            await job.task("a")

    async def body() -> None:
        async with asyncio.timeout(30), Cluster(server.namesrv, timeout_s=1) as cluster:
            await create_topic(cluster, "Gone")
            await main(Job(cluster, SinkOptions(server.namesrv, retry_timeout_s=0.5), "Gone"))

    asyncio.run(body())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"topc": "x"}, "option 'topc'.*did you mean topic"),
        ({"topic": "bad topic"}, "option 'topic'"),
        ({"delivery": "twice"}, "option 'delivery'.*exactly-once"),
        ({"txnVersion": "3"}, "option 'txnVersion'.*txnAppId"),
        ({"txnAppId": "a b"}, "option 'txnAppId'"),
        ({"maxInFlight": "none"}, "option 'maxInFlight'.*no whole number"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        parse_sink_options(options)


def test_handles_are_small_and_come_back_as_they_were() -> None:
    handles = Handles()
    for number in range(10_000):
        handles.add("broker-a", 5_000_000_000 + number * 281, 77 + number)
    packed = handles.packed()
    assert len(packed["broker-a"]) < 10_000
    assert Handles.unpacked(packed) == handles
