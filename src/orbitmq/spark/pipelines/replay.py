"""replay: a range of time of a topic once more, to another topic, as one transaction.

The same job is sent once, however often it is run, unless it is asked to do it again. It is the same if topic, target,
range, tags and condition are the same, or if it was given the same name. Each copy says by the property
ORBITMQ_REPLAYED_FROM which message it is a copy of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
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
from orbitmq.spark.pipelines.tables import REPLAYED_FROM, read_topics, sendable, stored_within, with_property

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ReplayReport:
    topic: str
    to: str
    start: str | None
    end: str | None
    """The range of what was sent; unknown where an earlier run of a job with a name chose it."""
    job: str
    """What the job is known by: its name, or what follows from all that says what it sends."""
    messages: int | None
    """Those that this run has sent; unknown where it only finished what an earlier one had decided on."""
    sent_before: bool
    finished: bool
    """An earlier run of this job had died in the middle of its commit; what it had chosen is visible now."""


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
    job: str | None = None,
    again: bool = False,
    read: Mapping[str, str] | None = None,
    write: Mapping[str, str] | None = None,
    tell: Tell = lambda text: None,
) -> ReplayReport:
    """Sends messages stored from `start` up to, not including, `end`; `where` is a condition in SQL.

    `job` is a name that stands in for range, tags and condition: a repeat under the same name is the same job.
    """
    from pyspark.sql import functions as F

    start, end = whole_ms(start), whole_ms(end)
    if end <= start:
        raise BadRequest(f"the range ends ({end}) before it begins ({start})", hint="exchange the two times")
    if to == topic and to_namesrv is None:
        raise BadRequest(
            f"'{topic}' cannot be replayed to itself",
            hint="choose another topic: whoever reads this one would get its past and its present mixed",
        )
    tell_range(tell, start, end, job)
    rows = read_topics(
        spark, namesrv, [topic], start=start, end=end, read=read, **({} if tags == "*" else {"tags": tags})
    )
    rows = stored_within(rows, start, end)
    if where is not None:
        rows = rows.where(where)
    rows = rows.withColumn(
        "properties", with_property(F.col("properties"), REPLAYED_FROM, F.col("offset_msg_id"))
    )
    target = to_namesrv or namesrv
    chosen = ("job", job) if job else (epoch_ms(start), epoch_ms(end), tags, where)
    name = job_id("replay", namesrv, topic, target, to, *chosen)
    written = write_once(sendable(rows, to), target, name, again=again, write=write, tell=tell)
    known = written.is_new or not job
    return ReplayReport(
        topic,
        to,
        start.isoformat() if known else None,
        end.isoformat() if known else None,
        job or name,
        written.rows,
        written.sent_before,
        written.finished,
    )


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
    parser.add_argument("--job", metavar="NAME", help=JOB_HELP)
    parser.add_argument("--again", action="store_true", help=AGAIN_HELP)
    add_read_options(parser)
    add_write_options(parser)
    return run_main(parser, replay, argv)


if __name__ == "__main__":
    raise SystemExit(main())
