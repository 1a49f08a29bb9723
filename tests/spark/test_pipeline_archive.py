"""The archive and its checkpoint belong together: another one is refused, because Spark would leave messages out."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.cli.main import main
from orbitmq.client.errors import BadRequest
from orbitmq.spark.pipelines import archive_log
from orbitmq.spark.pipelines.archive import ArchiveReport, archive, counted, read_archive
from orbitmq.spark.pipelines.archive_log import ArchiveLog
from orbitmq.spark.pipelines.small_files import ConnectFiles
from tests.spark.archived import archived_bodies
from tests.spark.topics import Topics, numbered
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "archive"


class Archiver:
    """One topic, and archives of it."""

    def __init__(self, spark: SparkSession, server: ServerProcess, topics: Topics, topic: str) -> None:
        self._spark, self._namesrv, self._topics, self._topic = spark, server.namesrv, topics, topic
        self.sent = 0
        topics.create(topic, 1)

    def send(self, count: int) -> None:
        self._topics.fill(self._topic, 0, numbered(count, self.sent))
        self.sent += count

    def run(self, place: Path | str, **more: str | int) -> ArchiveReport:
        options = {name: str(value) if name == "checkpoint" else value for name, value in more.items()}
        return archive(self._spark, [self._topic], str(place), namesrv=self._namesrv, **options)  # type: ignore[arg-type]

    @property
    def all(self) -> Counter[bytes]:
        return Counter(message.body for message in numbered(self.sent))


def test_another_or_a_lost_checkpoint_is_refused_and_the_right_one_goes_on(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path, place: Path
) -> None:
    archiver = Archiver(spark, server, topics, "Checkpointed")
    archiver.send(30)
    archiver.run(place)
    archiver.send(10)
    with pytest.raises(BadRequest, match="holds no progress.*leave messages out") as refused:
        archiver.run(place, checkpoint=str(tmp_path / "other"))
    assert str(place / "_checkpoint") in refused.value.hint and "another path" in refused.value.hint
    assert not (tmp_path / "other").exists(), "what was refused leaves nothing behind"
    # Equally far, and further: only the note tells them apart.
    elsewhere = tmp_path / "elsewhere"
    for _ in range(2):
        archiver.run(elsewhere, checkpoint=str(tmp_path / "far"), per_batch=7)
        with pytest.raises(BadRequest, match="it was made with another one"):
            archiver.run(place, checkpoint=str(tmp_path / "far"))
    (place / "_checkpoint").rename(tmp_path / "kept")
    with pytest.raises(BadRequest, match="holds no progress"):
        archiver.run(place)
    report = archiver.run(f"file:{place}", checkpoint=f"file:{tmp_path / 'kept'}")
    assert (report.messages, report.in_archive) == (10, {"Checkpointed": 40})
    assert archived_bodies(place) == archiver.all


def test_a_checkpoint_without_its_archive_is_refused(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path, place: Path
) -> None:
    archiver = Archiver(spark, server, topics, "ArchiveGone")
    archiver.send(30)
    archiver.run(place, checkpoint=tmp_path / "cp", per_batch=10)
    shutil.rmtree(place)
    archiver.send(5)
    with pytest.raises(BadRequest, match="has finished step 2, which the archive does not have"):
        archiver.run(place, checkpoint=tmp_path / "cp")
    archiver.run(place)
    assert archived_bodies(place) == archiver.all


@pytest.mark.parametrize("lost", ["commit", "commit and step"])
def test_a_run_that_was_killed_goes_on_wherever_it_was(
    spark: SparkSession, server: ServerProcess, topics: Topics, place: Path, lost: str
) -> None:
    """Killed behind the entry in the list of files, and before it."""
    archiver = Archiver(spark, server, topics, f"ArchiveKilled{len(lost)}")
    archiver.send(30)
    archiver.run(place, per_batch=15)
    for path in (place / "_checkpoint" / "commits").glob("*1*"):
        path.unlink()
    if "step" in lost:
        for path in (place / "_spark_metadata").glob("*1*"):
            path.unlink()
    archiver.send(5)
    archiver.run(place)
    assert archived_bodies(place) == archiver.all
    assert counted(spark, str(place)) == {f"ArchiveKilled{len(lost)}": 35}


def test_an_archive_older_than_the_notes_goes_on(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path, place: Path
) -> None:
    archiver = Archiver(spark, server, topics, "ArchiveOld")
    archiver.send(20)
    archiver.run(place)
    shutil.rmtree(place / "_orbitmq")
    with pytest.raises(BadRequest, match="holds no progress"):
        archiver.run(place, checkpoint=tmp_path / "new")
    archiver.send(5)
    archiver.run(place)
    assert archived_bodies(place) == archiver.all
    note = json.loads((place / "_orbitmq" / "checkpoint" / "note").read_text("utf-8"))
    assert note["checkpoint"] == str(place / "_checkpoint")


def test_over_spark_connect_the_note_and_the_files_tell(
    spark: SparkSession,
    server: ServerProcess,
    topics: Topics,
    tmp_path: Path,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There the list of finished files is out of sight; what stands in for it works in any session."""
    monkeypatch.setattr(archive_log, "small_files", ConnectFiles)
    archiver = Archiver(spark, server, topics, "ArchiveConnect")
    archiver.run(place, checkpoint=tmp_path / "cp")
    with pytest.raises(BadRequest, match="holds no progress"):
        archiver.run(place)
    archiver.send(20)
    archiver.run(place, checkpoint=tmp_path / "cp")
    archiver.run(tmp_path / "elsewhere")
    with pytest.raises(BadRequest, match="it was made with another one"):
        archiver.run(place, checkpoint=tmp_path / "elsewhere" / "_checkpoint")
    shutil.rmtree(place / "_orbitmq")
    with pytest.raises(BadRequest, match="holds no progress"):
        archiver.run(place)
    archiver.send(5)
    archiver.run(place, checkpoint=tmp_path / "cp")
    assert archived_bodies(place) == archiver.all
    places = ArchiveLog(spark, str(place)).places()
    assert places is not None and not places.exact and list(places.of_queue.values()) == [25]


