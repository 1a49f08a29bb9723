"""How each side reads and writes: the same table under the names that the side gives it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from bench.spark import floor
from bench.spark.load import CORES, FLOOR, KAFKA, SOURCE, STORE, Work, topics
from orbitmq.spark.brokers import Brokers
from orbitmq.spark.places import bounds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS: Final[dict[str, str | int | bool]] = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": CORES,
}
BODY: Final = {SOURCE: "body", STORE: "body", KAFKA: "value", FLOOR: "body"}
LABEL: Final = {SOURCE: "tags", STORE: "tags", KAFKA: "key"}


def session(work: Work, jars: list[str]) -> SparkSession:
    """The same settings for all; Kafka's connector is given by its jars."""
    import orbitmq.spark

    more = {"spark.jars": ",".join(jars)} if jars else {}
    made = orbitmq.spark.session(f"local[{CORES}]", app=f"bench {work.side}", **SETTINGS, **more)
    if work.side == FLOOR:
        floor.register(made)
    return made


def batch(spark: SparkSession, work: Work, topic: str, end: str = "latest") -> DataFrame:
    if work.side == FLOOR:
        rows, size = topics(work.load, growth=False)[topic]
        return spark.read.format(FLOOR).options(rows=rows, size=size).load()
    read = spark.read.format(work.side).option("endingOffsets", end).option("subscribe", topic)
    if work.side == KAFKA:
        return read.option("kafka.bootstrap.servers", work.addr).load()
    if work.side == STORE:
        return read.load(work.store)
    return read.option("namesrv", work.addr).load()


def stream(spark: SparkSession, work: Work, topic: str, **options: Any) -> DataFrame:
    """The bodies of a topic."""
    read = spark.readStream.format(work.side).options(subscribe=topic, **options)
    if work.side == KAFKA:
        return read.option("kafka.bootstrap.servers", work.addr).load().select(BODY[KAFKA])
    return read.options(namesrv=work.addr, columns=BODY[SOURCE]).load()


def write(rows: DataFrame, work: Work, topic: str, **options: str) -> None:
    """Rows with `label` and `body`."""
    named = rows.selectExpr(f"label AS {LABEL[work.side]}", f"body AS {BODY[work.side]}")
    to = named.write.format(work.side).mode("append").option("topic", topic).options(**options)
    where = "kafka.bootstrap.servers" if work.side == KAFKA else "namesrv"
    to.option(where, work.addr).save()


def prefix(work: Work, topic: str, share: float) -> tuple[str, int]:
    """The end of the first part of every queue, as an option, and how many messages there are before it."""
    with Brokers(work.addr, 10.0) as brokers:
        route = brokers.find_route(topic)
        assert route is not None
        bounds = bounds_of(brokers, route.read_queues())
    ends = {str(queue.queue_id): int(limits.end * share) for queue, limits in bounds.items()}
    return json.dumps({topic: ends}), sum(ends.values())
