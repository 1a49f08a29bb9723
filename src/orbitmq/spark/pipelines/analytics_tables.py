"""The tables of the analytics: what goes through topics, and what producers and consumers reported about it.

Every function takes tables of Spark and gives one that is small enough to be drawn.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from orbitmq.spark.pipelines.utc import instant

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def throughput(messages: DataFrame, bucket: str) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        messages.groupBy(_bucket("store_time", bucket), "topic")
        .agg(F.count(F.lit(1)).alias("messages"), F.sum("bytes").alias("bytes"))
        .orderBy("time", "topic")
    )


def hot_keys(messages: DataFrame, most: int) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        messages.select("topic", F.explode(F.split("keys", " ")).alias("key"))
        .where("key <> ''")
        .groupBy("topic", "key")
        .agg(F.count(F.lit(1)).alias("messages"))
        .orderBy(F.desc("messages"), "topic", "key")
        .limit(most)
    )


def tag_mix(messages: DataFrame, most: int) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        messages.groupBy("topic", F.coalesce("tags", F.lit("(none)")).alias("tag"))
        .agg(F.count(F.lit(1)).alias("messages"))
        .orderBy("topic", F.desc("messages"))
        .limit(most)
    )


def sending_hosts(messages: DataFrame, most: int) -> DataFrame:
    """From where messages came, as the messages themselves say: known of producers that report no traces too."""
    from pyspark.sql import functions as F

    return (
        messages.groupBy("topic", F.regexp_replace("born_host", ":[0-9]+$", "").alias("host"))
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.min("store_time").alias("first"),
            F.max("store_time").alias("last"),
        )
        .orderBy(F.desc("messages"), "topic", "host")
        .limit(most)
    )


def producers(sent: DataFrame, most: int) -> DataFrame:
    """What each producer group did from each host; a batch is one send."""
    from pyspark.sql import functions as F

    return (
        sent.groupBy(F.col("client_group").alias("producer_group"), "client")
        .agg(
            F.concat_ws(", ", F.array_sort(F.collect_set("topic"))).alias("topics"),
            F.count(F.lit(1)).alias("sends"),
            _failures(),
            *_percentiles("cost_ms"),
            F.min("at").alias("first"),
            F.max("at").alias("last"),
        )
        .orderBy(F.desc("sends"), "producer_group", "client")
        .limit(most)
    )


def send_latency(sent: DataFrame, bucket: str) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        sent.groupBy(_bucket("at", bucket), "topic")
        .agg(F.count(F.lit(1)).alias("sends"), *_percentiles("cost_ms"), _failures())
        .orderBy("time", "topic")
    )


def consumption_delay(messages: DataFrame, attempts: DataFrame, bucket: str) -> DataFrame:
    """From when a message was stored to when a group began to handle it for the first time."""
    from pyspark.sql import functions as F

    first = attempts.groupBy("consumer_group", "msg_id").agg(F.min("begun").alias("begun"))
    delay_ms = (F.unix_micros("begun") - F.unix_micros("store_time")) / 1000
    return (
        messages.select("msg_id", "topic", "store_time")
        .join(first, "msg_id")
        .withColumn("delay_ms", F.greatest(delay_ms, F.lit(0.0)))
        .groupBy(_bucket("begun", bucket), "topic", "consumer_group")
        .agg(F.count(F.lit(1)).alias("messages"), *_percentiles("delay_ms"))
        .orderBy("time", "topic", "consumer_group")
    )


def backlog(
    messages: DataFrame, attempts: DataFrame, tags: DataFrame, left_out: DataFrame, bucket: str, end: datetime
) -> DataFrame:
    """At the end of each step of time: messages stored until then that a group had not handled until then.

    A group counts for the topics of which it has handled something, but not where `left_out` names both. `tags` are
    those that a group asks for of a topic, if it does not ask for all: the others are no work that waits for it.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    done_at = F.min(
        F.when(F.col("success"), F.col("begun") + F.make_dt_interval(secs=F.col("cost_ms") / 1000))
    )
    done = attempts.groupBy("consumer_group", "msg_id").agg(done_at.alias("done"), F.lit(True).alias("begun"))
    stored = messages.select("msg_id", "topic", F.col("tags").alias("tag"), "store_time")
    pairs = stored.join(done, "msg_id").select("topic", "consumer_group").distinct()
    pairs = pairs.join(left_out, ["topic", "consumer_group"], "left_anti")
    waiting = (
        stored.join(pairs.join(tags, ["topic", "consumer_group"], "left"), "topic")
        .join(done, ["consumer_group", "msg_id"], "left")
        # What was handled all the same had been asked for then.
        .where("tags IS NULL OR begun OR array_contains(tags, tag)")
    )
    came = waiting.select(_bucket("store_time", bucket), "topic", "consumer_group", F.lit(1).alias("change"))
    # Clocks of clients may be slow: nothing is handled before it is there.
    went_at = F.greatest("done", "store_time")
    went = (
        waiting.where(F.col("done") < instant(end))
        .withColumn("went", went_at)
        .select(_bucket("went", bucket), "topic", "consumer_group", F.lit(-1).alias("change"))
    )
    so_far = Window.partitionBy("topic", "consumer_group").orderBy("time")
    return (
        came.unionByName(went)
        .groupBy("time", "topic", "consumer_group")
        .agg(F.sum("change").alias("change"))
        .withColumn("backlog", F.sum("change").over(so_far))
        .drop("change")
        .orderBy("time", "topic", "consumer_group")
    )


def slow_consumers(attempts: DataFrame, start: datetime, most: int) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        attempts.where(F.col("cost_ms").isNotNull() & (F.col("begun") >= instant(start)))
        .groupBy("consumer_group", "client")
        .agg(
            F.count(F.lit(1)).alias("handled"),
            *_percentiles("cost_ms"),
            _failures(),
            F.sum(F.when(F.col("retries") > 0, 1).otherwise(0)).alias("retried"),
            F.min("begun").alias("first"),
            F.max("begun").alias("last"),
        )
        .orderBy(F.desc("p95"), "consumer_group", "client")
        .limit(most)
    )


def _failures() -> Column:
    from pyspark.sql import functions as F

    return F.sum(F.when(F.col("success"), 0).otherwise(1)).alias("failed")


def _bucket(column: str, bucket: str) -> Column:
    from pyspark.sql import functions as F

    return F.window(column, bucket)["start"].alias("time")


def _percentiles(column: str) -> list[Column]:
    from pyspark.sql import functions as F

    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    found = [F.percentile_approx(column, share).cast("double").alias(name) for name, share in shares.items()]
    return [*found, F.max(column).cast("double").alias("max")]
