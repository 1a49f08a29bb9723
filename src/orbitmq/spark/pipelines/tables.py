"""What the pipelines share on top of the source and the sink: reading topics, and rows that may be sent again."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, OrbitMQError
from orbitmq.spark.errors import explained
from orbitmq.spark.sink_markers import DONE, Marker, Markers
from orbitmq.wire.properties import RESERVED_NAMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

T = TypeVar("T")

REPLAYED_FROM: Final = "ORBITMQ_REPLAYED_FROM"
SENT_COLUMNS: Final = (
    "topic",
    "body",
    "tags",
    "keys",
    "properties",
    "order_key",
    "deliver_at",
    "delay_level",
)
_REGEX_MARKS: Final = re.compile(r"[*+?\[\](){}^$\\]|\.\*")


def on_cluster(
    namesrv: str, work: Callable[[Cluster], Coroutine[Any, Any, T]], *, timeout_s: float = 10.0
) -> T:
    async def body() -> T:
        async with Cluster(namesrv, timeout_s=timeout_s) as cluster:
            try:
                return await work(cluster)
            except OrbitMQError as error:
                raise explained(error) from error

    return asyncio.run(body())


def subscription(topics: Iterable[str]) -> dict[str, str]:
    """Options that name these topics; one word with the marks of a regular expression is a pattern."""
    names = [name.strip() for text in topics for name in text.split(",") if name.strip()]
    if not names:
        raise BadRequest("no topic is given", hint="name one or more topics, or a regular expression")
    if len(names) == 1 and _REGEX_MARKS.search(names[0]):
        return {"subscribePattern": names[0]}
    return {"subscribe": ",".join(names)}


def read_topics(
    spark: SparkSession,
    namesrv: str,
    topics: Iterable[str],
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    **options: str,
) -> DataFrame:
    """The messages of some topics as a table, in a range of store times if one is given."""
    reader = spark.read.format("orbitmq").options(namesrv=namesrv, **subscription(topics), **options)
    if start is not None:
        reader = reader.option("startingTimestamp", str(round(start.timestamp() * 1000)))
    if end is not None:
        reader = reader.option("endingTimestamp", str(round(end.timestamp() * 1000)))
    return reader.load()


def user_properties(properties: Column) -> Column:
    """Without what belongs to the system: a new message gets its own."""
    from pyspark.sql import functions as F

    reserved = sorted(RESERVED_NAMES)
    return F.map_filter(properties, lambda name, _: ~name.isin(reserved))


def with_property(properties: Column, name: str, value: Column) -> Column:
    """The map with one pair set, whether or not it was there."""
    from pyspark.sql import functions as F

    others = F.map_filter(F.coalesce(properties, F.create_map()), lambda key, _: key != F.lit(name))
    return F.map_concat(others, F.create_map(F.lit(name), value))


def sendable(rows: DataFrame, topic: str | None = None) -> DataFrame:
    """The columns that the sink writes; everything that only describes where a message was is left out."""
    from pyspark.sql import functions as F

    if topic is not None:
        rows = rows.withColumn("topic", F.lit(topic))
    if "properties" in rows.columns:
        rows = rows.withColumn("properties", user_properties(F.col("properties")))
    return rows.select(*[name for name in SENT_COLUMNS if name in rows.columns])


@dataclass(frozen=True)
class Written:
    rows: int
    skipped: bool
    """The same job had been done before."""


def job_id(kind: str, *parts: object) -> str:
    """A name that is the same for the same job."""
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    return f"{kind}-{digest}"


def write_once(rows: DataFrame, namesrv: str, app_id: str, *, again: bool = False) -> Written:
    """Sends a table, all or nothing; a job that was done before sends nothing unless it is to be done again."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    async def newest(cluster: Cluster) -> Marker | None:
        return await Markers(cluster, app_id).newest()

    last = on_cluster(namesrv, newest)
    if last is not None and last.state == DONE and not again:
        return Written(0, True)
    version = 0 if last is None else last.batch + (last.state == DONE)
    observation = Observation(app_id)
    (
        rows.observe(observation, F.count(F.lit(1)).alias("rows"))
        .write.format("orbitmq")
        .mode("append")
        .options(namesrv=namesrv, txnAppId=app_id, txnVersion=str(version))
        .save()
    )
    return Written(int(observation.get.get("rows", 0)), False)
