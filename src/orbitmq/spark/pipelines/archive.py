"""archive: topics to Parquet, partitioned by topic and day, before the brokers clean them away.

A stream that stops when it has caught up. Its checkpoint makes it go on where it was, and the log of written files
beside the data (`_spark_metadata`) makes each message appear once, also after a crash in the middle of a batch: what
a batch that was not finished left behind is not in that log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orbitmq.spark.pipelines.command import Tell, add_topics, new_parser, run_main, run_stream
from orbitmq.spark.pipelines.tables import subscription

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT: Final = "_checkpoint"
PER_BATCH: Final = 1_000_000


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
    tell: Tell = lambda text: None,
) -> ArchiveReport:
    """Archives what is new since the last run, or with `every` ("1 minute") goes on until it is interrupted.

    The checkpoint lies in the archive unless another place is given; it belongs to this one set of topics. A broker may
    be away for `retry_timeout` before the run fails; what its batch has read by then stays invisible.
    """
    from pyspark.sql import functions as F

    options = {"tags": tags, **({"group": group} if group else {})}
    stream = (
        spark.readStream.format("orbitmq")
        .options(namesrv=namesrv, **subscription(topics), **options)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .option("failOnDataLoss", fail_on_data_loss)
        .option("retryTimeoutMs", retry_timeout)
        .load()
    )
    # In UTC, so that a message belongs to the same day wherever the job runs.
    day = F.date_format(F.to_utc_timestamp("store_time", F.current_timezone()), "yyyy-MM-dd")
    writer = (
        stream.withColumn("day", day)
        .writeStream.format("parquet")
        .partitionBy("topic", "day")
        .option("path", path)
        .option("compression", compression)
        .option("checkpointLocation", checkpoint or f"{path.rstrip('/')}/{CHECKPOINT}")
    )
    messages, batches = run_stream(writer, every, tell)
    return ArchiveReport(path, messages, batches, counted(spark, path))


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """The archive as a table; `day` is a date."""
    return spark.read.parquet(path)


def counted(spark: SparkSession, path: str) -> dict[str, int]:
    """How many messages of each topic the archive holds."""
    from pyspark.errors import AnalysisException

    try:
        rows = read_archive(spark, path).groupBy("topic").count().collect()
    except AnalysisException:
        return {}  # there was no message yet, so there is no file
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
    return run_main(parser, archive, argv, stages=False)


if __name__ == "__main__":
    raise SystemExit(main())
