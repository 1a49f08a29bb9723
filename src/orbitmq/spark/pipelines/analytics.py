"""analytics: what goes on in a cluster, from its topics and message traces, as tables, plots and a page to read.

Throughput, keys, tags and sending hosts come from the topics themselves; latency, delay, backlog, producers and slow
consumers from what clients report into the trace topic (with `msg_trace` on, or a client of ours with tracing); the
present lag from the brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.cluster import Cluster
from orbitmq.spark.pipelines import analytics_tables as tables
from orbitmq.spark.pipelines.analytics_groups import Wanted, lag_now, subscriptions
from orbitmq.spark.pipelines.analytics_place import draft_of
from orbitmq.spark.pipelines.analytics_report import Remarks, write_report
from orbitmq.spark.pipelines.analytics_traces import (
    REPORTED_WITHIN,
    TRACE_SCHEMA,
    Traces,
    in_range,
    read_traces,
)
from orbitmq.spark.pipelines.command import (
    Tell,
    add_range,
    add_read_options,
    add_topics,
    new_parser,
    run_main,
)
from orbitmq.spark.pipelines.tables import on_cluster, read_topics, stored_within, subscription
from orbitmq.spark.pipelines.utc import collected
from orbitmq.wire.topics import TRACE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MOST_ROWS: Final = 50
_COLUMNS: Final = "topic,body,msg_id,tags,keys,store_time,born_host"
_STEPS: Final = (
    (timedelta(minutes=10), "10 seconds"),
    (timedelta(hours=3), "1 minute"),
    (timedelta(days=3), "1 hour"),
)
# Of `--from 10m`: both ends are times of the clock, some microseconds apart.
_SLACK: Final = timedelta(seconds=1)
_OF_SENDING: Final = ("send_latency", "producers")
_OF_THE_MOST: Final = ("producers", "slow_consumers", "sending_hosts", "hot_keys", "tag_mix")
_OF_HANDLING: Final = ("backlog", "consumption_delay", "slow_consumers")


Subscriptions = Mapping[str, list[Wanted] | str]
"""By group: what it asks for, or why that is not known."""


@dataclass(frozen=True)
class AnalyticsReport:
    start: str
    end: str
    step: str
    messages: int
    traces: int
    without_traces: str | None
    remarks: list[str]
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
    read: Mapping[str, str] | None = None,
    tell: Tell = lambda text: None,
) -> AnalyticsReport:
    """Looks at what happened from `start` up to `end` (now) in steps of time that fit the range. All times are UTC."""
    from pyspark.sql import functions as F

    topics = list(topics)
    start, end = start.astimezone(UTC), (end or datetime.now(UTC)).astimezone(UTC)
    step = step or next((name for limit, name in _STEPS if end - start <= limit + _SLACK), "1 day")
    source = read_topics(spark, namesrv, topics, start=start, end=end, read=read, columns=_COLUMNS)
    source = stored_within(source, start, end)
    with draft_of(Path(out)) as draft:
        reports, problem = _reports(spark, namesrv, trace_topic, start, end, read)
        messages = source.select(
            "topic", "msg_id", "tags", "keys", "store_time", "born_host", F.length("body").alias("bytes")
        ).persist()
        reports = reports.persist()
        traces = in_range(reports, start, end, _is_one_of(topics))
        attempts = traces.attempts.persist()
        try:
            counts = int(messages.count()), _events(Traces(traces.sent, attempts))
            known = _subscriptions(namesrv, attempts)
            tags, left_out = _selections(spark, known)
            made = {
                "throughput": tables.throughput(messages, step),
                "backlog": tables.backlog(messages, attempts, tags, left_out, step, end),
                "consumption_delay": tables.consumption_delay(messages, attempts, step),
                "send_latency": tables.send_latency(traces.sent, step),
                "producers": tables.producers(traces.sent, most),
                "slow_consumers": tables.slow_consumers(attempts, start, most),
                "sending_hosts": tables.sending_hosts(messages, most),
                "hot_keys": tables.hot_keys(messages, most),
                "tag_mix": tables.tag_mix(messages, most),
            }
            results: dict[str, list[dict[str, Any]]] = {}
            for name, table in made.items():
                tell(f"{name.replace('_', ' ')} …")
                results[name] = collected(table)
        finally:
            for cached in (messages, reports, attempts):
                cached.unpersist()
        lags = on_cluster(namesrv, lag_now)
        results["lag_now"] = lags.rows
        if problem is None and not any(counts[1]):
            problem = f"{trace_topic} holds no traces of this range: no client reported any"
        remarks = {
            **_remarks(results, problem, trace_topic, known, most),
            "lag_now": lags.unknown[:MOST_ROWS],
        }
        heading = f"OrbitMQ, {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
        files = write_report(draft, results, heading, step=step, remarks=remarks)
    return AnalyticsReport(
        start.isoformat(),
        end.isoformat(),
        step,
        counts[0],
        sum(counts[1]),
        problem,
        [*(remarks.get("backlog", ()) if problem is None else ()), *remarks["lag_now"]],
        files,
        {name: len(found) for name, found in results.items()},
    )


def _reports(
    spark: SparkSession,
    namesrv: str,
    trace_topic: str,
    start: datetime,
    end: datetime,
    read: Mapping[str, str] | None,
) -> tuple[DataFrame, str | None]:
    """What clients reported since then; a cluster without traces has an empty table and a reason."""

    async def known(cluster: Cluster) -> bool:
        return await cluster.find_route(trace_topic, refresh=True) is not None

    if not on_cluster(namesrv, known):
        reason = f"there is no topic {trace_topic}: no client reports traces"
        return spark.createDataFrame([], TRACE_SCHEMA), reason
    until = end + REPORTED_WITHIN
    reports = read_topics(
        spark, namesrv, [trace_topic], start=start, end=until, read=read, columns="body,born_host"
    )
    return read_traces(reports), None


def _is_one_of(topics: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    named = subscription(topics)
    if "subscribe" in named:
        return F.col("topic").isin(named["subscribe"].split(","))
    return F.col("topic").rlike(f"^(?:{named['subscribePattern']})$")


def _events(traces: Traces) -> tuple[int, int]:
    """How many traces there are of sending, and of handling: that it began, and how it ended."""
    from pyspark.sql import functions as F

    begun, ended = traces.attempts.select(F.count(F.lit(1)), F.count("success")).collect()[0]
    return int(traces.sent.count()), int(begun) + int(ended)


def _subscriptions(namesrv: str, attempts: DataFrame) -> Subscriptions:
    groups = sorted({str(row[0]) for row in attempts.select("consumer_group").distinct().collect() if row[0]})
    return on_cluster(namesrv, lambda cluster: subscriptions(cluster, groups)) if groups else {}


def _selections(spark: SparkSession, known: Subscriptions) -> tuple[DataFrame, DataFrame]:
    """Which tags groups ask for, and the groups of which one cannot tell what they ask for."""
    wanted = [one for found in known.values() if not isinstance(found, str) for one in found]
    by_tags = [(one.topic, one.group, one.tags) for one in wanted if one.tags]
    by_sql = [(one.topic, one.group) for one in wanted if one.sql is not None]
    pair = "topic string, consumer_group string"
    return (
        spark.createDataFrame(by_tags, f"{pair}, tags array<string>"),
        spark.createDataFrame(by_sql, pair),
    )


def _remarks(
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    problem: str | None,
    trace_topic: str,
    known: Subscriptions,
    most: int,
) -> Remarks:
    """What a reader must know of a table: why it is empty, and what is not in it."""
    found: dict[str, list[str]] = {}
    stored = {str(row["topic"]) for row in results["throughput"]}
    counted = {(str(row["topic"]), str(row["consumer_group"])) for row in results["backlog"]}
    backlog: list[str] = []
    for group, asked in known.items():
        if isinstance(asked, str):
            if any(name == group for _, name in counted):
                backlog.append(
                    f"what {group} asks for is not known: {asked}. If it asks for some tags only, its backlog is too "
                    "high; see its lag now"
                )
            continue
        for one in asked:
            if one.sql is not None and one.topic in stored:
                backlog.append(
                    f"{group} is left out for {one.topic}: it asks for what matches {one.sql}; see its lag now"
                )
            elif one.tags and (one.topic, group) in counted:
                backlog.append(
                    f"{group} asks for {' || '.join(one.tags)} of {one.topic}: only these are counted"
                )
    if backlog:
        found["backlog"] = backlog
    for name in _OF_THE_MOST:
        if len(results[name]) == most:
            found[name] = [f"tables/ ends after {most:,} rows; there may be more"]
    for names, what in ((_OF_SENDING, "sending"), (_OF_HANDLING, "handling")):
        for name in names:
            if not results[name] and name not in found:
                found[name] = [
                    problem or f"{trace_topic} holds no traces of {what} these messages in this range"
                ]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "analytics", "Throughput, latency, backlog, hot keys, tags, producers and slow consumers as a report."
    )
    parser.add_argument("out", metavar="OUT", help="directory for tables, plots and report.html")
    add_topics(parser)
    add_range(parser, "24h (ago) unless given", "now unless given", since="24h", to="now")
    parser.add_argument("--step", metavar="INTERVAL", help='"1 minute"; chosen by the range unless given')
    parser.add_argument("--trace-topic", default=TRACE_TOPIC)
    add_read_options(parser)
    return run_main(parser, analytics, argv)


if __name__ == "__main__":
    raise SystemExit(main())
