"""dedup: a copy of a topic with one message for each key.

Which one stays is decided by the time it was stored, first or last. Messages without a key are all kept: nothing
says that two of them are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orbitmq.client.errors import BadRequest
from orbitmq.spark.pipelines.command import add_range, new_parser, run_main
from orbitmq.spark.pipelines.tables import job_id, read_topics, sendable, write_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class DedupReport:
    topic: str
    to: str
    messages: int
    kept: int
    duplicates: int
    keys: int
    sent_before: bool


def dedup(
    spark: SparkSession,
    topic: str,
    to: str,
    *,
    namesrv: str,
    key: str = "keys",
    keep: str = "first",
    start: datetime | None = None,
    end: datetime | None = None,
    again: bool = False,
) -> DedupReport:
    """`key` is an expression in SQL over the columns of the source, for example `properties['order']`."""
    from pyspark.sql import Observation, Window
    from pyspark.sql import functions as F

    if keep not in ("first", "last"):
        raise BadRequest(f"keep is '{keep}'", hint="keep the first or the last message of each key")
    if to == topic:
        raise BadRequest(f"'{topic}' cannot be deduplicated into itself", hint="choose another topic")
    # Without an end the job would take in what arrives while it runs, and no second run could be the same job.
    end = end or datetime.now(UTC)
    seen = Observation("dedup")
    rows = (
        read_topics(spark, namesrv, [topic], start=start, end=end)
        .withColumn("_key", F.expr(key))
        .observe(seen, F.count(F.lit(1)).alias("messages"), F.count("_key").alias("with_key"))
    )
    age = [F.col(name) for name in ("store_time", "broker", "queue_id", "queue_offset")]
    order = [column.asc() if keep == "first" else column.desc() for column in age]
    ranked = rows.withColumn("_rank", F.row_number().over(Window.partitionBy("_key").orderBy(*order)))
    kept = ranked.where(F.col("_key").isNull() | (F.col("_rank") == 1))
    name = job_id("dedup", namesrv, topic, to, key, keep, start, end)
    written = write_once(sendable(kept, to), namesrv, name, again=again)
    if written.skipped:
        return DedupReport(topic, to, 0, 0, 0, 0, True)
    messages, with_key = int(seen.get["messages"]), int(seen.get["with_key"])
    keys = written.rows - (messages - with_key)
    return DedupReport(topic, to, messages, written.rows, messages - written.rows, keys, False)


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("dedup", "Copy a topic to another one with one message for each key.")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("to", metavar="TARGET")
    parser.add_argument("--key", default="keys", metavar="SQL", help="what makes two messages the same")
    parser.add_argument("--keep", default="first", choices=["first", "last"], help="which of them stays")
    add_range(parser, "only from this time on", "up to, not including, this time")
    parser.add_argument("--again", action="store_true", help="also if the same was done before")
    return run_main(parser, dedup, argv)


if __name__ == "__main__":
    raise SystemExit(main())
