"""What the pipelines share on top of the source and the sink: reading topics, and rows that may be sent again.

`once` has jobs that are done once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest
from orbitmq.spark.pipelines.command import epoch_ms, is_connect
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
WHAT_IS_READ: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "path",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "tags",
    "columns",
)
"""Options that a pipeline derives from its own arguments; its jobs are recognised by these."""
_REGEX_MARKS: Final = re.compile(r"[*+?\[\](){}^$\\]|\.\*")


def on_cluster(
    namesrv: str, work: Callable[[Cluster], Coroutine[Any, Any, T]], *, timeout_s: float = 10.0
) -> T:
    async def body() -> T:
        async with Cluster(namesrv, timeout_s=timeout_s) as cluster:
            return await work(cluster)

    return asyncio.run(body())


def subscription(topics: Iterable[str]) -> dict[str, str]:
    """Options that name these topics; one word with the marks of a regular expression is a pattern."""
    names = [name.strip() for text in topics for name in text.split(",") if name.strip()]
    if not names:
        raise BadRequest("no topic is given", hint="name one or more topics, or a regular expression")
    if len(names) == 1 and _REGEX_MARKS.search(names[0]):
        return {"subscribePattern": names[0]}
    return {"subscribe": ",".join(names)}


def with_given(
    own: Mapping[str, str], given: Mapping[str, str] | None, flag: str, never: Iterable[str] = ()
) -> dict[str, str]:
    """A pipeline's own options and those that its user gives, which may not be the same ones."""
    taken = {name.lower() for name in (*own, *never)}
    for name in given or {}:
        if name.lower() in taken:
            raise BadRequest(
                f"{flag} {name}: this pipeline sees to that option itself",
                hint="leave it out; --help shows the arguments that say what is read, where it goes, and how",
            )
    return {**(given or {}), **own}


def source_cores(spark: SparkSession) -> dict[str, str]:
    """The option that says how many tasks to plan for. Left alone, a source counts the cores of the driver's machine,
    which on a cluster do none of the work. Over Spark Connect nobody tells how many there are.
    """
    if is_connect(spark) or (spark.sparkContext.master or "").startswith("local"):
        return {}
    return {"cores": str(spark.sparkContext.defaultParallelism)}


def read_options(
    spark: SparkSession, own: Mapping[str, str], given: Mapping[str, str] | None, never: Iterable[str] = ()
) -> dict[str, str]:
    """The options of one source: the pipeline's own, those of `--read`, and how many cores there are."""
    chosen = with_given(own, given, "--read", never)
    if any(name.lower() == "cores" for name in chosen):
        return chosen
    return {**source_cores(spark), **chosen}


def read_topics(
    spark: SparkSession,
    namesrv: str,
    topics: Iterable[str],
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    read: Mapping[str, str] | None = None,
    **options: str,
) -> DataFrame:
    """The messages of some topics as a table, in a range of store times if one is given.

    `read` are the options that a user gives: any but those that say which messages are read.
    """
    own = {"namesrv": namesrv, **subscription(topics), **options}
    if start is not None:
        own["startingTimestamp"] = str(epoch_ms(start))
    if end is not None:
        own["endingTimestamp"] = str(epoch_ms(end))
    return spark.read.format("orbitmq").options(**read_options(spark, own, read, WHAT_IS_READ)).load()


def stored_within(rows: DataFrame, start: datetime | None, end: datetime) -> DataFrame:
    """Offsets are found by time and may be a little early or late; the stored time itself decides."""
    from pyspark.sql import functions as F

    if start is not None:
        rows = rows.where(F.col("store_time") >= F.lit(start))
    return rows.where(F.col("store_time") < F.lit(end))


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
