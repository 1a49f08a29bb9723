"""query: SQL over the archive and the live topics as one table, each message once.

The archive is asked how far it goes in each queue; the live part begins behind that. So the two never overlap, and
what was archived is read from files even while the brokers still have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.admin.topics import list_topics
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound
from orbitmq.client.reader import offsets_at
from orbitmq.spark.pipelines.archive import read_archive
from orbitmq.spark.pipelines.command import add_topics, new_parser, run_main
from orbitmq.spark.pipelines.tables import on_cluster, subscription
from orbitmq.spark.schema import ALL_COLUMNS
from orbitmq.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEW: Final = "messages"
MOST_ROWS: Final = 1000

Places = dict[MessageQueue, int]


@dataclass(frozen=True)
class QueryReport:
    sql: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    more: bool = False
    """There are more rows than are shown."""
    written_to: str | None = None


def one_table(
    spark: SparkSession, topics: Iterable[str], *, namesrv: str, archive: str | None = None
) -> DataFrame:
    """Archive and live messages of these topics as one table with the columns of the source."""
    names = on_cluster(namesrv, lambda cluster: _topic_names(cluster, list(topics)))
    live = spark.read.format("orbitmq").options(namesrv=namesrv, subscribe=",".join(names))
    if archive is None:
        return live.load()
    from pyspark.sql import functions as F

    kept = read_archive(spark, archive).where(F.col("topic").isin(names)).select(*ALL_COLUMNS)
    ends = {
        MessageQueue(row["topic"], row["broker"], row["queue_id"]): int(row["end"])
        for row in kept.groupBy("topic", "broker", "queue_id")
        .agg((F.max("queue_offset") + 1).alias("end"))
        .collect()
    }
    start = on_cluster(namesrv, lambda cluster: _live_start(cluster, names, ends))
    return kept.unionByName(live.option("startingOffsets", _as_json(start)).load())


def query(
    spark: SparkSession,
    sql: str,
    topics: Iterable[str],
    *,
    namesrv: str,
    archive: str | None = None,
    out: str | None = None,
    out_format: str = "parquet",
    max_rows: int = MOST_ROWS,
) -> QueryReport:
    """Runs SQL over the view `messages`; the result comes back, or goes to files when `out` is given."""
    one_table(spark, topics, namesrv=namesrv, archive=archive).createOrReplaceTempView(VIEW)
    result = spark.sql(sql)
    if out is not None:
        result.write.mode("errorifexists").format(out_format).save(out)
        return QueryReport(sql, written_to=out)
    rows = [row.asDict(recursive=True) for row in result.limit(max_rows + 1).collect()]
    return QueryReport(sql, [_plain(row) for row in rows[:max_rows]], len(rows) > max_rows)


async def _topic_names(cluster: Cluster, topics: list[str]) -> list[str]:
    chosen = subscription(topics)
    if "subscribe" in chosen:
        return chosen["subscribe"].split(",")
    import re

    pattern = chosen["subscribePattern"]
    found = [
        topic.name
        for topic in await list_topics(cluster, all_kinds=True)
        if re.fullmatch(pattern, topic.name)
    ]
    if not found:
        raise NotFound(f"no topic matches {pattern}", hint="see `orbitmq topic list --all`")
    return found


async def _live_start(cluster: Cluster, topics: list[str], archived: Places) -> Places:
    """Where the live part of each queue begins: behind the archive, but never outside of what the broker has."""
    start: Places = {}
    for topic in topics:
        route = await cluster.route(topic, refresh=True)
        first, last = await offsets_at(cluster, route, "first"), await offsets_at(cluster, route, "last")
        for queue in route.read_queues():
            start[queue] = min(max(archived.get(queue, 0), first[queue]), last[queue])
    return start


def _as_json(places: Places) -> str:
    from orbitmq.spark.offsets import to_json

    return json.dumps(to_json(places))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: bytes(value).decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else value
        for name, value in row.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("query", "SQL over the archive and the live topics as one table called `messages`.")
    parser.add_argument(
        "sql", metavar="SQL", help='for example "SELECT topic, count(*) FROM messages GROUP BY topic"'
    )
    add_topics(parser)
    parser.add_argument("--archive", metavar="PATH", help="an archive to take in as well")
    parser.add_argument("--out", metavar="PATH", help="write the result there instead of printing it")
    parser.add_argument(
        "--format",
        dest="out_format",
        default="parquet",
        choices=["parquet", "csv", "json", "orc"],
        help="of --out",
    )
    parser.add_argument(
        "--max", dest="max_rows", type=int, default=MOST_ROWS, metavar="ROWS", help="rows printed at most"
    )
    return run_main(parser, query, argv)


if __name__ == "__main__":
    raise SystemExit(main())
