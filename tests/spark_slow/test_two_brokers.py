"""A cluster of two masters and one slave: what is on several brokers is read once, whichever of them is away."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

import pytest

from orbitmq.client.cluster import Cluster as Client
from orbitmq.spark.connection import Connection
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import request
from tests.spark.topics import Topics, numbered
from tests.spark_slow.local import Stream, eventually, local_session, numbers
from tests.support.server_process import BrokerProcess, OrbitProcess, free_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

SMALL: dict[str, str | int] = {"mappedFileSizeCommitLog": 16 << 20, "flushDiskType": "ASYNC_FLUSH"}
EVERY = "2 seconds"
AWAY_S = 3.0
LARGE, LARGE_BYTES = 12_000, 2000


class Cluster:
    """broker-a has a slave, which follows it as it can; broker-b is alone."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        port = free_port()
        self.namesrv = f"127.0.0.1:{port}"
        args = ["namesrv", "--port", str(port), "--data", str(directory / "names")]
        stack.enter_context(OrbitProcess(args, ready="OrbitMQ name server ready"))

        def broker(folder: str, name: str, **settings: str | int) -> BrokerProcess:
            place = directory / folder
            return stack.enter_context(BrokerProcess(place, self.namesrv, name, **SMALL, **settings))

        self.a = broker("master", "broker-a", brokerRole="ASYNC_MASTER")
        self.b = broker("master", "broker-b")
        self.slave = broker("slave", "broker-a", brokerRole="SLAVE", brokerId=1)

    def create(self, topic: str) -> None:
        """Two queues on each, of which all name servers and the slave know."""
        for broker in (self.a, self.b):
            with closing(Topics(broker.broker_addr)) as topics:
                topics.create(topic, 2)
        eventually(lambda: self.members(topic, "broker-a") == {0: self.a.port, 1: self.slave.port}, "slave")
        eventually(lambda: self.members(topic, "broker-b") == {0: self.b.port}, "broker-b")

    def members(self, topic: str, name: str) -> dict[int, int]:
        """Ports of a broker's members, as the name server has them."""

        async def body() -> dict[int, int]:
            async with asyncio.timeout(30), Client(self.namesrv) as cluster:
                route = await cluster.find_route(topic, refresh=True)
            known = route.brokers.get(name) if route is not None else None
            addrs = known.addrs if known is not None else {}
            return {number: int(addr.rpartition(":")[2]) for number, addr in addrs.items()}

        return asyncio.run(body())

    def fill(
        self, broker: BrokerProcess, topic: str, queue_id: int, count: int, start: int, *, size: int = 16
    ) -> None:
        with closing(Topics(broker.broker_addr)) as topics:
            topics.fill(topic, queue_id, numbered(count, start, size=size))

    def end(self, broker: BrokerProcess, topic: str, queue_id: int) -> int:
        """How far a queue reaches at one member; -1 while that one has not heard of the topic."""
        with closing(Connection(broker.broker_addr, 30.0)) as connection:
            asked = request(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
            return int(connection.receive(connection.send(asked)[0]).ext.get("offset", -1))

    def until_followed(self, topic: str) -> None:
        def followed() -> bool:
            ends = [
                [self.end(each, topic, queue_id) for queue_id in range(2)] for each in (self.a, self.slave)
            ]
            return ends[0] == ends[1] and -1 not in ends[0]

        eventually(followed, "the slave has what its master has")

    def back(self, broker: BrokerProcess, topic: str) -> None:
        broker.start()
        name = "broker-a" if broker is self.a else "broker-b"
        eventually(lambda: self.members(topic, name).get(0) == broker.port, "the broker is back")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("two"), stack)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_session("two brokers") as session:
        yield session


def read(spark: SparkSession, cluster: Cluster, topic: str, **options: str) -> DataFrame:
    return spark.read.format("orbitmq").options(namesrv=cluster.namesrv, subscribe=topic, **options).load()


