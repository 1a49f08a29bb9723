"""dedup: a copy of a topic with one message for each key.

Which one stays is decided by the time it was stored, first or last. Messages without a key are all kept: nothing
says that two of them are the same. The same job is sent once, as with `replay`: it is the same if topic, target, key,
`keep` and range are the same, or if it was given the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orbitmq.client.errors import BadRequest
from orbitmq.spark.pipelines.command import (
    Tell,
    add_range,
    add_read_options,
    add_write_options,
    epoch_ms,
    new_parser,
    run_main,
)
from orbitmq.spark.pipelines.once import AGAIN_HELP, JOB_HELP, job_id, tell_range, whole_ms, write_once
from orbitmq.spark.pipelines.tables import read_topics, sendable, stored_within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class DedupReport:
    topic: str
    to: str
    job: str
    """What the job is known by: its name, or what follows from all that says what it sends."""
    messages: int | None
    kept: int | None
    duplicates: int | None
    keys: int | None
    """Numbers of this run; unknown where it had nothing to send, because the job was done or decided before."""
    sent_before: bool
    finished: bool
    """An earlier run of this job had died in the middle of its commit; what it had chosen is visible now."""


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
    job: str | None = None,
    again: bool = False,
    read: Mapping[str, str] | None = None,
    write: Mapping[str, str] | None = None,
    tell: Tell = lambda text: None,
) -> DedupReport:
    """`key` is an expression in SQL over the columns of the source, for example `properties['order']`.

    `job` is a name that stands in for range, key and `keep`: a repeat under the same name is the same job.
    """
    from pyspark.sql import Observation, Window
    from pyspark.sql import functions as F

    if keep not in ("first", "last"):
        raise BadRequest(f"keep is '{keep}'", hint="keep the first or the last message of each key")
    if to == topic:
        raise BadRequest(f"'{topic}' cannot be deduplicated into itself", hint="choose another topic")
    # Without an end the job would take in what arrives while it runs, and no second run could be the same job.
    end = whole_ms(end or datetime.now(UTC))
    start = whole_ms(start) if start else None
    tell_range(tell, start, end, job)
    seen = Observation("dedup")
    rows = (
        stored_within(read_topics(spark, namesrv, [topic], start=start, end=end, read=read), start, end)
        .withColumn("_key", F.expr(key))
        .observe(seen, F.count(F.lit(1)).alias("messages"), F.count("_key").alias("with_key"))
    )
    age = [F.col(name) for name in ("store_time", "broker", "queue_id", "queue_offset")]
    order = [column.asc() if keep == "first" else column.desc() for column in age]
    ranked = rows.withColumn("_rank", F.row_number().over(Window.partitionBy("_key").orderBy(*order)))
    kept = ranked.where(F.col("_key").isNull() | (F.col("_rank") == 1))
    chosen = ("job", job) if job else (key, keep, epoch_ms(start) if start else None, epoch_ms(end))
    name = job_id("dedup", namesrv, topic, to, *chosen)
    written = write_once(sendable(kept, to), namesrv, name, again=again, write=write, tell=tell)
    known_by = job or name
    if written.rows is None or not written.is_new:
        before, finished = written.sent_before, written.finished
        return DedupReport(topic, to, known_by, None, None, None, None, before, finished)
    messages, with_key = int(seen.get["messages"]), int(seen.get["with_key"])
    keys = written.rows - (messages - with_key)
    return DedupReport(
        topic, to, known_by, messages, written.rows, messages - written.rows, keys, False, False
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("dedup", "Copy a topic to another one with one message for each key.")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("to", metavar="TARGET")
    parser.add_argument("--key", default="keys", metavar="SQL", help="what makes two messages the same")
    parser.add_argument("--keep", default="first", choices=["first", "last"], help="which of them stays")
    add_range(parser, "only from this time on", "up to, not including, this time")
    parser.add_argument("--job", metavar="NAME", help=JOB_HELP)
    parser.add_argument("--again", action="store_true", help=AGAIN_HELP)
    add_read_options(parser)
    add_write_options(parser)
    return run_main(parser, dedup, argv)


if __name__ == "__main__":
    raise SystemExit(main())
