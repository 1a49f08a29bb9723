"""`orbitmq spark NAME`: options, reports, and errors as one line with an exit code."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.cli.main import main
from orbitmq.client.errors import BadRequest
from orbitmq.spark.pipelines import PIPELINES
from orbitmq.spark.pipelines.command import moment
from orbitmq.spark.pipelines.problems import spark_exit_code, spark_problem
from orbitmq.spark.pipelines.tables import read_options, source_cores
from tests.spark.topics import Out, Topics, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_every_pipeline_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"orbitmq spark {name}" in text and "--master" in text and "--json" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["archive", "/a", "-t", "A", "--accept-data-loss", "--retry-timeout", "5s"],
            {"path": "/a", "topics": ["A"], "fail_on_data_loss": False, "retry_timeout": "5s"},
        ),
        (["archive", "/a", "-t", "A", "-t", "B"], {"topics": ["A", "B"], "fail_on_data_loss": True}),
        (
            ["query", "SELECT 1", "-t", "A", "--format", "csv", "--max", "7"],
            {"sql": "SELECT 1", "topics": ["A"], "out_format": "csv", "max_rows": 7, "archive": None},
        ),
        (
            ["analytics", "/out", "-t", "A", "--from", "1763200800000", "--step", "1 minute"],
            {"out": "/out", "start": datetime.fromtimestamp(1763200800, UTC), "step": "1 minute"},
        ),
        (["triage"], {"groups": [], "start": None, "end": None}),
        (["redrive", "g", "--where", "x", "--dry-run"], {"group": "g", "where": "x", "dry_run": True}),
        (
            ["replay", "A", "B", "--from", "1763200800000", "--again"],
            {"topic": "A", "to": "B", "start": datetime.fromtimestamp(1763200800, UTC), "again": True},
        ),
        (["dedup", "A", "B", "--keep", "last"], {"topic": "A", "to": "B", "keep": "last", "start": None}),
        (
            ["route", "B", "-t", "A", "--checkpoint", "/c", "--start", "latest", "--to-namesrv", "y:1"],
            {"to": "B", "topics": ["A"], "checkpoint": "/c", "start": "latest", "to_namesrv": "y:1"},
        ),
        (
            [
                "replay",
                "A",
                "B",
                "--from",
                "now",
                "--job",
                "n",
                "--read",
                "cores=2",
                "--write",
                "maxInFlight=1",
            ],
            {"job": "n", "read": {"cores": "2"}, "write": {"maxInFlight": "1"}},
        ),
        (["query", "S", "-t", "A", "--accept-data-loss"], {"fail_on_data_loss": False, "read": {}}),
        (
            [
                "route",
                "B",
                "-t",
                "A",
                "--checkpoint",
                "/c",
                "--group",
                "g",
                "--read",
                "a=b=c",
                "--read",
                "d=",
            ],
            {"group": "g", "read": {"a": "b=c", "d": ""}},
        ),
        (["rebuild", "/s", "/o", "--index-slots", "5"], {"store": "/s", "out": "/o", "index_slots": 5}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_options_are_the_parameters_of_the_pipeline(
    words: list[str], expected: dict[str, object], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = words[0]
    module = importlib.import_module(f"orbitmq.spark.pipelines.{name}")
    pipeline = getattr(module, name)
    given: dict[str, object] = {}

    @functools.wraps(pipeline)
    def noted(*args: object, **options: object) -> dict[str, object]:
        given.update(inspect.signature(pipeline).bind(*args, **options).arguments)
        return {}

    monkeypatch.setattr(module, name, noted)
    assert main(["spark", *words, "-n", "x:1", "--quiet"]) == 0
    assert {key: given[key] for key in expected} == expected
    assert given["spark"] is spark
    assert given.get("namesrv", "x:1") == "x:1"


def test_a_report_as_json_and_as_text(
    spark: SparkSession,
    server: ServerProcess,
    topics: Topics,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topics.create("CommandArchive", 1)
    topics.fill("CommandArchive", 0, numbered(30))
    path = str(tmp_path / "archive")
    common = ["-n", server.namesrv]
    assert main(["spark", "archive", path, "-t", "CommandArchive", *common, "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert (report["messages"], report["in_archive"]) == (30, {"CommandArchive": 30})
    assert "30 messages" in printed.err
    sql = "SELECT topic, count(*) AS n FROM messages GROUP BY topic"
    assert main(["spark", "query", sql, "-t", "CommandArchive", "--archive", path, *common, "--quiet"]) == 0
    assert "CommandArchive  30" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "code", "problem"),
    [
        (["replay", "NoSuchTopic", "Target", "--from", "1h"], 3, "NoSuchTopic"),
        (["route", "Target", "-t", "NoSuchTopic", "--checkpoint", "{tmp}"], 3, "NoSuchTopic"),
        (["query", "SELECT 1", "-t", "A", "-n", "127.0.0.1:1", "--archive", "{tmp}"], 4, "127.0.0.1:1"),
        (["replay", "A", "B", "--from", "1h", "-n", "127.0.0.1:1"], 4, "127.0.0.1:1"),
        (["query", "SELECT 1", "-t", "TBW102", "--read", "pageByte=1"], 2, "did you mean pageBytes"),
        (["query", "SELECT 1", "-t", "TBW102", "--read", "pageBytes"], 2, "write --read NAME=VALUE"),
        (["dedup", "TBW102", "B", "--write", "maxBodyBytes=x"], 2, "maxBodyBytes"),
        (["replay", "A", "B", "--from", "yesterday"], 2, "'yesterday' is not a time"),
        (["triage", "never_seen_group"], 3, "never_seen_group"),
        (["rebuild", "no-such-store", "no-such-out"], 3, "holds no commit log"),
        (["query", "SELECT nonsense FROM messages", "-t", "TBW102"], 1, "nonsense"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    spark: SparkSession,
    server: ServerProcess,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    args: list[str],
    code: int,
    problem: str,
) -> None:
    args = [word.replace("{tmp}", str(tmp_path)) for word in args]
    at = [] if "-n" in args else ["-n", server.namesrv]
    assert main(["spark", *args, *at, "--quiet"]) == code
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("orbitmq: ")]
    assert problem in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("15m", NOW - timedelta(minutes=15)),
        ("2h ago", NOW - timedelta(hours=2)),
        ("2026-11-15T10:00+02:00", datetime(2026, 11, 15, 8, 0, tzinfo=UTC)),
        ("1763200800000", datetime.fromtimestamp(1763200800, UTC)),
    ],
)
def test_times_as_people_write_them(text: str, expected: datetime) -> None:
    assert moment(text, NOW) == expected


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(BadRequest, match="is not a time"):
        moment("soon", NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 3, in y
orbitmq.spark.errors.BadOption: option 'topic': it is missing; name one

\tat org.apache.spark.Foo.bar(Foo.scala:1)""",
            "option 'topic': it is missing; name one",
        ),
        (
            """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted
=== Streaming Query ===
Identifier: [id = 1, runId = 2]
org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/data/archive. SQLSTATE
\tat org.apache.spark.Foo.bar(Foo.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)""",
            "file:/data/archive cannot be written: No space left on device",
        ),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found.\nmore",
            "[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found.",
        ),
    ],
)
def test_of_what_spark_prints_the_line_that_matters_is_kept(text: str, expected: str) -> None:
    assert spark_problem(text) == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("orbitmq.spark.errors.BadOption: option 'x': no", 2),
        ("orbitmq.spark.errors.UnknownTopic: option 'subscribe': topic 'x'", 3),
        ("orbitmq.client.errors.NotFound: x\n\norbitmq.spark.errors.BrokerLost: y", 4),
        ("orbitmq.spark.errors.DataLost: x", 1),
        ("orbitmq.no.such.module.Error: x", 1),
        ("java.io.IOException: x", 1),
    ],
)
def test_the_class_that_spark_prints_tells_the_exit_code(text: str, code: int) -> None:
    assert spark_exit_code(f"An exception was thrown\n{text}\n\tat Foo") == code


