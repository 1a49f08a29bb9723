"""The same source against the real Java broker, which knows nothing of pages and answers times roughly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from orbitmq.spark.brokers import Brokers
from orbitmq.spark.places import Bounds, committed, offsets_at, peek
from orbitmq.wire.compression import Compression, compress
from orbitmq.wire.fastjson import MessageQueue
from tests.peer.java_peer import JavaPeer
from tests.spark.topics import Out, Topics, numbered
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.peer

TOPIC = "java-orders"
COUNT = 2000
SETTINGS: dict[str, str | int] = {
    "brokerName": "broker-java",
    "mappedFileSizeCommitLog": 1 << 24,
    "flushDiskType": "ASYNC_FLUSH",
}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(tmp_path_factory.mktemp("java") / "store", SETTINGS) as peer:
        peer.start()
        filler = Topics(peer.broker_addr)
        filler.create(TOPIC, 2)
        for queue_id in range(2):
            filler.fill(TOPIC, queue_id, numbered(COUNT, queue_id * COUNT, tag="T"))
        filler.send(
            TOPIC, 0, Out(compress(b"long" * 2000, Compression.ZLIB)), sys_flag=Compression.ZLIB.sys_flag
        )
        filler.close()
        with Brokers(peer.namesrv, 10.0) as brokers:
            deadline = time.monotonic() + 60  # the broker tells its name server of a new topic when it likes
            while brokers.find_route(TOPIC, refresh=True) is None and time.monotonic() < deadline:
                time.sleep(0.2)
        # It answers a send before its queues show the message.
        while asyncio.run(shown(peer.broker_addr)) < 2 * COUNT + 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        yield peer


async def shown(addr: str) -> int:
    async with RawClient(addr) as client:
        return await client.max_offset(TOPIC, 0) + await client.max_offset(TOPIC, 1)


def read(spark: SparkSession, java: JavaPeer, **options: str) -> DataFrame:
    return spark.read.format("orbitmq").options(namesrv=java.namesrv, subscribe=TOPIC, **options).load()


def test_every_message_is_read_once(spark: SparkSession, java: JavaPeer) -> None:
    rows = read(spark, java).collect()
    bodies = sorted(bytes(row.body) for row in rows)
    assert len(rows) == 2 * COUNT + 1
    assert bodies[-1] == b"long" * 2000
    assert [int(body[:10]) for body in bodies[:-1]] == list(range(2 * COUNT))
    assert {row.broker for row in rows} == {"broker-java"}


def test_tags_are_filtered(spark: SparkSession, java: JavaPeer) -> None:
    assert read(spark, java, tags="T", columns="queue_offset").count() == 2 * COUNT
    assert read(spark, java, tags="other", columns="queue_offset").count() == 0


def test_a_time_means_the_first_message_of_it(java: JavaPeer) -> None:
    """Batches give many messages one time, and this broker answers with any of them."""
    queue = MessageQueue(TOPIC, "broker-java", 0)
    bounds = {queue: Bounds(0, COUNT + 1)}
    with Brokers(java.namesrv, 10.0) as brokers:
        times = [peek(brokers, queue, offset, 1)[0].store_ms for offset in range(0, COUNT + 1, 37)]
        for moment in sorted(set(times)):
            found = offsets_at(brokers, {queue: moment}, bounds)[queue]
            assert peek(brokers, queue, found, 1)[0].store_ms >= moment
            assert found == 0 or peek(brokers, queue, found - 1, 1)[0].store_ms < moment
        assert offsets_at(brokers, {queue: max(times) + 3_600_000}, bounds) == {queue: COUNT + 1}


def test_a_stream_reports_its_progress(spark: SparkSession, java: JavaPeer, tmp_path: Path) -> None:
    source = spark.readStream.format("orbitmq").options(
        namesrv=java.namesrv, subscribe=TOPIC, startingOffsets="earliest", group="spark-java", columns="body"
    )
    query = (
        source.load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 2 * COUNT + 1
    queues = [MessageQueue(TOPIC, "broker-java", number) for number in range(2)]
    with Brokers(java.namesrv, 10.0) as brokers:
        assert committed(brokers, "spark-java", queues) == {queues[0]: COUNT + 1, queues[1]: COUNT}


def test_plain_rows_are_written_in_batches(spark: SparkSession, java: JavaPeer) -> None:
    filler = Topics(java.broker_addr)
    filler.create("java-written", 2)
    filler.close()
    rows = spark.range(3000).selectExpr(
        "cast(id AS string) AS body", "concat('t', id % 3) AS tags", "concat('k', id) AS keys"
    )
    to = rows.write.format("orbitmq").mode("append").options(namesrv=java.namesrv, topic="java-written")
    deadline = time.monotonic() + 60  # its name server hears of a new topic when it likes
    with Brokers(java.namesrv, 10.0) as brokers:
        while brokers.find_route("java-written", refresh=True) is None and time.monotonic() < deadline:
            time.sleep(0.2)
    to.option("delivery", "at-least-once").save()
    table = spark.read.format("orbitmq").options(namesrv=java.namesrv, subscribe="java-written")
    found = []
    while len(found) < 3000 and time.monotonic() < deadline:
        found = table.load().select("body", "tags", "keys", "msg_id").collect()
    assert sorted(int(row.body) for row in found) == list(range(3000))
    assert all(row.tags == f"t{int(row.body) % 3}" and row.keys == f"k{int(row.body)}" for row in found)
    assert len({row.msg_id for row in found}) == 3000
