"""Messages that a real broker has cleaned away, and a real broker that dies in the middle of a large read."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.topics import Topics, numbered
from tests.spark_slow.local import Stream, eventually, local_session, numbers
from tests.support.commands import Commands
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator as Batches

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

LOG_FILE_BYTES = 64 << 10
BODY_BYTES = 1000
LARGE = 30_000
LARGE_BYTES = 2000
RETRY_MS = 4000
REQUEST_MS = 5000
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"

Options = dict[str, Any]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_session("gone") as session:
        yield session


class Shrinking:
    """A server with log files of some fifty messages, which go when they are asked to."""

    def __init__(self, server: ServerProcess, orbitmq: Commands) -> None:
        self.server, self._orbitmq = server, orbitmq
        self.topic = "Shrinks"
        self._orbitmq.ok("topic", "create", self.topic, "--queues", "1")

    def fill(self, count: int, start: int) -> None:
        with closing(Topics(self.server.broker_addr)) as topics:
            topics.fill(self.topic, 0, numbered(count, start, size=BODY_BYTES))

    def clean(self) -> int:
        """All files but the last one; the first offset that is left."""

        def cleaned() -> bool:
            # A file that a flush may be working on stays.
            self._orbitmq.ok("cluster", "clean", "--yes", "--json")
            return self.bounds()[1] - self.bounds()[0] < 2 * LOG_FILE_BYTES // BODY_BYTES

        eventually(cleaned, "old files are gone")
        return self.bounds()[0]

    def bounds(self) -> tuple[int, int]:
        (queue,) = self._orbitmq.ok("topic", "status", self.topic, "--json").json["queues"]
        return queue["min_offset"], queue["max_offset"]

    def lost(self, start: int, end: int) -> str:
        """How an error names messages from `start` up to, not including, `end`."""
        place = f"{end - start} message(s) of topic '{self.topic}' on broker-a queue 0 are missing: "
        return re.escape(f"{place}offsets {start} to {end - 1};") + ".*set failOnDataLoss to false"


@pytest.fixture
def shrinking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shrinking]:
    other_hour = f"{(time.localtime().tm_hour + 12) % 24:02d}"
    with ServerProcess(
        tmp_path / "server",
        mappedFileSizeCommitLog=LOG_FILE_BYTES,
        fileReservedTime=0,
        deleteWhen=other_hour,
    ) as server:
        yield Shrinking(server, Commands(capsys, server.namesrv))


def reader(spark: SparkSession, server: ServerProcess, topic: str, options: Options) -> DataFrame:
    given = {"namesrv": server.namesrv, "subscribe": topic, **options}
    return spark.read.format("orbitmq").options(**given).load()


def test_a_batch_that_begins_below_what_is_left(spark: SparkSession, shrinking: Shrinking) -> None:
    shrinking.fill(400, 0)
    first = shrinking.clean()
    assert 300 < first < 400
    begin: Options = {"startingOffsets": json.dumps({shrinking.topic: {"0": 20}})}

    def read(**options: str) -> list[int]:
        return numbers(reader(spark, shrinking.server, shrinking.topic, {**begin, **options}))

    with pytest.raises(Exception, match=f"(?s){shrinking.lost(20, first)}"):
        read()
    assert read(failOnDataLoss="false") == list(range(first, 400))
    # Who asks for the first there is asks for nothing that is gone.
    assert read(startingOffsets=json.dumps({shrinking.topic: {"0": -2}})) == list(range(first, 400))
    assert read(startingOffsets="earliest") == list(range(first, 400))


def test_a_table_that_was_planned_before_the_cleaning(spark: SparkSession, shrinking: Shrinking) -> None:
    """Rows keep the plan of a table's first action: the tasks find out what is no longer there."""
    spark.conf.set("spark.orbitmq.inColumns", "false")
    try:
        strict = reader(spark, shrinking.server, shrinking.topic, {})
        loose = reader(spark, shrinking.server, shrinking.topic, {"failOnDataLoss": "false"})
        shrinking.fill(400, 0)
        assert numbers(strict) == numbers(loose) == list(range(400))
        first = shrinking.clean()
        assert 300 < first < 400
        with pytest.raises(Exception, match=f"(?s){shrinking.lost(0, first)}"):
            numbers(strict)
        assert numbers(loose) == list(range(first, 400))
    finally:
        spark.conf.unset("spark.orbitmq.inColumns")


def test_a_stream_whose_next_messages_are_gone(
    spark: SparkSession, shrinking: Shrinking, tmp_path: Path
) -> None:
    stream = Stream(spark, shrinking.server.namesrv, shrinking.topic, tmp_path / "checkpoint")
    shrinking.fill(100, 0)
    stream.run()
    assert stream.seen == list(range(100))
    shrinking.fill(300, 100)
    first = shrinking.clean()
    assert 300 < first < 400
    with pytest.raises(Exception, match=f"(?s){shrinking.lost(100, first)}"):
        stream.run()
    assert stream.seen == list(range(100))
    stream.run(failOnDataLoss="false")
    expected = [*range(100), *range(first, 400)]
    assert stream.seen == expected
    shrinking.fill(20, 400)
    stream.run()
    assert stream.seen == [*expected, *range(400, 420)]