def test_a_batch_has_the_messages_of_both_brokers(spark: SparkSession, cluster: Cluster) -> None:
    topic = "TwoBatch"
    cluster.create(topic)
    for queue_id in range(2):
        cluster.fill(cluster.a, topic, queue_id, 100, 1000 * queue_id)
        cluster.fill(cluster.b, topic, queue_id, 50, 2000 + 1000 * queue_id)
    rows = read(spark, cluster, topic).collect()
    found = {int(row.body[:10]): (row.broker, row.queue_id, row.queue_offset) for row in rows}
    expected = {
        2000 * at + 1000 * queue_id + offset: (broker, queue_id, offset)
        for at, (broker, count) in enumerate((("broker-a", 100), ("broker-b", 50)))
        for queue_id in range(2)
        for offset in range(count)
    }
    assert (len(rows), found) == (300, expected)

    start = {"broker-a": {"0": 90, "1": -1}, "broker-b": {"0": -2, "1": 45}}
    end = {"broker-a": {"0": -1, "1": -1}, "broker-b": {"0": 5, "1": 48}}
    chosen = {"startingOffsets": json.dumps({topic: start}), "endingOffsets": json.dumps({topic: end})}
    assert numbers(read(spark, cluster, topic, **chosen)) == [
        *range(90, 100),
        *range(2000, 2005),
        *range(3045, 3048),
    ]
    with pytest.raises(Exception, match="(?s)option 'startingOffsets'.*broker"):
        numbers(read(spark, cluster, topic, startingOffsets=json.dumps({topic: {"0": 90, "1": -1}})))
    only = spark.read.format("orbitmq").option("namesrv", cluster.namesrv)
    assigned = only.option("assign", json.dumps({topic: {"broker-b": [1]}})).load()
    assert numbers(assigned) == list(range(3000, 3050))