def test_an_error_says_how_to_follow_its_advice_on_this_command_line(
    spark: SparkSession, server: ServerProcess, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AdviceIn", "AdviceOut"):
        topics.create(name, 1)
    topics.fill("AdviceIn", 0, [Out(b"x" * 200)])
    words = ["spark", "replay", "AdviceIn", "AdviceOut", "--from", "1h", "-n", server.namesrv, "--quiet"]
    assert main([*words, "--write", "maxBodyBytes=100"]) == 2
    assert "(here: --write maxBodyBytes=VALUE)" in capsys.readouterr().err
    assert main([*words, "--write", "maxBodyBytes=200", "--read", "requestTimeoutMs=9s"]) == 0


@dataclass(frozen=True)
class Partly:
    done: int

    @property
    def exit_code(self) -> int:
        return 1


def test_a_report_of_a_part_is_printed_and_exits_so(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("orbitmq.spark.pipelines.replay")

    def replay(spark: SparkSession, topic: str, to: str, **options: object) -> Partly:
        return Partly(7)

    monkeypatch.setattr(module, "replay", functools.wraps(module.replay)(replay))
    assert main(["spark", "replay", "A", "B", "--from", "1h", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"done": 7}


def test_settings_that_come_too_late_are_refused_and_others_are_set(
    spark: SparkSession, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under spark-submit Spark has its settings before it starts the pipeline."""
    words = ["spark", "query", "SELECT 1 AS one", "-t", "TBW102", "-n", server.namesrv, "--quiet"]
    assert main([*words, "--conf", "spark.executor.memory=9g"]) == 2
    assert "spark.executor.memory=9g comes too late" in capsys.readouterr().err
    assert main([*words, "--master", "spark://nowhere:7077"]) == 2
    assert "give it to spark-submit, before the file" in capsys.readouterr().err
    name = "spark.sql.files.maxPartitionBytes"
    try:
        assert main([*words, "--conf", f"{name}=1234567", "--master", "local[2]"]) == 0
        assert spark.conf.get(name) == "1234567"
    finally:
        spark.conf.unset(name)


def test_on_a_cluster_sources_plan_for_all_its_cores() -> None:
    def at(master: str) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(master=master, defaultParallelism=48))

    assert source_cores(at("spark://host:7077")) == {"cores": "48"}
    assert source_cores(at("local[*]")) == {}
    assert read_options(at("yarn"), {"namesrv": "x"}, {"Cores": "3"}) == {"namesrv": "x", "Cores": "3"}