def test_topics_named_like_numbers_and_dates_stay_what_they_are(
    spark: SparkSession,
    server: ServerProcess,
    topics: Topics,
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["007", "123", "2024-01-01"]
    for name in names:
        topics.create(name, 1)
        topics.fill(name, 0, numbered(10))
    common = ["-t", ",".join(names), "-n", server.namesrv, "--json", "--quiet"]
    assert main(["spark", "archive", str(place), *common]) == 0
    expected = dict.fromkeys(names, 10)
    assert json.loads(capsys.readouterr().out)["in_archive"] == expected
    assert read_archive(spark, str(place)).schema["day"].dataType.simpleString() == "date"
    topics.fill("007", 0, numbered(5, 10))
    sql = "SELECT topic, count(*) AS n, count(DISTINCT body) AS bodies FROM messages GROUP BY topic"
    assert main(["spark", "query", sql, "--archive", str(place), *common]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["topic"]: (row["n"], row["bodies"]) for row in rows} == {
        "007": (15, 15),
        "123": (10, 10),
        "2024-01-01": (10, 10),
    }


def test_the_archive_tells_how_far_it_is(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path, place: Path
) -> None:
    """With a filter too, of which what is in the files says less."""
    archiver = Archiver(spark, server, topics, "ArchivePlaces")
    archiver.send(20)
    archiver.run(place, tags="none", checkpoint=tmp_path / "cp")
    places = ArchiveLog(spark, str(place)).places()
    assert places is not None and places.exact
    assert {(queue.topic, queue.queue_id): end for queue, end in places.of_queue.items()} == {
        ("ArchivePlaces", 0): 20
    }