def test_a_stream_goes_on_without_a_broker_and_takes_up_its_messages_when_it_is_back(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic = "TwoStream"
    cluster.create(topic)
    cluster.fill(cluster.a, topic, 0, 100, 0)
    cluster.fill(cluster.b, topic, 0, 100, 1000)
    stream = Stream(spark, cluster.namesrv, topic, tmp_path / "checkpoint")
    query = stream.start(EVERY)
    try:
        query.processAllAvailable()
        assert stream.seen == [*range(100), *range(1000, 1100)]
        # Before the next look, so that the stream has not heard of these when their broker dies.
        cluster.fill(cluster.b, topic, 1, 50, 1100)
        cluster.b.kill()
        cluster.fill(cluster.a, topic, 1, 100, 100)
        eventually(lambda: set(range(200)) <= set(stream.seen) or not query.isActive, "it does not go on")
        assert query.isActive, query.exception()
        early = stream.seen  # the stream may have been quicker than the kill
        assert early in ([*range(200), *range(1000, 1100)], [*range(200), *range(1000, 1150)])
        # So it does when it is started from its checkpoint.
        query.processAllAvailable()
        query.stop()
        cluster.fill(cluster.a, topic, 0, 100, 200)
        query = stream.start(EVERY)
        eventually(lambda: set(range(300)) <= set(stream.seen) or not query.isActive, "it does not begin")
        assert query.isActive, query.exception()
        cluster.back(cluster.b, topic)
        cluster.fill(cluster.b, topic, 0, 50, 1150)
        expected = [*range(300), *range(1000, 1200)]
        eventually(lambda: len(stream.seen) >= len(expected) or not query.isActive, "some are missing")
        query.processAllAvailable()
        assert stream.seen == expected
    finally:
        query.stop()
        if not cluster.b.running:
            cluster.back(cluster.b, topic)


def test_a_run_that_is_to_end_waits_for_a_broker_and_does_not_end_as_if_it_had_read_it(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic = "TwoEnd"
    cluster.create(topic)
    cluster.fill(cluster.a, topic, 0, 100, 0)
    cluster.fill(cluster.b, topic, 0, 100, 1000)
    stream = Stream(spark, cluster.namesrv, topic, tmp_path / "checkpoint")
    stream.run()
    expected = [*range(100), *range(1000, 1100)]
    assert stream.seen == expected
    cluster.fill(cluster.b, topic, 1, 50, 1100)
    cluster.b.kill()
    later = Timer(AWAY_S, cluster.b.start)
    try:
        for number, end in enumerate((200, 300)):
            cluster.fill(cluster.a, topic, 1, 100, end - 100)
            expected = sorted([*expected, *range(end - 100, end)])
            begun = time.monotonic()
            if number:
                stream.run(retryTimeoutMs="1s", failOnDataLoss="false")
            else:
                with pytest.raises(Exception, match="(?s)everything else is read, but.*broker-b"):
                    stream.run(retryTimeoutMs="3s")
                assert 3 <= time.monotonic() - begun < 30
            assert stream.seen == expected
        later.start()
        stream.run(retryTimeoutMs="60s")
        assert stream.seen == sorted([*expected, *range(1100, 1150)])
    finally:
        later.cancel()
        if later.ident is not None:
            later.join()
        if not cluster.b.running:
            cluster.back(cluster.b, topic)


def test_a_first_micro_batch_that_was_cut_short_is_not_read_without_a_broker(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """As after a crash in the first batch of all: it is planned and not done, and then one of its brokers is away."""
    topic = "TwoFirst"
    cluster.create(topic)
    cluster.fill(cluster.a, topic, 0, 100, 0)
    cluster.fill(cluster.b, topic, 0, 100, 1000)
    expected = [*range(100), *range(1000, 1100)]
    stream = Stream(spark, cluster.namesrv, topic, tmp_path / "checkpoint")
    stream.run()
    assert stream.seen == expected
    stream.forget_last_commit()
    again = Stream(spark, cluster.namesrv, topic, tmp_path / "checkpoint")
    cluster.b.kill()
    try:
        eventually(lambda: not cluster.members(topic, "broker-b"), "its end is noticed")
        with pytest.raises(Exception, match="(?s)broker-b"):
            again.run(retryTimeoutMs="2s")
    finally:
        cluster.back(cluster.b, topic)
    again.run()
    assert again.seen == expected


def test_a_slave_is_read_while_its_master_is_away(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic = "TwoSlave"
    cluster.create(topic)
    for queue_id in range(2):
        cluster.fill(cluster.a, topic, queue_id, 300, 1000 * queue_id)
    cluster.fill(cluster.b, topic, 0, 100, 2000)
    stream = Stream(spark, cluster.namesrv, topic, tmp_path / "checkpoint")
    stream.run()
    cluster.fill(cluster.a, topic, 1, 200, 1300)
    cluster.until_followed(topic)
    expected = [*range(300), *range(1000, 1500), *range(2000, 2100)]
    cluster.a.kill()
    try:
        eventually(lambda: 0 not in cluster.members(topic, "broker-a"), "its end is noticed")
        assert numbers(read(spark, cluster, topic)) == expected
        stream.run()
        assert stream.seen == expected
    finally:
        cluster.back(cluster.a, topic)
    eventually(lambda: cluster.members(topic, "broker-a").keys() == {0, 1}, "the slave is back")
    assert numbers(read(spark, cluster, topic)) == expected
    stream.run()
    assert stream.seen == expected


def test_a_slave_that_is_behind_the_stream_is_no_loss_and_nothing_is_read_twice(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """The master has more than its slave when it dies, and the stream has read that: it waits, and goes on later."""
    topic = "TwoBehind"
    cluster.create(topic)
    cluster.fill(cluster.a, topic, 0, 100, 0)
    cluster.until_followed(topic)
    stream = Stream(spark, cluster.namesrv, topic, tmp_path / "checkpoint")
    of_b = range(1_000_000, 1_000_020)
    query = stream.start(EVERY)
    cluster.slave.process.send_signal(signal.SIGSTOP)
    try:
        # More than sockets hold, so that the slave cannot have all of it.
        cluster.fill(cluster.a, topic, 0, LARGE, 100, size=LARGE_BYTES)
        query.processAllAvailable()
        assert stream.seen == list(range(100 + LARGE))
        cluster.a.kill()
        cluster.slave.process.send_signal(signal.SIGCONT)
        eventually(lambda: cluster.members(topic, "broker-a").keys() == {1}, "the slave is alone")
        assert 100 <= cluster.end(cluster.slave, topic, 0) < 100 + LARGE
        cluster.fill(cluster.b, topic, 0, len(of_b), of_b[0])
        eventually(lambda: of_b[-1] in stream.seen or not query.isActive, "the other broker is read")
        assert query.isActive, query.exception()
        assert stream.seen == [*range(100 + LARGE), *of_b]
        cluster.back(cluster.a, topic)
        cluster.fill(cluster.a, topic, 0, 10, 100 + LARGE)
        eventually(lambda: len(stream.seen) >= 110 + LARGE + len(of_b) or not query.isActive, "it goes on")
        assert query.isActive, query.exception()
        assert stream.seen == [*range(110 + LARGE), *of_b]
    finally:
        query.stop()
        cluster.slave.process.send_signal(signal.SIGCONT)
        if not cluster.a.running:
            cluster.back(cluster.a, topic)
