"""A Spark session in the test's own process, and streams whose batches a test can look at."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark_slow.standalone import ROOT, SHORT_LIVED_JAVA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LIMIT_S = 120.0


@contextmanager
def local_session(app: str, master: str = "local[2]") -> Iterator[SparkSession]:
    """One that is there already is used, and left as it is."""
    from pyspark.sql import SparkSession

    import orbitmq.spark

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    # Workers are processes of their own: they find the sources through the path, installed or not.
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), str(ROOT), *([inherited] if inherited else [])]
    )
    made = orbitmq.spark.session(master, app=app, **{"spark.driver.extraJavaOptions": SHORT_LIVED_JAVA})
    try:
        yield made
    finally:
        made.stop()
        if inherited is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = inherited


class Stream:
    """Collects the numbers of all messages, in the order of batches, over all runs from one checkpoint."""

    def __init__(self, spark: SparkSession, namesrv: str, topic: str, checkpoint: Path) -> None:
        self._spark, self._namesrv, self._topic, self._checkpoint = spark, namesrv, topic, checkpoint
        self.batches: list[list[int]] = []

    @property
    def seen(self) -> list[int]:
        return sorted(number for batch in self.batches for number in batch)

    def _take(self, batch: DataFrame, _: int) -> None:
        found = numbers(batch)
        if found:
            self.batches.append(found)

    def start(self, every: str | None = None, **options: str) -> StreamingQuery:
        """With `every` until it is stopped, otherwise until it has caught up."""
        given = {"namesrv": self._namesrv, "subscribe": self._topic, "startingOffsets": "earliest", **options}
        writer = (
            self._spark.readStream.format("orbitmq")
            .options(**given)
            .load()
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._checkpoint))
        )
        writer = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
        return writer.start()

    def run(self, **options: str) -> None:
        query = self.start(**options)
        try:
            assert query.awaitTermination(int(LIMIT_S)), "the stream did not end in time"
        finally:
            query.stop()

    def forget_last_commit(self) -> None:
        """As after a crash: the checkpoint says from where to where the last batch goes, and not that it was done."""
        last = max((self._checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body[:10]) for row in frame.select("body").collect())


def eventually(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.05)
