"""Tasks that die at their first attempt, under a master that tries them again: `python -m … NAMESRV DIRECTORY`.

Spark tries tasks again on clusters; `local[2,4]` does on one machine. Prints one line of JSON: what was read, and how
often each kind of death happened.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MASTER: Final = "local[2,4]"
RAISES, EXITS, KILLS = "raises", "exits", "kills"
DEATHS: Final = (RAISES, EXITS, KILLS)
STREAM_LIMIT_S: Final = 300
# For what was handed on to be sent, and for a worker that was killed to be missed.
PAUSE_S: Final = 0.5
# More than the buffers between Spark's processes hold, so that tasks die while others are at work for them.
ROWS: Final = 1200
BODY_BYTES: Final = 2000
PER_BATCH: Final = 4000


class DiesOnce:
    """Hands rows on, and dies at the first attempt when so many of those of its task went through.

    `kills` ends the other Python processes of this Spark, so the one that reads topics or sends to them, too.
    """

    def __init__(self, death: str, at_row: int, directory: str) -> None:
        self._death, self._at_row, self._directory = death, at_row, directory

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        first = context.attemptNumber() == 0
        seen = 0
        for batch in batches:
            if first and seen + batch.num_rows > self._at_row:
                yield batch.slice(0, self._at_row - seen)
                time.sleep(PAUSE_S)
                self._die(f"{context.stageId()}-{context.partitionId()}")
            yield batch
            seen += batch.num_rows

    def _die(self, task: str) -> None:
        killed = workers_beside_me() if self._death == KILLS else []
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        Path(self._directory, f"{self._death}-{task}").write_text(" ".join(map(str, killed)), "utf-8")
        if self._death == EXITS:
            os._exit(3)
        time.sleep(PAUSE_S)
        raise RuntimeError("this task dies at its first attempt")


def workers_beside_me() -> list[int]:
    """The other workers that this process's own parent, Spark's daemon, has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended just now
        if parent == os.getppid() and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def main(namesrv: str, directory: str) -> None:
    import orbitmq.spark

    spark = orbitmq.spark.session(
        MASTER, app="tasks tried again", **{"spark.sql.execution.arrow.maxRecordsPerBatch": 100}
    )
    result: dict[str, object] = {}
    for death in DEATHS:
        folder = Path(directory, death)
        folder.mkdir()
        result[death] = {
            "read": read_topic(spark, namesrv, death, str(folder), in_columns=True),
            "read_rows": read_topic(spark, namesrv, death, str(folder), in_columns=False),
        }
        write_topics(spark, namesrv, death, str(folder))
        copy_topic(spark, namesrv, death, str(folder))
    print("RESULT " + json.dumps(result), flush=True)
    spark.stop()


def read_topic(
    spark: SparkSession, namesrv: str, death: str, directory: str, *, in_columns: bool
) -> list[int]:
    """The numbers of all messages that a query whose tasks die once has found."""
    spark.conf.set("spark.orbitmq.inColumns", str(in_columns).lower())
    rows = spark.read.format("orbitmq").options(namesrv=namesrv, subscribe="RetryIn", minPartitions="4")
    died = rows.load().select("body").mapInArrow(DiesOnce(death, 800, directory), "body binary")
    spark.conf.unset("spark.orbitmq.inColumns")
    return sorted(int(row.body[:10]) for row in died.collect())


def write_topics(spark: SparkSession, namesrv: str, death: str, directory: str) -> None:
    """The same table to three topics: plainly, once, and once under a name and a number."""
    rows = spark.range(0, ROWS, 1, 2).selectExpr(f"rpad(cast(id AS string), {BODY_BYTES}, '.') AS body")
    died = rows.mapInArrow(DiesOnce(death, 350, directory), "body string")
    for topic, options in {
        "RetryPlain": {"delivery": "at-least-once"},
        "RetryBatch": {},
        "RetryNamed": {"txnAppId": f"retry_{death}", "txnVersion": "1"},
    }.items():
        writer = died.write.format("orbitmq").mode("append").options(namesrv=namesrv, **options)
        writer.option("topic", f"{topic}-{death}").save()


def copy_topic(spark: SparkSession, namesrv: str, death: str, directory: str) -> None:
    rows = (
        spark.readStream.format("orbitmq")
        .options(namesrv=namesrv, subscribe="RetryIn", startingOffsets="earliest", minPartitions="2")
        .option("maxOffsetsPerTrigger", PER_BATCH)
        .load()
    )
    died: DataFrame = rows.select("body").mapInArrow(DiesOnce(death, 800, directory), "body binary")
    query = (
        died.writeStream.format("orbitmq")
        .options(namesrv=namesrv, topic=f"RetryStream-{death}", checkpointLocation=f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(STREAM_LIMIT_S):
        query.stop()
        raise RuntimeError("the stream did not end in time")


if __name__ == "__main__":
    main(*sys.argv[1:])
