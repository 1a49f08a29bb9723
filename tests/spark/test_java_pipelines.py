"""The pipelines against the real Java broker: what they read and write there, message by message."""

from __future__ import annotations

import asyncio
import csv
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from orbitmq import connect
from orbitmq.client.admin.messages import messages_by_id
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound
from orbitmq.client.message_trace import MessageTrace
from orbitmq.spark.pipelines.analytics import AnalyticsReport, analytics
from orbitmq.spark.pipelines.archive import archive, read_archive
from orbitmq.spark.pipelines.dedup import dedup
from orbitmq.spark.pipelines.query import query
from orbitmq.spark.pipelines.redrive import redrive
from orbitmq.spark.pipelines.replay import replay
from orbitmq.spark.pipelines.route import HOPS, route
from orbitmq.spark.pipelines.triage import triage
from orbitmq.spark.sink_markers import DONE, TOPIC
from orbitmq.wire.message import Message
from tests.peer.java_peer import JavaPeer
from tests.spark.reading_back import bodies, messages
from tests.spark.topics import Out, Topics, numbered
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.peer

LIMIT_S = 60.0
T = TypeVar("T")


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    settings: dict[str, str | int] = {"mappedFileSizeCommitLog": 1 << 25, "flushDiskType": "ASYNC_FLUSH"}
    with JavaPeer(tmp_path_factory.mktemp("java") / "store", settings) as peer:
        peer.start()
        yield peer


class Filled:
    """Topics of the Java broker. It tells its name server and its queues of news only when it likes."""

    def __init__(self, java: JavaPeer) -> None:
        self.namesrv = java.namesrv
        self._topics = Topics(java.broker_addr)

    def create(self, *names: str, queues: int = 2) -> None:
        for name in names:
            self._topics.create(name, queues)
        until(lambda: all(_has_route(self.namesrv, name) for name in names))

    def fill(self, topic: str, queue_id: int, sent: list[Out]) -> None:
        before = len(messages(self.namesrv, topic))
        self._topics.fill(topic, queue_id, sent)
        self.shown(topic, before + len(sent))

    def shown(self, topic: str, count: int) -> list[Message]:
        until(lambda: len(messages(self.namesrv, topic)) >= count)
        return messages(self.namesrv, topic)

    def close(self) -> None:
        self._topics.close()


@pytest.fixture(scope="module")
def filled(java: JavaPeer) -> Iterator[Filled]:
    made = Filled(java)
    yield made
    made.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the broker did not show it in time"
        time.sleep(0.1)


