"""`replay` and `dedup` send a job once: what counts as the same, and what a run that died leaves to the next one."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.cli.main import main
from orbitmq.client.cluster import Cluster
from orbitmq.spark.pipelines.dedup import dedup
from orbitmq.spark.pipelines.once import job_id, whole_ms
from orbitmq.spark.sink_end import Ender
from orbitmq.spark.sink_handles import Handles
from orbitmq.spark.sink_markers import Markers
from orbitmq.spark.sink_options import SinkOptions, producer_group
from orbitmq.spark.sink_send import TaskSender
from tests.spark.reading_back import bodies, open_halves
from tests.spark.test_sink_protocol import plain_row
from tests.spark.topics import Out, Topics, numbered
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Runs:
    """A command, and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], namesrv: str) -> None:
        self._capsys, self._namesrv = capsys, namesrv
        self.told = ""

    def __call__(self, *words: str) -> dict[str, Any]:
        code = main(["spark", *words, "-n", self._namesrv, "--json"])
        printed = self._capsys.readouterr()
        self.told = printed.err
        assert code == 0, printed.err
        report: dict[str, Any] = json.loads(printed.out)
        return report


@pytest.fixture
def run(spark: SparkSession, server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Runs:
    return Runs(capsys, server.namesrv)


def killed_in_its_commit(namesrv: str, app_id: str, topic: str, *rows: bytes) -> None:
    """What a run leaves that died after its decision, with the first message visible."""

    async def body() -> None:
        options = SinkOptions(namesrv, max_in_flight=1)  # each row a message of its own
        group = producer_group(app_id)
        async with asyncio.timeout(30), Cluster(namesrv, timeout_s=5) as cluster:
            sender = TaskSender(cluster, options, group, 0)
            await sender.send(iter([plain_row(topic, row) for row in rows]))
            handles = Handles.unpacked(sender.handles.packed())
            await Markers(cluster, app_id).decide(0, group, handles, ordered=False)
            (broker,) = handles.of_broker
            ender = Ender(cluster, group, retry_timeout_s=5)
            await ender.commit(broker, list(handles.pairs(broker))[:1], perhaps_before=False)

    asyncio.run(body())


def test_relative_times_are_another_job_each_time_and_the_run_says_how_to_repeat_it(
    run: Runs, server: ServerProcess, topics: Topics
) -> None:
    for name in ("OnceIn", "OnceOut"):
        topics.create(name, 1)
    topics.fill("OnceIn", 0, numbered(8))
    first = run("replay", "OnceIn", "OnceOut", "--from", "2h")
    assert (first["messages"], first["sent_before"], first["finished"]) == (8, False, False)
    exact = re.search(r"the same command with (--from \d+ --until \d+)", run.told)
    assert exact, run.told
    repeated = run("replay", "OnceIn", "OnceOut", *exact[1].split())
    assert (repeated["messages"], repeated["sent_before"]) == (0, True)
    assert repeated["job"] == first["job"] and (repeated["start"], repeated["end"]) == (
        first["start"],
        first["end"],
    )
    assert len(bodies(server.namesrv, "OnceOut")) == 8 == bodies(server.namesrv, "OnceOut").total()
    other = run("replay", "OnceIn", "OnceOut", "--from", "2h")
    assert other["job"] != first["job"] and other["messages"] == 8


def test_a_name_is_the_job_whatever_the_times(run: Runs, server: ServerProcess, topics: Topics) -> None:
    for name in ("NamedIn", "NamedOut"):
        topics.create(name, 1)
    topics.fill("NamedIn", 0, numbered(8))
    words = ("replay", "NamedIn", "NamedOut", "--from", "2h", "--job", "of monday")
    assert run(*words)["messages"] == 8
    assert "the same command with --job 'of monday'" in run.told
    again = run(*words)
    assert (again["messages"], again["sent_before"], again["job"], again["start"]) == (
        0,
        True,
        "of monday",
        None,
    )
    assert run(*words[:-1], "of tuesday")["messages"] == 8
    assert run(*words, "--again")["messages"] == 8
    assert bodies(server.namesrv, "NamedOut").total() == 24


def test_the_repeat_of_a_run_that_died_in_its_commit_finishes_what_that_one_had_decided(
    run: Runs, server: ServerProcess, topics: Topics
) -> None:
    """Whatever is in the range by now."""
    for name in ("DiedIn", "DiedOut"):
        topics.create(name, 1)
    topics.fill("DiedIn", 0, numbered(8))
    at = server.namesrv
    app_id = job_id("replay", at, "DiedIn", at, "DiedOut", "job", "nightly")
    killed_in_its_commit(at, app_id, "DiedOut", b"first", b"second", b"third")
    assert bodies(at, "DiedOut") == Counter([b"first"])
    words = ("replay", "DiedIn", "DiedOut", "--from", "2h", "--job", "nightly")
    report = run(*words)
    assert (report["messages"], report["sent_before"], report["finished"]) == (None, False, True)
    assert "nothing is sent anew" in run.told
    expected = Counter([b"first", b"second", b"third"])
    assert bodies(at, "DiedOut") == expected
    assert run(*words)["sent_before"] is True
    assert bodies(at, "DiedOut") == expected
    assert open_halves(at, producer_group(app_id)) == 0


def test_dedup_is_a_job_too(spark: SparkSession, run: Runs, server: ServerProcess, topics: Topics) -> None:
    for name in ("DedupJobIn", "DedupJobOut"):
        topics.create(name, 1)
    topics.fill("DedupJobIn", 0, [Out(b"%d" % n, {"KEYS": f"k{n % 3}"}) for n in range(9)])
    words = ("dedup", "DedupJobIn", "DedupJobOut")
    first = run(*words)
    assert (first["messages"], first["kept"], first["keys"]) == (9, 3, 3)
    exact = re.search(r"the same command with --until (\d+)", run.told)
    assert exact, run.told
    repeated = run(*words, "--until", exact[1])
    assert (repeated["messages"], repeated["kept"], repeated["sent_before"]) == (None, None, True)
    at = server.namesrv
    killed_in_its_commit(at, job_id("dedup", at, *words[1:], "job", "n"), "DedupJobOut", b"x", b"y")
    finished = dedup(spark, *words[1:], namesrv=at, job="n")
    assert (finished.kept, finished.finished, finished.sent_before) == (None, True, False)
    assert bodies(at, "DedupJobOut") == Counter([b"0", b"1", b"2", b"x", b"y"])


def test_a_range_is_exact_in_whole_milliseconds() -> None:
    moment = datetime(2026, 11, 15, 12, 0, 0, 1_001, UTC)
    assert whole_ms(moment) == datetime(2026, 11, 15, 12, 0, 0, 2_000, UTC)
    assert whole_ms(moment.replace(microsecond=2_000)) == moment.replace(microsecond=2_000)
    assert whole_ms(moment + timedelta(days=-30_000)).microsecond == 2_000


@pytest.mark.parametrize(
    "words",
    [["--read", "startingOffsets=latest"], ["--read", "Tags=a"], ["--write", "delivery=at-least-once"]],
)
def test_options_that_would_make_it_another_job_are_refused(
    spark: SparkSession, server: ServerProcess, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["spark", "replay", "TBW102", "OnceNever", "--from", "2h", *words, "-n", server.namesrv]) == 2
    assert f"{words[0]} {words[1].partition('=')[0]}: this pipeline sees to that" in capsys.readouterr().err
