"""query: SQL over the archive and the live topics as one table, each message once.

The archive is asked how far it goes in each queue; the live part begins behind that. So the two never overlap, and
what was archived is read from files even while the brokers still have it. What lies between the two because it was
cleaned before it was archived is an error, not a silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.admin.topics import list_topics
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound
from orbitmq.client.reader import offsets_at, pull, read_addr
from orbitmq.spark.errors import SourceError
from orbitmq.spark.offsets import Offsets, describe, to_json
from orbitmq.spark.pipelines.archive import read_archive
from orbitmq.spark.pipelines.archive_log import ArchiveLog, Places
from orbitmq.spark.pipelines.command import (
    Tell,
    add_read_options,
    add_topics,
    new_parser,
    run_main,
    said_by,
)
from orbitmq.spark.pipelines.tables import WHAT_IS_READ, on_cluster, read_options, subscription
from orbitmq.spark.places import Bounds
from orbitmq.spark.schema import ALL_COLUMNS
from orbitmq.spark.subscription import matching
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEW: Final = "messages"
MOST_ROWS: Final = 1000
TRIES: Final = 5


@dataclass(frozen=True)
class QueryReport:
    sql: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    more: bool = False
    """There are more rows than are shown."""
    written_to: str | None = None


def one_table(
    spark: SparkSession,
    topics: Iterable[str],
    *,
    namesrv: str,
    archive: str | None = None,
    fail_on_data_loss: bool = True,
    read: Mapping[str, str] | None = None,
    tell: Tell = lambda text: None,
) -> DataFrame:
    """Archive and live messages of these topics as one table with the columns of the source.

    Messages that were cleaned before they were archived are an error, or with `fail_on_data_loss=False` told.
    """
    own = {"namesrv": namesrv, "failOnDataLoss": str(fail_on_data_loss).lower()}
    chosen = subscription(topics)
    if archive is None:
        options = read_options(spark, {**own, **chosen}, read, WHAT_IS_READ)
        return spark.read.format("orbitmq").options(**options).load()
    from pyspark.sql import functions as F

    archived = Archived(spark, archive, chosen)
    limits = on_cluster(namesrv, lambda cluster: _live(cluster, chosen, archived.topics))
    kept = archived.rows.where(F.col("topic").isin(sorted(archived.topics)))
    live = {queue.topic for queue in limits}
    if only_archived := archived.topics - live:
        tell(f"in the archive only, no broker has them: {', '.join(sorted(only_archived))}")
    if not live:
        return kept
    start = {queue: archived.live_start(queue, limits[queue], namesrv) for queue in limits}
    holes = {queue: place for queue, place in start.items() if place < limits[queue].first}
    if holes:
        problem = _holes(holes, limits)
        if fail_on_data_loss:
            raise problem
        tell(f"going on without them: {problem.args[0]}")
        start |= {queue: limits[queue].first for queue in holes}
    own |= {"subscribe": ",".join(sorted(live)), "startingOffsets": json.dumps(to_json(start))}
    options = read_options(spark, own, read, WHAT_IS_READ)
    return kept.unionByName(spark.read.format("orbitmq").options(**options).load())


def _holes(holes: Offsets, limits: Mapping[MessageQueue, Bounds]) -> SourceError:
    ranges = [
        f"offsets {place} to {limits[queue].first - 1} of {describe(queue)}"
        for queue, place in sorted(holes.items())
    ]
    more = f" and {len(ranges) - 8} more ranges" if len(ranges) > 8 else ""
    return SourceError(
        f"messages are neither in the archive nor live: {', '.join(ranges[:8])}{more}; "
        "they were cleaned before they were archived",
        hint="set failOnDataLoss to false to go on without them, and run the archive more often",
    )


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
    fail_on_data_loss: bool = True,
    read: Mapping[str, str] | None = None,
    tell: Tell = lambda text: None,
) -> QueryReport:
    """Runs SQL over the view `messages`; the result comes back, or goes to files when `out` is given."""
    table = one_table(
        spark,
        topics,
        namesrv=namesrv,
        archive=archive,
        fail_on_data_loss=fail_on_data_loss,
        read=read,
        tell=tell,
    )
    table.createOrReplaceTempView(VIEW)
    result = spark.sql(sql)
    if out is not None:
        result.write.mode("errorifexists").format(out_format).save(out)
        return QueryReport(sql, written_to=out)
    rows = [row.asDict(recursive=True) for row in result.limit(max_rows + 1).collect()]
    return QueryReport(sql, [_plain(row) for row in rows[:max_rows]], len(rows) > max_rows)


class Archived:
    """What an archive has of the topics that are asked for, and how far it goes in each queue."""

    def __init__(self, spark: SparkSession, path: str, chosen: Mapping[str, str]) -> None:
        log = ArchiveLog(spark, path)
        for _ in range(TRIES):
            # A run of the archive at the same time: the places must be those of the files that are read.
            before = log.newest_step()
            self.rows = read_archive(spark, path).select(*ALL_COLUMNS)
            self._places: Places | None = log.places()
            if log.newest_step() == before:
                break
        self._is_exact = self._places is not None and self._places.exact
        self._noted = self._places.of_queue if self._places is not None else {}
        # The checkpoint knows better, without a look into the files: what a filter left out has been read too.
        self._seen = {} if self._is_exact else _ends(self.rows, chosen)
        self.topics = {
            queue.topic for queue in (*self._seen, *self._noted) if _is_chosen(queue.topic, chosen)
        }

    def live_start(self, queue: MessageQueue, limits: Bounds, namesrv: str) -> int:
        """Where the live part of a queue begins; before the queue's first message if some are in neither."""
        places = [ends[queue] for ends in (self._noted, self._seen) if queue in ends]
        if not places:
            return limits.first
        if max(places) <= limits.end:
            return max(places)
        return limits.end if self._is_behind(queue, limits, namesrv) else limits.first

    def _is_behind(self, queue: MessageQueue, limits: Bounds, namesrv: str) -> bool:
        """Whether a queue that ends before its archive does is the same one all the same, at a slave that lags. A topic
        that was deleted and made anew has another message at that place.
        """
        from pyspark.sql import functions as F

        if limits.first == limits.end:
            return False
        last = on_cluster(namesrv, lambda cluster: _message_id(cluster, queue, limits.end - 1))
        wanted = {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
        wanted |= {"queue_offset": limits.end - 1, "msg_id": last}
        rows = self.rows
        for name, value in wanted.items():
            rows = rows.where(F.col(name) == F.lit(value))
        return bool(rows.limit(1).count())


def _ends(rows: DataFrame, chosen: Mapping[str, str]) -> Offsets:
    """Behind the last message of each queue in some files."""
    from pyspark.sql import functions as F

    if "subscribe" in chosen:
        rows = rows.where(F.col("topic").isin(chosen["subscribe"].split(",")))
    ends = rows.groupBy("topic", "broker", "queue_id").agg((F.max("queue_offset") + 1).alias("end"))
    return {
        MessageQueue(row["topic"], row["broker"], row["queue_id"]): int(row["end"]) for row in ends.collect()
    }


async def _message_id(cluster: Cluster, queue: MessageQueue, offset: int) -> str | None:
    route = await cluster.route(queue.topic)
    pulled = await pull(cluster, read_addr(route, queue), queue, offset, max_messages=1)
    return next((message.msg_id for message in pulled.messages if message.queue_offset == offset), None)


async def _live(
    cluster: Cluster, chosen: Mapping[str, str], archived: set[str]
) -> dict[MessageQueue, Bounds]:
    """The queues that brokers have. A topic that they do not have must at least be archived."""
    if "subscribe" in chosen:
        names = chosen["subscribe"].split(",")
    else:
        names = [topic.name for topic in await list_topics(cluster, all_kinds=True)]
        names = [name for name in names if _is_chosen(name, chosen)]
    found: dict[MessageQueue, Bounds] = {}
    for name in names:
        bounds = await _bounds(cluster, name)
        if not bounds and name not in archived and "subscribe" in chosen:
            raise NotFound(
                f"topic '{name}' does not exist, and the archive has nothing of it",
                hint="check the name with `orbitmq topic list`",
            )
        found |= bounds
    if not found and not archived:
        raise NotFound(
            f"no topic matches {', '.join(chosen.values())}, neither live nor in the archive",
            hint="see `orbitmq topic list --all`",
        )
    return found


async def _bounds(cluster: Cluster, topic: str) -> dict[MessageQueue, Bounds]:
    route = await cluster.find_route(topic, refresh=True)
    if route is None:
        return {}
    try:
        first, end = await offsets_at(cluster, route, "first"), await offsets_at(cluster, route, "last")
    except NotFound as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}  # deleted a moment ago: the name servers hear of that later
        raise
    return {queue: Bounds(first[queue], end[queue]) for queue in end}


def _is_chosen(topic: str, chosen: Mapping[str, str]) -> bool:
    """As the source does it."""
    if "subscribe" in chosen:
        return topic in chosen["subscribe"].split(",")
    return bool(matching((topic,), chosen["subscribePattern"]))


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
    parser.add_argument(
        "--accept-data-loss",
        dest="fail_on_data_loss",
        action="store_false",
        help="go on when messages were cleaned before they were archived",
    )
    add_read_options(parser)
    said_by(parser, failOnDataLoss="--accept-data-loss")
    return run_main(parser, query, argv)


if __name__ == "__main__":
    raise SystemExit(main())