def on(namesrv: str, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    async def body() -> T:
        async with asyncio.timeout(LIMIT_S), Cluster(namesrv, timeout_s=10) as cluster:
            return await work(cluster)

    return asyncio.run(body())


def _has_route(namesrv: str, topic: str) -> bool:
    async def look(cluster: Cluster) -> bool:
        return await cluster.find_route(topic, refresh=True) is not None

    return on(namesrv, look)


def indexed(namesrv: str, topic: str) -> bool:
    """Whether all messages of a topic can be found by their ids, which the broker sees to later."""

    async def look(cluster: Cluster) -> bool:
        try:
            for message in await asyncio.to_thread(messages, namesrv, topic):
                await messages_by_id(cluster, topic, message.msg_id)
        except NotFound:
            return False
        return True

    return on(namesrv, look)


def jobs_done(namesrv: str) -> int:
    """Jobs whose end can be found: a run that comes sooner would not know of the one before."""
    if not _has_route(namesrv, TOPIC) or not indexed(namesrv, TOPIC):
        return 0
    return sum(message.tags == DONE for message in messages(namesrv, TOPIC))


def between() -> datetime:
    """A moment that is later than all that was stored and earlier than all that will be."""
    time.sleep(0.01)
    now = datetime.now(UTC)
    moment = now.replace(microsecond=now.microsecond // 1000 * 1000) + timedelta(milliseconds=1)
    time.sleep(0.01)
    return moment


def test_archive_and_query(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    path = str(tmp_path / "archive")
    filled.create("JavaArchive")
    filled.fill("JavaArchive", 0, numbered(200))
    first = archive(spark, ["JavaArchive"], path, namesrv=filled.namesrv, per_batch=90)
    assert (first.messages, first.in_archive) == (200, {"JavaArchive": 200})
    assert first.batches > 1
    filled.fill("JavaArchive", 1, numbered(50, 200))
    again = archive(spark, ["JavaArchive"], path, namesrv=filled.namesrv)
    assert (again.messages, again.in_archive) == (50, {"JavaArchive": 250})
    kept = Counter(bytes(row["body"]) for row in read_archive(spark, path).select("body").collect())
    assert kept == Counter(message.body for message in numbered(250))
    filled.fill("JavaArchive", 0, numbered(25, 250))
    sql = "SELECT count(*) AS n, count(DISTINCT body) AS bodies FROM messages"
    report = query(spark, sql, ["JavaArch.*"], namesrv=filled.namesrv, archive=path)
    assert report.rows == [{"n": 275, "bodies": 275}]


def test_replay_sends_a_range_once(spark: SparkSession, filled: Filled) -> None:
    filled.create("JavaReplayIn", "JavaReplayOut")
    filled.fill("JavaReplayIn", 0, numbered(30, tag="old"))
    start = between()
    filled.fill("JavaReplayIn", 1, numbered(40, 30, tag="new"))
    end = between()
    filled.fill("JavaReplayIn", 1, numbered(10, 70))
    done_before = jobs_done(filled.namesrv)
    for sent_before in (False, True):
        report = replay(spark, "JavaReplayIn", "JavaReplayOut", namesrv=filled.namesrv, start=start, end=end)
        assert report.sent_before is sent_before
        until(lambda: jobs_done(filled.namesrv) > done_before)
    found = filled.shown("JavaReplayOut", 40)
    assert Counter(message.body for message in found) == Counter(m.body for m in numbered(40, 30))
    assert {message.tags for message in found} == {"new"}


def test_dedup_keeps_one_message_of_each_key(spark: SparkSession, filled: Filled) -> None:
    filled.create("JavaDedupIn", "JavaDedupOut")
    for body in (b"1", b"2", b"3"):
        for queue_id, key in enumerate(("a", "b")):
            filled.fill("JavaDedupIn", queue_id, [Out(body + b" " + key.encode(), {"KEYS": key})])
    report = dedup(spark, "JavaDedupIn", "JavaDedupOut", namesrv=filled.namesrv, end=between())
    assert (report.messages, report.kept, report.duplicates, report.keys) == (6, 2, 4, 2)
    filled.shown("JavaDedupOut", 2)
    assert bodies(filled.namesrv, "JavaDedupOut") == Counter({b"1 a": 1, b"1 b": 1})


def test_a_route_in_a_circle_and_one_to_orbitmq(spark: SparkSession, filled: Filled, tmp_path: Path) -> None:
    filled.create("JavaRouteA", "JavaRouteB", queues=1)
    filled.fill("JavaRouteA", 0, numbered(20, tag="t"))

    def forward(source: str, target: str, **more: str) -> int:
        checkpoint = str(tmp_path / f"{source}-{target}-{len(more)}")
        names = {"namesrv": filled.namesrv, "checkpoint": checkpoint, "here": "java", **more}
        return route(spark, [source], target, **names).read

    for _ in range(2):
        forward("JavaRouteA", "JavaRouteB")
        filled.shown("JavaRouteB", 20)
        forward("JavaRouteB", "JavaRouteA")
    found = messages(filled.namesrv, "JavaRouteB")
    assert Counter(message.body for message in found) == Counter(m.body for m in numbered(20))
    assert {message.properties[HOPS] for message in found} == {"java/JavaRouteA"}
    assert len(messages(filled.namesrv, "JavaRouteA")) == 20
    with ServerProcess(tmp_path / "ours", flushDiskType="ASYNC_FLUSH") as ours:
        abroad = {"to_namesrv": ours.namesrv, "there": "ours"}
        assert [forward("JavaRouteB", "Arrived", **abroad) for _ in range(2)] == [20, 0]
        copies = messages(ours.namesrv, "Arrived")
        assert Counter(message.body for message in copies) == Counter(m.body for m in numbered(20))
        assert {message.properties[HOPS] for message in copies} == {"java/JavaRouteA,java/JavaRouteB"}


def test_triage_and_redrive(spark: SparkSession, filled: Filled) -> None:
    """The Java broker writes no reasons; those of our consumers are in the letters all the same."""
    filled.create("JavaTriage", "%DLQ%java_triage", queues=1)
    letters = [
        Out(b"t%d" % n, {"RETRY_TOPIC": "JavaTriage", "DLQ_REASON": f"timed out after {n} ms"})
        for n in range(8)
    ]
    letters += [Out(b"silent", {"RETRY_TOPIC": "JavaTriage"})]
    filled.fill("%DLQ%java_triage", 0, letters)
    report = triage(spark, ["java_triage"], namesrv=filled.namesrv)
    assert {row["kind"]: row["count"] for row in report.reasons} == {
        "timed out after # ms": 8,
        "(the consumer gave no reason)": 1,
    }
    where = "kind LIKE 'timed out%'"
    done = redrive(spark, "java_triage", namesrv=filled.namesrv, where=where)
    assert (done.sent, done.sent_before, done.failed) == (8, 0, 0), done.failures
    filled.shown("JavaTriage", 8)
    until(lambda: indexed(filled.namesrv, "JavaTriage"))
    repeated = redrive(spark, "java_triage", namesrv=filled.namesrv, where=where)
    assert (repeated.sent, repeated.sent_before) == (0, 8)
    assert bodies(filled.namesrv, "JavaTriage") == Counter(b"t%d" % n for n in range(8))


def test_analytics_of_traces_that_clients_have_sent(
    spark: SparkSession, filled: Filled, tmp_path: Path
) -> None:
    """The native client tells the Java broker what it does, and that comes back as figures."""
    filled.create("JavaShop", "JavaShopTraces")
    begun = between()

    async def traffic() -> None:
        trace = MessageTrace(topic="JavaShopTraces")
        async with asyncio.timeout(LIMIT_S), connect(filled.namesrv, interceptors=[trace]) as mq:
            producer = mq.producer("shop_web")
            for number in range(12):
                await producer.send("JavaShop", b"x", tag=f"t{number % 3}", keys=[f"customer{number % 2}"])
            left = 12
            async with mq.consumer("shop_mail", "JavaShop", start="first") as inbox:
                async for msg in inbox:
                    async with msg:
                        left -= 1
                    if not left:
                        break
        assert trace.dropped == 0

    asyncio.run(traffic())

    def report() -> AnalyticsReport:
        # Of all that was reported: the Java broker shows it when it likes.
        return analytics(
            spark,
            ["JavaShop"],
            str(tmp_path),
            namesrv=filled.namesrv,
            start=begun,
            trace_topic="JavaShopTraces",
        )

    until(lambda: report().traces == 12 + 2 * 12)
    done = report()
    assert (done.messages, done.without_traces) == (12, None)

    def table(name: str) -> list[dict[str, str]]:
        with (tmp_path / "tables" / f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    (producer,) = table("producers")
    assert (producer["producer_group"], producer["sends"], producer["failed"]) == ("shop_web", "12", "0")
    (consumer,) = table("slow_consumers")
    assert (consumer["consumer_group"], consumer["handled"], consumer["failed"]) == ("shop_mail", "12", "0")
    assert table("backlog")[-1]["backlog"] == "0"
    assert {row["tag"]: row["messages"] for row in table("tag_mix")} == {"t0": "4", "t1": "4", "t2": "4"}
    assert {row["key"]: row["messages"] for row in table("hot_keys")} == {"customer0": "6", "customer1": "6"}
    assert "shop_web" in (tmp_path / "report.html").read_text("utf-8")
