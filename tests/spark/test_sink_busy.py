"""Back-pressure: a broker that is busy is asked again, later and later, and never with more than the options allow."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.net.connection import Connection
from orbitmq.spark.sink_end import Ender
from orbitmq.spark.sink_options import SinkOptions
from orbitmq.spark.sink_rows import Row
from orbitmq.spark.sink_send import FIRST_PAUSE_S, LONGEST_PAUSE_S, TaskSender
from orbitmq.wire.codes import OrbitCode, RequestCode, ResponseCode, SysFlag
from orbitmq.wire.command import Command
from tests.support.fake_servers import FakeCluster, fake_cluster, reply

SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION
GROUP = "SPARK_SINK_busy"
BUSY = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"


def rows(count: int) -> Iterator[Row]:
    return (Row("TopicA", b"row %d" % n, None, (f"k{n}",), {}, None, None, 0) for n in range(count))


class Busy:
    """Says "busy" so many times to each message, then stores it."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.tries: Counter[str] = Counter()
        self._places = itertools.count()

    def __call__(self, conn: Connection, command: Command) -> Command:
        name = command.ext["i" if command.code == SEND else "commitLogOffset"]
        self.tries[name] += 1
        if self.tries[name] <= self.times:
            return command.reply(ResponseCode.SYSTEM_BUSY, BUSY)
        place = next(self._places)
        msg_id = f"7F00000100002A9F{place:016X}"
        return command.reply(ext={"msgId": msg_id, "queueId": "0", "queueOffset": str(place)})


def run(
    answers: Mapping[int, Any],
    work: Callable[[FakeCluster, Cluster, list[float]], Awaitable[None]],
    topics: tuple[str, ...] = ("TopicA",),
) -> list[float]:
    """Does it with a clock that does not wait: the pauses that were asked for."""
    pauses: list[float] = []

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            fake_cluster(answers, topics=topics) as fake,
            Cluster(fake.namesrv.addr, timeout_s=10) as cluster,
        ):
            await work(fake, cluster, pauses)

    asyncio.run(main())
    return pauses


def noted(pauses: list[float]) -> Callable[[float], Awaitable[None]]:
    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    return sleep


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_every_row_that_was_refused_is_sent_again_after_a_pause_that_grows(delivery: str) -> None:
    busy = Busy(8)

    async def work(fake: FakeCluster, cluster: Cluster, pauses: list[float]) -> None:
        options = SinkOptions(fake.namesrv.addr, "TopicA", delivery=delivery)
        sender = TaskSender(cluster, options, GROUP, 0, sleep=noted(pauses))
        await sender.send(rows(20))
        assert sender.rows == 20
        assert len(sender.handles) == (20 if delivery == "exactly-once" else 0)

    refused = reply(ResponseCode.SYSTEM_BUSY, remark=BUSY)
    pauses = run({SEND: busy, RequestCode.SEND_BATCH_MESSAGE: refused}, work)
    # The same id each time: the broker sees nine tries of twenty messages, not more messages.
    assert sorted(busy.tries.values()) == [9] * 20
    # Plain rows came in a batch before, which was refused as well.
    tries = 8 if delivery == "exactly-once" else 9
    assert len(pauses) == 20 * tries
    steps = [FIRST_PAUSE_S * 2**n for n in range(tries)]
    for pause in pauses:
        assert any(0.5 * step <= pause <= 1.5 * step for step in (min(s, LONGEST_PAUSE_S) for s in steps))
    assert max(pauses) <= 1.5 * LONGEST_PAUSE_S
    assert sum(pause >= 0.5 * LONGEST_PAUSE_S for pause in pauses) >= 20


def test_one_that_stays_busy_is_an_error_that_names_the_row() -> None:
    async def work(fake: FakeCluster, cluster: Cluster, pauses: list[float]) -> None:
        options = SinkOptions(fake.namesrv.addr, "TopicA", retry_timeout_s=0.2)
        sender = TaskSender(cluster, options, GROUP, 3)
        with pytest.raises(
            OrbitMQError, match=r"row \d of task 3 \(topic TopicA, keys k\d\) was not stored.*flow control"
        ):
            await sender.send(rows(5))

    run({SEND: reply(ResponseCode.SYSTEM_BUSY, remark=BUSY)}, work)


def test_a_refusal_that_no_pause_can_mend_is_told_at_once() -> None:
    async def work(fake: FakeCluster, cluster: Cluster, pauses: list[float]) -> None:
        sender = TaskSender(cluster, SinkOptions(fake.namesrv.addr), GROUP, 0, sleep=noted(pauses))
        with pytest.raises(OrbitMQError, match="row 0 of task 0 .*was not stored.*illegal"):
            await sender.send(rows(1))

    assert run({SEND: reply(ResponseCode.MESSAGE_ILLEGAL, remark="the message is illegal")}, work) == []


def test_no_more_are_under_way_than_the_option_allows() -> None:
    waiting: list[asyncio.Future[None]] = []
    most = 0

    async def slow(conn: Connection, command: Command) -> Command:
        nonlocal most
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        most = max(most, len(waiting))
        await turn
        return command.reply(ext={"msgId": "7F00000100002A9F" + "0" * 16, "queueId": "0", "queueOffset": "1"})

    async def work(fake: FakeCluster, cluster: Cluster, pauses: list[float]) -> None:
        options = SinkOptions(fake.namesrv.addr, "TopicA", max_in_flight=7)
        sending = asyncio.create_task(TaskSender(cluster, options, GROUP, 0).send(rows(50)))
        while not sending.done():
            if len(waiting) < 7:  # whatever may come is there
                await asyncio.sleep(0.01)
            while waiting:
                waiting.pop().set_result(None)
            await asyncio.sleep(0)
        await sending

    run({SEND: slow}, work)
    assert most == 7


def test_ends_that_a_busy_broker_refuses_are_asked_for_again() -> None:
    busy = Busy(3)
    halves = [(1000 + n, n) for n in range(40)]

    async def work(fake: FakeCluster, cluster: Cluster, pauses: list[float]) -> None:
        ender = Ender(cluster, GROUP, retry_timeout_s=30, sleep=noted(pauses))
        assert await ender.commit("broker-a", halves, perhaps_before=False) == 40
        asked = fake.brokers["broker-a"].requests(END)
        # In the order of the rows, also when it is asked for again.
        places = [int(command.ext["commitLogOffset"]) for command in asked]
        assert places == [place for place, _ in halves] * 4
        assert {command.ext["commitOrRollback"] for command in asked} == {str(int(SysFlag.TX_COMMIT))}

    pauses = run({END: busy, OrbitCode.LIST_HALF_MESSAGES: reply(body=b"{}")}, work)
    assert pauses == [0.2, 0.4, 0.8]
