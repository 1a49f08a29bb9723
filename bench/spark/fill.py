"""Fills both brokers with the same messages: bodies of digits, and one of few labels on each."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Final

import orbitmq
from bench.spark.load import LABELS, LATENCY_TOPIC, QUEUES, WRITE_TOPIC, Work
from orbitmq.client.outgoing import Out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK: Final = 8_000


def label_of(number: int) -> str:
    return f"label-{number % LABELS:02}"


def fill_orbitmq(namesrv: str, topics: dict[str, tuple[int, int]]) -> None:
    asyncio.run(_fill(namesrv, topics))


async def _fill(namesrv: str, topics: dict[str, tuple[int, int]]) -> None:
    async with orbitmq.connect(namesrv, timeout=60) as mq:
        for topic in (*topics, LATENCY_TOPIC, WRITE_TOPIC):
            await mq.admin.create_topic(topic, queues=QUEUES)
        producer = mq.producer("bench")
        for topic, (count, size) in topics.items():
            for start in range(0, count, CHUNK):
                numbers = range(start, min(start + CHUNK, count))
                messages = [Out(body=b"%0*d" % (size, number), tag=label_of(number)) for number in numbers]
                receipts = await producer.send_many(topic, messages)
                assert len(receipts) == len(messages)


def fill_kafka(spark: SparkSession, work: Work, topics: dict[str, tuple[int, int]]) -> None:
    """By Spark's own connector."""
    asyncio.run(_create_kafka_topics(work.addr, (*topics, LATENCY_TOPIC, WRITE_TOPIC)))
    for topic, (count, size) in topics.items():
        (
            rows(spark, count, size)
            .selectExpr("label AS key", "body AS value", f"CAST(id % {QUEUES} AS int) AS partition")
            .write.format("kafka")
            .option("kafka.bootstrap.servers", work.addr)
            .option("topic", topic)
            .save()
        )


async def _create_kafka_topics(addr: str, names: tuple[str, ...]) -> None:
    """A topic that a write creates is not ready at once, and a producer that meets it then may never recover."""
    admin = importlib.import_module("aiokafka.admin")
    client = admin.AIOKafkaAdminClient(bootstrap_servers=addr)
    await client.start()
    try:
        await client.create_topics([admin.NewTopic(name, QUEUES, 1) for name in names])
        async with asyncio.timeout(60):
            while any(
                partition["error_code"] or partition["leader"] < 0
                for topic in await client.describe_topics(list(names))
                for partition in topic["partitions"] or [{"error_code": topic["error_code"], "leader": -1}]
            ):
                await asyncio.sleep(0.2)
    finally:
        await client.close()


def rows(spark: SparkSession, count: int, size: int) -> DataFrame:
    """The messages as a table that Spark makes itself: `id`, `label`, `body`."""
    label = f"concat('label-', lpad(CAST(id % {LABELS} AS string), 2, '0')) AS label"
    body = f"CAST(lpad(CAST(id AS string), {size}, '0') AS binary) AS body"
    return spark.range(count).selectExpr("id", label, body)
