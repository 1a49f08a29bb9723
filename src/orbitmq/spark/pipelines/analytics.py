"""analytics: what goes on in a cluster, from its topics and message traces, as tables, plots and a page to read.

Throughput, keys and tags come from the topics themselves; latency, delay, backlog and slow consumers from what clients
report into the trace topic (with `msg_trace` on, or a client of ours with tracing); the present lag from the brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.admin.groups import group_progress, list_groups
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.spark.pipelines import analytics_tables as tables
from orbitmq.spark.pipelines.analytics_report import write_report
from orbitmq.spark.pipelines.command import Tell, add_range, add_topics, new_parser, run_main
from orbitmq.spark.pipelines.tables import on_cluster, read_topics
from orbitmq.wire.topics import TRACE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_ROWS: Final = 50
_STEPS: Final = (
    (timedelta(minutes=10), "10 seconds"),
    (timedelta(hours=3), "1 minute"),
    (timedelta(days=3), "1 hour"),
)


@dataclass(frozen=True)
class AnalyticsReport:
    start: str
    end: str
    step: str
    messages: int
    traces: int
    without_traces: str | None
    files: list[str]
    rows: dict[str, int]


def analytics(
    spark: SparkSession,
    topics: Iterable[str],
    out: str,
    *,
    namesrv: str,
    start: datetime,
    end: datetime | None = None,
    step: str | None = None,
    trace_topic: str = TRACE_TOPIC,
    most: int = MOST_ROWS,
    tell: Tell = lambda text: None,
) -> AnalyticsReport:
    """Looks at messages stored from `start` up to `end` (now) in steps of time that fit the range."""
    from pyspark.sql import functions as F

    end = end or datetime.now(UTC)
    step = step or next((name for limit, name in _STEPS if end - start <= limit), "1 day")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source = read_topics(
        spark, namesrv, topics, start=start, end=end, columns="topic,body,msg_id,tags,keys,store_time"
    )
    messages = source.select(
        "topic", "msg_id", "tags", "keys", "store_time", F.length("body").alias("bytes")
    ).persist()
    traces, problem = _traces(spark, namesrv, trace_topic, start)
    attempts = tables.deliveries(traces).persist()
    made = {
        "throughput": tables.throughput(messages, step),
        "backlog": tables.backlog(messages, attempts, step),
        "consumption_delay": tables.consumption_delay(messages, attempts, step),
        "send_latency": tables.send_latency(traces, step),
        "slow_consumers": tables.slow_consumers(attempts, most),
        "hot_keys": tables.hot_keys(messages, most),
        "tag_mix": tables.tag_mix(messages, most),
    }
    try:
        results: dict[str, list[dict[str, Any]]] = {}
        for name, table in made.items():
            tell(f"{name.replace('_', ' ')} …")
            results[name] = [row.asDict() for row in table.collect()]
        counts = int(messages.count()), int(traces.count())
    finally:
        for cached in (messages, traces, attempts):
            cached.unpersist()
    results["lag_now"] = on_cluster(namesrv, _lag_now)
    heading = f"OrbitMQ, {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
    files = write_report(Path(out), results, heading)
    rows = {name: len(found) for name, found in results.items()}
    return AnalyticsReport(start.isoformat(), end.isoformat(), step, *counts, problem, files, rows)


def _traces(
    spark: SparkSession, namesrv: str, trace_topic: str, start: datetime
) -> tuple[DataFrame, str | None]:
    """What clients reported since then; a cluster without traces has an empty table and a reason."""

    async def known(cluster: Cluster) -> bool:
        return await cluster.find_route(trace_topic, refresh=True) is not None

    if not on_cluster(namesrv, known):
        reason = f"there is no topic {trace_topic}: no client reports traces"
        return spark.createDataFrame([], tables.TRACE_SCHEMA), reason
    reports = read_topics(spark, namesrv, [trace_topic], start=start, columns="body,born_host")
    return tables.read_traces(reports).persist(), None


async def _lag_now(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for group in await list_groups(cluster):
        try:
            progress = await group_progress(cluster, group.name)
        except OrbitMQError:
            continue  # a group that never consumed has no progress to show
        lags: dict[str, int] = {}
        for queue in progress.queues:
            if queue.lag is not None:
                lags[queue.topic] = lags.get(queue.topic, 0) + queue.lag
        found += [{"group": group.name, "topic": topic, "lag": lag} for topic, lag in sorted(lags.items())]
    return sorted(found, key=lambda row: -int(row["lag"]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "analytics", "Throughput, latency, backlog, hot keys, tags and slow consumers as a report."
    )
    parser.add_argument("out", metavar="OUT", help="directory for tables, plots and report.html")
    add_topics(parser)
    add_range(parser, "24h (ago) unless given", "now unless given", since="24h", to="now")
    parser.add_argument("--step", metavar="INTERVAL", help='"1 minute"; chosen by the range unless given')
    parser.add_argument("--trace-topic", default=TRACE_TOPIC)
    return run_main(parser, analytics, argv)


if __name__ == "__main__":
    raise SystemExit(main())
