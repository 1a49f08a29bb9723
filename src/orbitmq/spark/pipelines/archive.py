"""archive: topics to Parquet, partitioned by topic and day, before the brokers clean them away.

A stream that stops when it has caught up. Its checkpoint makes it go on where it was, and the log of written files
beside the data (`_spark_metadata`) makes each message appear once, also after a crash in the middle of a batch: what
a batch that was not finished left behind is not in that log. The two belong together; `archive_log` sees to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orbitmq.spark.pipelines.archive_log import ArchiveLog
from orbitmq.spark.pipelines.command import (
    Tell,
    add_read_options,
    add_topics,
    new_parser,
    run_main,
    run_stream,
    said_by,
)
from orbitmq.spark.pipelines.tables import read_options, subscription
from orbitmq.spark.schema import COLUMNS, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PER_BATCH: Final = 1_000_000
# Said to Spark instead of found out by it: to its eyes a topic called 007 is the number 7, and nothing has no columns.
SCHEMA: Final = f"{ddl(COLUMNS)}, day date"


@dataclass(frozen=True)
class ArchiveReport:
    path: str
    messages: int
    batches: int
    in_archive: dict[str, int]
    """Messages of each topic, of this run and of all before."""


def archive(
    spark: SparkSession,
    topics: Iterable[str],
    path: str,
    *,
    namesrv: str,
    every: str | None = None,
    per_batch: int = PER_BATCH,
    checkpoint: str | None = None,
    tags: str = "*",
    group: str | None = None,
    fail_on_data_loss: bool = True,
    retry_timeout: str = "30s",
    compression: str = "zstd",
    read: Mapping[str, str] | None = None,
    tell: Tell = lambda text: None,
) -> ArchiveReport:
    """Archives what is new since the last run, or with `every` ("1 minute") goes on until it is interrupted.

    The checkpoint lies in the archive unless another place is given; it belongs to this one set of topics, and the
    archive to it: with another one Spark would leave messages out, so that is refused. A broker may be away for
    `retry_timeout` before the run fails; what its batch has read by then stays invisible.
    """
    from pyspark.sql import functions as F

    topics = list(topics)
    log = ArchiveLog(spark, path, checkpoint)
    log.check()
    own = {
        "namesrv": namesrv,
        **subscription(topics),
        **({} if tags == "*" else {"tags": tags}),
        **({"group": group} if group else {}),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(per_batch),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "retryTimeoutMs": retry_timeout,
    }
    stream = spark.readStream.format("orbitmq").options(**read_options(spark, own, read)).load()
    # In UTC, so that a message belongs to the same day wherever the job runs.
    day = F.date_format(F.to_utc_timestamp("store_time", F.current_timezone()), "yyyy-MM-dd")
    writer = (
        stream.withColumn("day", day)
        .writeStream.format("parquet")
        .partitionBy("topic", "day")
        .option("path", path)
        .option("compression", compression)
        .option("checkpointLocation", log.checkpoint)
    )
    messages, batches = run_stream(writer, every, tell, lambda query: log.note(str(query.id)))
    return ArchiveReport(path, messages, batches, counted(spark, path))


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """The archive as a table; `day` is a date."""
    return spark.read.schema(SCHEMA).parquet(path)


def counted(spark: SparkSession, path: str) -> dict[str, int]:
    """How many messages of each topic the archive holds."""
    rows = read_archive(spark, path).groupBy("topic").count().collect()
    return {str(row["topic"]): int(row["count"]) for row in sorted(rows)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("archive", "Topics to Parquet files by topic and day, each message once.")
    parser.add_argument(
        "path", metavar="PATH", help="directory of the archive, or any place Spark can write to"
    )
    add_topics(parser)
    parser.add_argument(
        "--every", metavar="INTERVAL", help='go on for ever, in steps of this long ("1 minute")'
    )
    parser.add_argument("--per-batch", type=int, default=PER_BATCH, help="messages per step, at most")
    parser.add_argument("--checkpoint", help="where the progress is kept; in the archive unless given")
    parser.add_argument("--tags", default="*", help="only these tags, 'A || B'")
    parser.add_argument("--group", help="report progress to the brokers under this consumer group")
    parser.add_argument(
        "--accept-data-loss",
        dest="fail_on_data_loss",
        action="store_false",
        help="go on when messages were cleaned before they were archived",
    )
    parser.add_argument(
        "--retry-timeout", default="30s", metavar="TIME", help="how long a broker may be away (30s)"
    )
    add_read_options(parser)
    said_by(parser, failOnDataLoss="--accept-data-loss", retryTimeoutMs="--retry-timeout 5m")
    return run_main(parser, archive, argv, stages=False)


if __name__ == "__main__":
    raise SystemExit(main())
