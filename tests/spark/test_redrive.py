"""What `orbitmq spark redrive` and `triage` print and how they end."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from orbitmq.cli.main import main
from orbitmq.spark.pipelines.triage import triage
from tests.spark.elsewhere import time_zone
from tests.spark.reading_back import messages
from tests.spark.topics import Out, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def group(server: ServerProcess, topics: Topics) -> str:
    """Three dead letters that can be sent back, and one whose topic is gone."""
    topics.create("RedriveTopic", 1)
    topics.create("%DLQ%redrive_group", 1)
    letters = [
        Out(b"r%d" % number, {"RETRY_TOPIC": "RedriveTopic", "DLQ_REASON": "sound"}) for number in range(3)
    ]
    letters.append(Out(b"lost", {"RETRY_TOPIC": "RedriveGone", "DLQ_REASON": "lost"}))
    topics.fill("%DLQ%redrive_group", 0, letters)
    return "redrive_group"


def test_a_dry_run_says_what_would_be_sent_and_failures_are_an_exit_code(
    spark: SparkSession, server: ServerProcess, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["spark", "redrive", group, "-n", server.namesrv, "--quiet"]
    assert main([*command, "--dry-run", "--json"]) == 1
    plan = json.loads(capsys.readouterr().out)
    assert (plan["matching"], plan["would_be_sent"], plan["would_fail"]) == (4, 3, 1)
    assert "sent" not in plan and plan["dry_run"] is True
    assert "RedriveGone" in plan["failures"][0]["problem"]
    assert main([*command, "--dry-run", "--where", "kind = 'sound'"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed if line.startswith("would")] == [
        ["would", "be", "sent", "3"],
        ["would", "fail", "0"],
    ]
    assert messages(server.namesrv, "RedriveTopic") == []
    assert main([*command, "--json"]) == 1
    done = json.loads(capsys.readouterr().out)
    assert (done["sent"], done["failed"], done["dry_run"]) == (3, 1, False)
    assert len(messages(server.namesrv, "RedriveTopic")) == 3
    assert main([*command, "--json", "--where", "kind = 'sound'", "--read", "pageBytes=4096"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["sent"], again["sent_before"]) == (0, 3)


def test_triage_gives_times_in_utc(spark: SparkSession, server: ServerProcess, group: str) -> None:
    with time_zone("Asia/Tokyo"):
        report = triage(spark, [group], namesrv=server.namesrv, read={"pageBytes": "4096"})
    assert report.dead_letters == 4
    for row in report.reasons:
        assert row["first"].utcoffset() == timedelta(0)
        assert datetime.now(UTC) - timedelta(minutes=10) < row["first"] <= row["last"] <= datetime.now(UTC)
