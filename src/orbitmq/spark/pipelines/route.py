"""route: topics forwarded to another topic or cluster as they grow, changed by SQL on the way, exactly once.

Two routes that point at each other would send a message round for ever. So every copy carries the places it has been
to (property ORBITMQ_HOPS), and none is sent to a place it has been to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orbitmq.client.errors import BadRequest
from orbitmq.spark.pipelines.command import (
    Tell,
    add_read_options,
    add_topics,
    add_write_options,
    new_parser,
    run_main,
    run_stream,
    said_by,
)
from orbitmq.spark.pipelines.tables import read_options, sendable, subscription, with_given, with_property

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOPS: Final = "ORBITMQ_HOPS"
VIEW: Final = "messages"
MOST_HOPS: Final = 16
PER_BATCH: Final = 100_000
_OF_THE_SOURCE: Final = "orbitmq.source"


@dataclass(frozen=True)
class RouteReport:
    topics: str
    to: str
    read: int
    batches: int


def route(
    spark: SparkSession,
    topics: Iterable[str],
    to: str,
    *,
    namesrv: str,
    checkpoint: str,
    to_namesrv: str | None = None,
    here: str | None = None,
    there: str | None = None,
    sql: str | None = None,
    start: str = "earliest",
    every: str | None = None,
    per_batch: int = PER_BATCH,
    delivery: str = "exactly-once",
    group: str | None = None,
    read: Mapping[str, str] | None = None,
    write: Mapping[str, str] | None = None,
    tell: Tell = lambda text: None,
) -> RouteReport:
    """Forwards what is new since the last run, or with `every` ("1 second") goes on until it is interrupted.

    `sql` selects from the view `messages` (the columns of the source) and gives the columns of the sink but `topic`,
    for all goes to `to`. `here` and `there` name the two clusters in the list of hops; without them their name servers
    do. `group` is a consumer group under which progress is reported to the brokers.
    """
    target = to_namesrv or namesrv
    here, there = here or namesrv, there or to_namesrv or here or namesrv
    topics = list(topics)
    own = {
        "namesrv": namesrv,
        **subscription(topics),
        **({"group": group} if group else {}),
        "startingOffsets": start,
        "maxOffsetsPerTrigger": str(per_batch),
    }
    into = with_given(
        {"namesrv": target, "delivery": delivery, "checkpointLocation": checkpoint},
        write,
        "--write",
        ["topic"],
    )
    stream = spark.readStream.format("orbitmq").options(**read_options(spark, own, read)).load()
    rows = without_loops(stream, here, f"{there}/{to}")
    if sql is not None:
        rows.withMetadata("topic", {_OF_THE_SOURCE: True}).createOrReplaceTempView(VIEW)
        rows = _checked(spark.sql(sql), sql)
    writer = sendable(rows, to).writeStream.format("orbitmq").options(**into)
    count, batches = run_stream(writer, every, tell)
    return RouteReport(",".join(topics), f"{there}/{to}", count, batches)


def without_loops(rows: DataFrame, here: str, target: str) -> DataFrame:
    """Drops what has been at the target before, or has gone too far, and writes down where the rest comes from."""
    from pyspark.sql import functions as F

    hops = F.filter(
        F.split(F.coalesce(F.element_at("properties", F.lit(HOPS)), F.lit("")), ","), lambda hop: hop != ""
    )
    place = F.concat(F.lit(here + "/"), F.col("topic"))
    kept = rows.where(~F.array_contains(hops, target) & (place != target) & (F.size(hops) < MOST_HOPS))
    travelled = F.concat_ws(",", F.array_union(hops, F.array(place)))
    return kept.withColumn("properties", with_property(F.col("properties"), HOPS, travelled))


def _checked(result: DataFrame, sql: str) -> DataFrame:
    if "properties" not in result.columns:
        raise BadRequest(
            f"the column 'properties' is missing in the result of: {sql}",
            hint="select it too: it holds the list of hops that keeps messages from running in circles",
        )
    # That of the source comes with SELECT *, and says where a message was. Another one is meant to say where it goes.
    if "topic" in result.columns and _OF_THE_SOURCE not in result.schema["topic"].metadata:
        raise BadRequest(
            f"a column 'topic' is made by: {sql}",
            hint="leave it out: all messages of a route go to its target; make a route for each target",
        )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("route", "Forward topics to another topic or cluster, changed by SQL, exactly once.")
    parser.add_argument("to", metavar="TARGET", help="the topic that gets the messages")
    add_topics(parser)
    parser.add_argument("--checkpoint", required=True, help="where the progress is kept")
    parser.add_argument(
        "--to-namesrv", metavar="ADDR", help="name servers of the target, if it is another cluster"
    )
    parser.add_argument("--here", metavar="NAME", help="name of this cluster in the list of hops")
    parser.add_argument("--there", metavar="NAME", help="name of the target cluster in the list of hops")
    parser.add_argument("--sql", help='"SELECT body, tags, keys, properties FROM messages WHERE …"')
    parser.add_argument(
        "--start", default="earliest", choices=["earliest", "latest"], help="of the first run"
    )
    parser.add_argument(
        "--every", metavar="INTERVAL", help='go on for ever, in steps of this long ("1 second")'
    )
    parser.add_argument("--per-batch", type=int, default=PER_BATCH, help="messages per step, at most")
    parser.add_argument(
        "--delivery", default="exactly-once", choices=["exactly-once", "at-least-once"], help="to the target"
    )
    parser.add_argument("--group", help="report progress to the brokers under this consumer group")
    add_read_options(parser)
    add_write_options(parser)
    said_by(parser, delivery="--delivery at-least-once")
    return run_main(parser, route, argv, stages=False)


if __name__ == "__main__":
    raise SystemExit(main())
