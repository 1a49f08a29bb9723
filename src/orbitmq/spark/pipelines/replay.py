"""replay: a range of time of a topic once more, to another topic, as one transaction.

The same range to the same target is sent once, however often the job is run, unless it is asked to do it again. Each
copy says by the property ORBITMQ_REPLAYED_FROM which message it is a copy of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from orbitmq.client.errors import BadRequest
from orbitmq.spark.pipelines.command import add_range, epoch_ms, new_parser, run_main
from orbitmq.spark.pipelines.tables import (
    REPLAYED_FROM,
    job_id,
    read_topics,
    sendable,
    with_property,
    write_once,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ReplayReport:
    topic: str
    to: str
    start: str
    end: str
    messages: int
    sent_before: bool


def replay(
    spark: SparkSession,
    topic: str,
    to: str,
    *,
    namesrv: str,
    start: datetime,
    end: datetime,
    tags: str = "*",
    where: str | None = None,
    to_namesrv: str | None = None,
    again: bool = False,
) -> ReplayReport:
    """Sends messages stored from `start` up to, not including, `end`; `where` is a condition in SQL."""
    from pyspark.sql import functions as F

    if end <= start:
        raise BadRequest(f"the range ends ({end}) before it begins ({start})", hint="exchange the two times")
    if to == topic and to_namesrv is None:
        raise BadRequest(
            f"'{topic}' cannot be replayed to itself",
            hint="choose another topic: whoever reads this one would get its past and its present mixed",
        )
    rows = read_topics(spark, namesrv, [topic], start=start, end=end, tags=tags)
    # Offsets are found by time and may be a little early or late; the stored time itself decides.
    rows = rows.where((F.col("store_time") >= F.lit(start)) & (F.col("store_time") < F.lit(end)))
    if where is not None:
        rows = rows.where(where)
    rows = rows.withColumn(
        "properties", with_property(F.col("properties"), REPLAYED_FROM, F.col("offset_msg_id"))
    )
    target = to_namesrv or namesrv
    name = job_id("replay", namesrv, topic, target, to, epoch_ms(start), epoch_ms(end), tags, where)
    written = write_once(sendable(rows, to), target, name, again=again)
    return ReplayReport(topic, to, start.isoformat(), end.isoformat(), written.rows, written.skipped)


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "replay", "Send a range of time of a topic once more, to another topic, all or nothing."
    )
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("to", metavar="TARGET", help="the topic that gets the copies")
    add_range(
        parser, "2026-11-15T10:00, 2h (ago), …", "up to, not including, this time", to="now", needed=True
    )
    parser.add_argument("--tags", default="*", help="only these tags, 'A || B'")
    parser.add_argument("--where", metavar="SQL", help="only messages for which this holds")
    parser.add_argument(
        "--to-namesrv", metavar="ADDR", help="name servers of the target, if it is another cluster"
    )
    parser.add_argument("--again", action="store_true", help="also if the same range was replayed before")
    return run_main(parser, replay, argv)


if __name__ == "__main__":
    raise SystemExit(main())
