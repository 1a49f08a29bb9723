"""triage: dead letters grouped by what went wrong, so that one look tells which of them can be redriven.

Reasons that differ only in numbers, ids or quoted texts are the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.admin.dead import ORIGIN_TOPIC, REASON
from orbitmq.client.admin.topics import list_topics
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound
from orbitmq.spark.pipelines.command import add_range, add_read_options, new_parser, run_main
from orbitmq.spark.pipelines.tables import on_cluster, read_topics
from orbitmq.spark.pipelines.utc import collected
from orbitmq.wire.properties import Prop
from orbitmq.wire.topics import DEAD_PREFIX, dead_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NO_REASON: Final = "(the consumer gave no reason)"
# Longest first: a number inside an id is part of the id.
_VARYING: Final = (
    r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b",
    r"\b(?=[0-9A-Fa-f]*[0-9])[0-9A-Fa-f]{16,}\b",
    r"'[^']*'|\"[^\"]*\"",
    r"[0-9]+(?:[.,:][0-9]+)*",
)


@dataclass(frozen=True)
class TriageReport:
    groups: list[str]
    dead_letters: int
    reasons: list[dict[str, Any]]


def dead_letters(
    spark: SparkSession,
    groups: Iterable[str] = (),
    *,
    namesrv: str,
    start: datetime | None = None,
    end: datetime | None = None,
    read: Mapping[str, str] | None = None,
) -> DataFrame:
    """Dead letters as a table: the source's columns and consumer_group, origin_topic, reason, kind."""
    from pyspark.sql import functions as F

    names = list(groups) or on_cluster(namesrv, _dead_groups)
    rows = read_topics(spark, namesrv, [dead_topic(name) for name in names], start=start, end=end, read=read)
    properties = F.col("properties")
    reason = F.element_at(properties, F.lit(REASON))
    return (
        rows.withColumn("consumer_group", F.substring("topic", len(DEAD_PREFIX) + 1, 1 << 20))
        .withColumn(
            "origin_topic",
            F.coalesce(
                F.element_at(properties, F.lit(Prop.RETRY_TOPIC)),
                F.element_at(properties, F.lit(ORIGIN_TOPIC)),
            ),
        )
        .withColumn("reason", reason)
        .withColumn("kind", F.coalesce(same_kind(reason), F.lit(NO_REASON)))
    )


def same_kind(reason: Column) -> Column:
    from pyspark.sql import functions as F

    for pattern in _VARYING:
        reason = F.regexp_replace(reason, pattern, "#")
    return F.trim(F.regexp_replace(reason, r"\s+", " "))


def triage(
    spark: SparkSession,
    groups: Iterable[str] = (),
    *,
    namesrv: str,
    start: datetime | None = None,
    end: datetime | None = None,
    read: Mapping[str, str] | None = None,
) -> TriageReport:
    """Counts dead letters by group, topic and kind of reason; the most frequent first. Times are UTC."""
    from pyspark.sql import functions as F

    letters = dead_letters(spark, groups, namesrv=namesrv, start=start, end=end, read=read)
    # The example is the newest: its message is the one most likely still to be there.
    newest = F.max_by(F.struct("reason", "offset_msg_id"), "store_time")
    table = (
        letters.groupBy("consumer_group", "origin_topic", "kind")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.min("store_time").alias("first"),
            F.max("store_time").alias("last"),
            F.max("reconsume_times").alias("tries"),
            newest.alias("example"),
        )
        .orderBy(F.desc("count"), "consumer_group", "kind")
    )
    rows = [
        {
            "group": row["consumer_group"],
            "topic": row["origin_topic"],
            "count": int(row["count"]),
            "kind": row["kind"],
            "first": row["first"],
            "last": row["last"],
            "tries": row["tries"],
            "example": row["example"]["reason"],
            "example_id": row["example"]["offset_msg_id"],
        }
        for row in collected(table)
    ]
    found = sorted({str(row["group"]) for row in rows})
    return TriageReport(found, sum(int(row["count"]) for row in rows), rows)


async def _dead_groups(cluster: Cluster) -> list[str]:
    topics = await list_topics(cluster, all_kinds=True)
    found = [topic.name.removeprefix(DEAD_PREFIX) for topic in topics if topic.name.startswith(DEAD_PREFIX)]
    if not found:
        raise NotFound("no group has dead letters", hint="see `orbitmq dead list`")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("triage", "Dead letters grouped by what went wrong.")
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help="consumer groups; all that have dead letters"
    )
    add_range(parser, "died at or after this time", "died before this time")
    add_read_options(parser)
    return run_main(parser, triage, argv)


if __name__ == "__main__":
    raise SystemExit(main())
