"""Work that is run in processes of its own: `python -m tests.spark_slow.job WHERE NAMESRV DIRECTORY`.

WHERE is a master (spark://…) or `connect`. A batch, a stream and a write; prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from orbitmq.spark.extension import is_in_columns
from orbitmq.spark.pipelines.command import input_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRIES = 3
TOO_SLOW = "waiting for the Python worker to connect back"
STREAM_LIMIT_S = 600


def connected(where: str) -> SparkSession:
    import orbitmq.spark

    if where != "connect":
        return orbitmq.spark.session(
            where, app="cluster test", **{"spark.driver.host": "127.0.0.1", "spark.ui.enabled": False}
        )
    from pyspark.sql import SparkSession

    from orbitmq.spark.java import prepare_java

    prepare_java()
    return SparkSession.builder.remote("local[2]").getOrCreate()


def main(where: str, namesrv: str, directory: str) -> None:
    spark = connected(where)
    from pyspark.sql import functions as F

    result: dict[str, object] = {}
    rows = (
        spark.read.format("orbitmq").options(namesrv=namesrv, subscribe="ClusterIn", minPartitions="4").load()
    )
    result["in_columns"] = where != "connect" and is_in_columns(rows)
    counted = rows.agg(F.count(F.lit(1)), F.count_distinct("body"), F.sum(F.length("body"))).collect()[0]
    result["batch"] = [int(value) for value in counted]
    rows.select("body", "keys").write.format("orbitmq").mode("append").options(
        namesrv=namesrv, topic="ClusterBatchOut"
    ).save()
    stream = (
        spark.readStream.format("orbitmq")
        .options(
            namesrv=namesrv, subscribe="ClusterIn", startingOffsets="earliest", maxOffsetsPerTrigger="700"
        )
        .load()
        .select("body", "keys")
    )
    for run in range(2):
        result[f"stream{run}"] = caught_up(stream, namesrv, f"{directory}/checkpoint")
    print("RESULT " + json.dumps(result), flush=True)
    spark.stop()


def caught_up(stream: DataFrame, namesrv: str, checkpoint: str) -> int:
    """Runs the stream until it has caught up; how many rows it read.

    Spark gives a stream's Python process ten seconds to start, which a busy machine may not keep. A stream that dies of
    that is started again from its checkpoint, as anybody would do.
    """
    from pyspark.errors import PySparkException

    read = 0
    for left in reversed(range(TRIES)):
        query = (
            stream.writeStream.format("orbitmq")
            .options(namesrv=namesrv, topic="ClusterStreamOut", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            ended = query.awaitTermination(STREAM_LIMIT_S)
        except PySparkException as error:
            if not left or TOO_SLOW not in str(error):
                raise
            ended = False
        read += sum(input_rows(progress) for progress in query.recentProgress)
        if ended:
            break
    if query.isActive:
        raise RuntimeError("the stream did not end in time")
    return read


if __name__ == "__main__":
    main(*sys.argv[1:])
