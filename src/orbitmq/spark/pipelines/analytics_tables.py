"""The tables of the analytics: what goes through topics, and what producers and consumers reported about it.

Every function takes tables of Spark and gives one that is small enough to be drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from orbitmq.wire.errors import WireError
from orbitmq.wire.trace import PubTrace, SubAfterTrace, SubBeforeTrace, decode_traces

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

TRACE_SCHEMA: Final = (
    "kind string, at timestamp, consumer_group string, topic string, msg_id string, request_id string, "
    "cost_ms int, success boolean, retries int, client string"
)
_TRACE_NAMES: Final = tuple(part.split()[0] for part in TRACE_SCHEMA.split(", "))


def read_traces(reports: DataFrame) -> DataFrame:
    """One row for each event in the messages of a trace topic."""
    return reports.select("body", "born_host").mapInArrow(_trace_rows, TRACE_SCHEMA)


def _trace_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    when = pa.timestamp("us", tz="UTC")
    types = (pa.string(), when, *[pa.string()] * 4, pa.int32(), pa.bool_(), pa.int32(), pa.string())
    for batch in batches:
        rows: list[tuple[Any, ...]] = []
        for body, host in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            try:
                traces = decode_traces(body)
            except WireError:
                continue  # the report of a broken client does not spoil those of the others
            rows += [row for trace in traces if (row := _row(trace, host)) is not None]
        columns = list(zip(*rows, strict=True)) or [()] * len(types)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=list(_TRACE_NAMES))


def _row(trace: object, host: str | None) -> tuple[Any, ...] | None:
    client = host.rpartition(":")[0] if host else None
    if isinstance(trace, PubTrace):
        at = trace.timestamp_ms * 1000
        return (
            "sent",
            at,
            trace.group,
            trace.topic,
            trace.msg_id,
            None,
            trace.cost_ms,
            trace.success,
            0,
            client,
        )
    if isinstance(trace, SubBeforeTrace):
        at = trace.timestamp_ms * 1000
        return (
            "begun",
            at,
            trace.group,
            None,
            trace.msg_id,
            trace.request_id,
            0,
            True,
            trace.retry_times,
            client,
        )
    if isinstance(trace, SubAfterTrace):
        moment = trace.timestamp_ms * 1000 or None
        row = (trace.group, None, trace.msg_id, trace.request_id, trace.cost_ms, trace.success, 0, client)
        return "handled", moment, *row
    return None


def deliveries(traces: DataFrame) -> DataFrame:
    """Each attempt to handle a message: when it began, who tried, how long it took and how it ended."""
    from pyspark.sql import functions as F

    begun = traces.where("kind = 'begun'").select(
        "request_id", "msg_id", "consumer_group", F.col("at").alias("begun"), "retries", "client"
    )
    handled = traces.where("kind = 'handled'").select("request_id", "msg_id", "cost_ms", "success")
    return begun.join(handled, ["request_id", "msg_id"], "left")


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


def send_latency(traces: DataFrame, bucket: str) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        traces.where("kind = 'sent'")
        .groupBy(_bucket("at", bucket), "topic")
        .agg(
            F.count(F.lit(1)).alias("sends"),
            *_percentiles("cost_ms"),
            F.sum(F.when(F.col("success"), 0).otherwise(1)).alias("failed"),
        )
        .orderBy("time", "topic")
    )


def consumption_delay(messages: DataFrame, attempts: DataFrame, bucket: str) -> DataFrame:
    """From when a message was stored to when a group began to handle it for the first time."""
    from pyspark.sql import functions as F

    first = attempts.groupBy("consumer_group", "msg_id").agg(F.min("begun").alias("begun"))
    # In milliseconds: timestamps become numbers of seconds, with their fraction.
    delay_ms = (F.col("begun").cast("double") - F.col("store_time").cast("double")) * 1000
    return (
        messages.select("msg_id", "topic", "store_time")
        .join(first, "msg_id")
        .withColumn("delay_ms", F.greatest(delay_ms, F.lit(0.0)))
        .groupBy(_bucket("begun", bucket), "topic", "consumer_group")
        .agg(F.count(F.lit(1)).alias("messages"), *_percentiles("delay_ms"))
        .orderBy("time", "topic", "consumer_group")
    )


def backlog(messages: DataFrame, attempts: DataFrame, bucket: str) -> DataFrame:
    """At the end of each step of time: messages stored until then that a group had not handled until then."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    done_at = F.min(
        F.when(F.col("success"), F.col("begun") + F.make_dt_interval(secs=F.col("cost_ms") / 1000))
    )
    done = attempts.groupBy("consumer_group", "msg_id").agg(done_at.alias("done"))
    stored = messages.select("msg_id", "topic", "store_time")
    # A group counts for the topics of which it has handled something.
    pairs = stored.join(done, "msg_id").select("topic", "consumer_group").distinct()
    came = stored.join(pairs, "topic").select(
        _bucket("store_time", bucket), "topic", "consumer_group", F.lit(1).alias("change")
    )
    went = (
        stored.join(done, "msg_id")
        .where("done IS NOT NULL")
        .select(_bucket("done", bucket), "topic", "consumer_group", F.lit(-1).alias("change"))
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


def slow_consumers(attempts: DataFrame, most: int) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        attempts.where("cost_ms IS NOT NULL")
        .groupBy("consumer_group", "client")
        .agg(
            F.count(F.lit(1)).alias("handled"),
            *_percentiles("cost_ms"),
            F.sum(F.when(F.col("success"), 0).otherwise(1)).alias("failed"),
            F.sum(F.when(F.col("retries") > 0, 1).otherwise(0)).alias("retried"),
        )
        .orderBy(F.desc("p95"), "consumer_group")
        .limit(most)
    )


def _bucket(column: str, bucket: str) -> Column:
    from pyspark.sql import functions as F

    return F.window(column, bucket)["start"].alias("time")


def _percentiles(column: str) -> list[Column]:
    from pyspark.sql import functions as F

    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    found = [F.percentile_approx(column, share).cast("double").alias(name) for name, share in shares.items()]
    return [*found, F.max(column).cast("double").alias("max")]
