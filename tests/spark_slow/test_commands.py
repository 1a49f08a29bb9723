"""`orbitmq spark NAME` as a user types it: a process, its exit code, what it prints where, and what it did."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.archived import archived_bodies
from tests.spark.reading_back import bodies, messages
from tests.spark.topics import Out, Topics, numbered
from tests.spark_slow.standalone import ROOT, SHORT_LIVED_JAVA
from tests.support.server_process import ServerProcess
from tests.support.stores import GOLDEN

pytestmark = pytest.mark.slow

LIMIT_S = 300
QUICK_S = 30.0


class Spark:
    """`orbitmq spark …` with a Python and an environment in which nothing is prepared for Spark."""

    def __init__(self, server: ServerProcess, topics: Topics) -> None:
        self.server, self.topics = server, topics
        self.namesrv = server.namesrv

    def command(self, *words: str) -> list[str]:
        name, *others = words
        common = ["--master", "local[2]", *(["-n", self.namesrv] if name != "rebuild" else [])]
        return [sys.executable, "-m", "orbitmq", "spark", name, *others, *common]

    def environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        return {**env, "PYTHONPATH": str(ROOT / "src"), "JAVA_TOOL_OPTIONS": SHORT_LIVED_JAVA}

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def report(self, *words: str) -> dict[str, Any]:
        """The report of a run that ended well. It is all that is on standard output."""
        return self.report_and_progress(*words)[0]

    def report_and_progress(self, *words: str) -> tuple[dict[str, Any], str]:
        done = self(*words, "--json")
        assert done.returncode == 0, done.stderr[-4000:]
        report = json.loads(done.stdout)
        assert isinstance(report, dict)
        return report, done.stderr


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with ServerProcess(tmp_path_factory.mktemp("commands"), flushDiskType="ASYNC_FLUSH") as server:
        topics = Topics(server.broker_addr)
        yield Spark(server, topics)
        topics.close()


def sent(count: int, start: int = 0) -> Counter[bytes]:
    return Counter(message.body for message in numbered(count, start))


def after_now_ms() -> int:
    """A moment that is later than all that was stored and not later than all that will be."""
    time.sleep(0.01)
    now = time.time_ns() // 1_000_000
    time.sleep(0.01)
    return now


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_archive_and_query(spark: Spark, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    for topic in ("CommandA", "CommandB"):
        spark.topics.create(topic, 2)
    spark.topics.fill("CommandA", 0, numbered(300))
    spark.topics.fill("CommandB", 1, numbered(100, 1000))
    archive = ("archive", str(path), "-t", "CommandA,CommandB")
    report, progress = spark.report_and_progress(*archive, "--per-batch", "150")
    assert (report["messages"], report["in_archive"]) == (400, {"CommandA": 300, "CommandB": 100})
    assert report["batches"] == 3
    told = [line for line in progress.splitlines() if line.startswith("batch ")]
    assert told == [f"batch {n}: {count} messages" for n, count in enumerate((150, 150, 100))]
    assert archived_bodies(path) == sent(300) + sent(100, 1000)

    # Ctrl-C of one that goes on for ever; it goes to all processes of a terminal's foreground.
    spark.topics.fill("CommandA", 1, numbered(50, 300))
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        running = subprocess.Popen(
            spark.command(*archive, "--every", "1 second", "--json"),
            env=spark.environment(),
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    try:
        eventually(
            lambda: archived_bodies(path).total() >= 450 or running.poll() is not None, "nothing is archived"
        )
        assert running.poll() is None, (tmp_path / "err").read_text()
        spark.topics.fill("CommandA", 1, numbered(50, 350))
        eventually(lambda: archived_bodies(path).total() >= 500, "it does not go on")
        asked = time.monotonic()
        os.killpg(running.pid, signal.SIGINT)
        code = running.wait(LIMIT_S)
        took_s = time.monotonic() - asked
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait(30)
    said = (tmp_path / "err").read_text()
    assert code in (0, 130), said
    assert took_s < QUICK_S
    assert "the next run goes on from here" in said
    interrupted = json.loads((tmp_path / "out").read_text())
    assert interrupted["in_archive"] == {"CommandA": 400, "CommandB": 100}

    spark.topics.fill("CommandB", 0, numbered(25, 1100))
    report, progress = spark.report_and_progress(*archive, "--quiet")
    assert (report["messages"], report["in_archive"]) == (25, {"CommandA": 400, "CommandB": 125})
    assert "batch " not in progress
    assert archived_bodies(path) == sent(400) + sent(125, 1000)

    spark.topics.fill("CommandB", 0, numbered(5, 1125))
    sql = "SELECT topic, count(*) AS n, count(DISTINCT body) AS bodies FROM messages GROUP BY topic ORDER BY topic"
    report = spark.report("query", sql, "-t", "Command[AB]", "--archive", str(path))
    assert report["rows"] == [
        {"topic": "CommandA", "n": 400, "bodies": 400},
        {"topic": "CommandB", "n": 130, "bodies": 130},
    ]
    assert report["more"] is False
    assert interrupted["messages"] == 100, "batches that ended shortly before Ctrl-C count, too"


def test_triage_and_redrive(spark: Spark) -> None:
    spark.topics.create("CommandOrigin", 1)
    spark.topics.create("%DLQ%command_group", 1)
    reasons = [f"timed out after {n} ms" for n in range(8)] + [f"no customer 'c{n}'" for n in range(3)]
    letters = [
        Out(b"letter %d" % n, {"RETRY_TOPIC": "CommandOrigin", "DLQ_REASON": reason})
        for n, reason in enumerate(reasons)
    ]
    spark.topics.fill("%DLQ%command_group", 0, letters)
    report = spark.report("triage", "command_group")
    assert (report["groups"], report["dead_letters"]) == (["command_group"], 11)
    assert [(row["topic"], row["kind"], row["count"]) for row in report["reasons"]] == [
        ("CommandOrigin", "timed out after # ms", 8),
        ("CommandOrigin", "no customer #", 3),
    ]
    redrive = ("redrive", "command_group", "--where", "kind LIKE 'timed out%'")
    would = spark.report(*redrive, "--dry-run")
    assert (would["matching"], would["topics"]) == (8, {"CommandOrigin": 8})
    assert not bodies(spark.namesrv, "CommandOrigin")
    done = spark.report(*redrive)
    assert (done["matching"], done["sent"], done["sent_before"], done["failed"]) == (8, 8, 0, 0)
    # All of them: those that are there already are not sent again, and one can go nowhere.
    lost = Out(b"lost", {"RETRY_TOPIC": "CommandGone", "DLQ_REASON": "timed out"})
    spark.topics.fill("%DLQ%command_group", 0, [lost])
    ended = spark("redrive", "command_group", "--json")
    again = json.loads(ended.stdout)
    assert (again["matching"], again["sent"], again["sent_before"], again["failed"]) == (12, 3, 8, 1)
    assert ended.returncode == 1
    assert "CommandGone" in again["failures"][0]["problem"]
    assert bodies(spark.namesrv, "CommandOrigin") == Counter(b"letter %d" % n for n in range(11))


def test_replay_and_dedup(spark: Spark) -> None:
    for topic in ("CommandPast", "CommandReplayed", "CommandOnce"):
        spark.topics.create(topic, 2)
    spark.topics.fill("CommandPast", 0, numbered(40))
    start = after_now_ms()
    spark.topics.fill("CommandPast", 0, numbered(60, 40, tag="again"))
    spark.topics.fill("CommandPast", 1, numbered(20, 40, tag="again"))
    end = after_now_ms()
    spark.topics.fill("CommandPast", 1, numbered(10, 200))
    replay = ("replay", "CommandPast", "CommandReplayed", "--from", str(start), "--until", str(end))
    report = spark.report(*replay)
    assert (report["messages"], report["sent_before"]) == (80, False)
    repeated = spark.report(*replay)
    assert (repeated["messages"], repeated["sent_before"]) == (0, True)
    found = messages(spark.namesrv, "CommandReplayed")
    assert Counter(message.body for message in found) == sent(60, 40) + sent(20, 40)
    assert {(message.tags, message.properties["n"]) for message in found} == {
        ("again", str(n)) for n in range(40, 100)
    }
    dedup = ("dedup", "CommandPast", "CommandOnce", "--key", "properties['n']", "--until", str(end))
    report = spark.report(*dedup)
    assert (report["messages"], report["kept"], report["duplicates"]) == (120, 100, 20)
    assert bodies(spark.namesrv, "CommandOnce") == sent(100)


def test_route(spark: Spark, tmp_path: Path) -> None:
    for topic in ("CommandFrom", "CommandTo"):
        spark.topics.create(topic, 2)
    body = "upper(concat('x', cast(body AS string))) AS body"
    sql = f"SELECT {body}, keys, properties FROM messages WHERE keys <> 'k7 all'"
    route = ("route", "CommandTo", "-t", "CommandFrom", "--checkpoint", str(tmp_path / "cp"), "--sql", sql)
    spark.topics.fill("CommandFrom", 0, numbered(50))
    report, progress = spark.report_and_progress(*route)
    assert (report["read"], report["batches"]) == (50, 1)
    assert "batch 0: 50 messages" in progress
    spark.topics.fill("CommandFrom", 1, numbered(30, 50))
    assert spark.report(*route)["read"] == 30
    found = messages(spark.namesrv, "CommandTo")
    expected = {b"X" + message.body: message.properties["KEYS"] for message in numbered(80)}
    del expected[b"X" + numbered(1, 7)[0].body]
    assert {message.body: message.keys for message in found} == expected
    assert len(found) == 79


def test_analytics(spark: Spark, tmp_path: Path) -> None:
    spark.topics.create("CommandFigures", 2)
    spark.topics.fill("CommandFigures", 0, numbered(30, tag="paid"))
    spark.topics.fill("CommandFigures", 1, numbered(20, 30, tag="open"))
    out = tmp_path / "out"
    report = spark.report("analytics", str(out), "-t", "CommandFigures", "--from", "1h")
    assert report["messages"] == 50
    assert (out / "report.html").read_text("utf-8").count("data:image/png;base64,") >= 1
    with (out / "tables" / "tag_mix.csv").open(encoding="utf-8") as file:
        tags = {row["tag"]: int(row["messages"]) for row in csv.DictReader(file)}
    assert tags == {"paid": 30, "open": 20}
    assert list((out / "plots").glob("*.png"))


def test_rebuild(spark: Spark, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    shutil.copytree(GOLDEN, store)
    report = spark.report("rebuild", str(store), str(out), "--index-slots", "500", "--index-entries", "400")
    manifest = json.loads((GOLDEN.parent / "manifest.json").read_text("utf-8"))
    assert (report["records"], report["damage"]) == (len(manifest["messages"]), [])
    for part in ("consumequeue", "index"):
        assert files_below(out / part) == files_below(GOLDEN / part)


def files_below(directory: Path) -> dict[Path, bytes]:
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