def test_a_micro_batch_that_was_planned_before_the_cleaning(
    spark: SparkSession, shrinking: Shrinking, tmp_path: Path
) -> None:
    stream = Stream(spark, shrinking.server.namesrv, shrinking.topic, tmp_path / "checkpoint")
    shrinking.fill(100, 0)
    stream.run()
    shrinking.fill(200, 100)
    stream.run()
    stream.forget_last_commit()
    shrinking.fill(100, 300)
    first = shrinking.clean()
    assert 300 < first < 400
    again = Stream(spark, shrinking.server.namesrv, shrinking.topic, tmp_path / "checkpoint")
    with pytest.raises(Exception, match=f"(?s){shrinking.lost(100, 300)}"):
        again.run()
    assert again.seen == []
    again.run(failOnDataLoss="false")
    assert again.seen == list(range(first, 400))


class Held:
    """Lets one batch of a read through, then waits for a file, so that most of the read is still to come."""

    def __init__(self, directory: str) -> None:
        self._begun, self._go = f"{directory}/begun", f"{directory}/go"

    def __call__(self, batches: Batches[pa.RecordBatch]) -> Batches[pa.RecordBatch]:
        from pathlib import Path
        from time import sleep

        for batch in batches:
            yield batch
            Path(self._begun).touch()
            while not Path(self._go).exists():
                sleep(0.02)


class Large:
    """A server with a topic that is much larger than what is pulled ahead, and a read of it that has begun."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark, self._directory = spark, directory
        self._rows_before = spark.conf.get(ARROW_ROWS) or "10000"
        # Otherwise Spark puts the whole topic into one batch before it shows any of it to the function that waits.
        spark.conf.set(ARROW_ROWS, "500")
        self.server = ServerProcess(directory / "server", flushDiskType="ASYNC_FLUSH")
        with closing(Topics(self.server.broker_addr)) as topics:
            topics.create("Large", 1)
            topics.fill("Large", 0, numbered(LARGE, size=LARGE_BYTES))
        self.found: list[int] = []
        self.error: BaseException | None = None
        self.took_s = 0.0
        self._released = 0.0
        self._thread: Thread | None = None

    def begin(self, **options: str) -> None:
        given = {"requestTimeoutMs": REQUEST_MS, "retryTimeoutMs": RETRY_MS, **options}
        frame = reader(self._spark, self.server, "Large", {**given, "columns": "body"})
        held = frame.mapInArrow(Held(str(self._directory)), "body binary")

        def body() -> None:
            try:
                self.found = numbers(held.selectExpr("substring(body, 1, 10) AS body"))
            except Exception as error:
                self.error = error
            self.took_s = time.monotonic() - self._released

        self._thread = Thread(target=body, name="large read")
        self._thread.start()
        eventually((self._directory / "begun").exists, "the read begins")

    def release(self) -> None:
        self._released = time.monotonic()
        (self._directory / "go").touch()

    def wait(self) -> None:
        assert self._thread is not None
        self._thread.join(120)
        assert not self._thread.is_alive(), "the read does not end"

    def close(self) -> None:
        (self._directory / "go").touch()
        if self.server.running:
            self.server.kill()
        if self._thread is not None:
            self._thread.join(60)
        self._spark.conf.set(ARROW_ROWS, self._rows_before)


@pytest.fixture
def large(spark: SparkSession, tmp_path: Path) -> Iterator[Large]:
    made = Large(spark, tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_broker_that_is_killed_in_the_middle_and_stays_away(large: Large) -> None:
    large.begin()
    large.server.kill()
    large.release()
    large.wait()
    assert large.error is not None, f"{len(large.found)} messages were read of a broker that is dead"
    place = r"topic 'Large' on broker-a queue 0 cannot be read on from offset (\d+) \(of 30000\) for (\d+) s"
    told = re.search(f"(?s){place}.*raise retryTimeoutMs", str(large.error))
    assert told, large.error
    assert 0 < int(told[1]) < LARGE
    assert RETRY_MS / 1000 - 1 <= large.took_s <= (RETRY_MS + 2 * REQUEST_MS) / 1000 + 5


@pytest.mark.parametrize("away_s", [0.0, 3.0])
def test_a_broker_that_is_killed_in_the_middle_and_comes_back_in_time(large: Large, away_s: float) -> None:
    large.begin(retryTimeoutMs="60s")
    large.server.kill()
    large.release()
    time.sleep(away_s)
    large.server.start()
    large.wait()
    assert large.error is None, large.error
    assert large.found == list(range(LARGE))


def test_nothing_is_held_up_without_a_fault(large: Large) -> None:
    """What the two tests above do, without the kill: it is not the waiting that makes them fail or pass."""
    large.begin()
    large.release()
    large.wait()
    assert large.error is None, large.error
    assert large.found == list(range(LARGE))
