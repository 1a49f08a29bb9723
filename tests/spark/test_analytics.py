"""The analytics over known traffic: every figure can be worked out by hand, and the report is really drawn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.spark.pipelines.analytics import analytics
from orbitmq.wire.trace import PubTrace, SubAfterTrace, SubBeforeTrace, Trace, encode_traces
from tests.spark.reading_back import messages
from tests.spark.topics import Out, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess


def sent(msg_id: str, at_ms: int, cost_ms: int) -> PubTrace:
    return PubTrace(
        at_ms, "region", "producers", "Shop", msg_id, "t", "k", "host", 10, cost_ms, 0, None, True, None
    )


def handled(
    number: int, msg_id: str, at_ms: int, cost_ms: int, success: bool = True, retries: int = 0
) -> list[Trace]:
    request = f"r{number}-{retries}"
    return [
        SubBeforeTrace(at_ms, "region", "readers", request, msg_id, retries, "k"),
        SubAfterTrace(request, msg_id, cost_ms, success, "k", 0, at_ms + cost_ms, "readers"),
    ]


@pytest.fixture(scope="module")
def start(server: ServerProcess, topics: Topics) -> datetime:
    """Ten messages; eight of them handled, the first only by its second try."""
    begin = datetime.now(UTC) - timedelta(seconds=2)
    topics.create("Shop", 2)
    topics.create("Traces", 1)
    for number in range(10):
        properties = {
            "UNIQ_KEY": f"{number:032X}",
            "KEYS": f"order{number} customer{number % 2}",
            "TAGS": "paid" if number < 7 else "open",
        }
        topics.fill("Shop", number % 2, [Out(b"%010d" % number, properties)])
    stored = {message.msg_id: message.store_ms for message in messages(server.namesrv, "Shop")}
    traces: list[Trace] = []
    for number, (msg_id, store_ms) in enumerate(sorted(stored.items())):
        traces.append(sent(msg_id, store_ms, 5 + number))
        if number < 8:
            traces += handled(number, msg_id, store_ms + 100 * number, 20 * (number + 1), number > 0)
    first = f"{0:032X}"
    traces += handled(0, first, stored[first] + 900, 40, retries=1)
    topics.fill("Traces", 0, [Out(encode_traces(traces[at : at + 4])) for at in range(0, len(traces), 4)])
    topics.fill("Traces", 0, [Out(b"Pub\x01not a number\x01x\x02")])
    return begin


def test_figures_and_report(
    spark: SparkSession, server: ServerProcess, start: datetime, tmp_path: Path
) -> None:
    report = analytics(
        spark,
        ["Shop"],
        str(tmp_path),
        namesrv=server.namesrv,
        start=start,
        step="1 hour",
        trace_topic="Traces",
    )
    assert (report.messages, report.traces) == (10, 10 + 16 + 2)
    throughput = _table(tmp_path, "throughput")
    assert sum(int(row["messages"]) for row in throughput) == 10
    assert sum(int(row["bytes"]) for row in throughput) == 100
    keys = {row["key"]: int(row["messages"]) for row in _table(tmp_path, "hot_keys")}
    assert keys["customer0"] == keys["customer1"] == 5 and keys["order3"] == 1
    tags = {row["tag"]: int(row["messages"]) for row in _table(tmp_path, "tag_mix")}
    assert tags == {"paid": 7, "open": 3}
    (consumer,) = _table(tmp_path, "slow_consumers")
    assert (consumer["consumer_group"], consumer["client"]) == ("readers", "127.0.0.1")
    assert (int(consumer["handled"]), int(consumer["failed"]), int(consumer["retried"])) == (9, 1, 1)
    assert (float(consumer["max"]), float(consumer["p50"])) == (160.0, 80.0)
    assert int(_table(tmp_path, "backlog")[-1]["backlog"]) == 2
    delay = _table(tmp_path, "consumption_delay")
    assert max(float(row["max"]) for row in delay) == pytest.approx(700, abs=1)
    assert sum(int(row["messages"]) for row in delay) == 8
    latency = _table(tmp_path, "send_latency")
    assert max(float(row["max"]) for row in latency) == 14
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count("data:image/png;base64,") == 7
    assert "customer0" in page and "Slowest consumers" in page
    assert (tmp_path / "plots" / "backlog.png").read_bytes().startswith(b"\x89PNG")


def test_a_cluster_without_traces_is_told_so(
    spark: SparkSession, server: ServerProcess, start: datetime, tmp_path: Path
) -> None:
    report = analytics(
        spark, ["Shop"], str(tmp_path), namesrv=server.namesrv, start=start, trace_topic="NoTraces"
    )
    assert report.without_traces is not None and "NoTraces" in report.without_traces
    assert (report.rows["throughput"], report.rows["slow_consumers"]) == (1, 0)


def _table(out: Path, name: str) -> list[dict[str, str]]:
    import csv

    with (out / "tables" / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
