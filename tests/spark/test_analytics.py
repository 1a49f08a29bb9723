"""The analytics over known traffic: every figure can be worked out by hand, and the report is really drawn."""

from __future__ import annotations

import html
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.spark.connection import Connection
from orbitmq.spark.pipelines import analytics_report
from orbitmq.spark.pipelines.analytics import analytics
from orbitmq.spark.pipelines.analytics_place import draft_of
from orbitmq.spark.pipelines.analytics_report import write_report
from orbitmq.wire.bodies import encode
from orbitmq.wire.bodies_client import ConsumerData, HeartbeatData
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import request
from orbitmq.wire.subscription import build_subscription
from orbitmq.wire.trace import PubTrace, SubAfterTrace, SubBeforeTrace, Trace, encode_traces
from tests.spark.elsewhere import time_zone
from tests.spark.reading_back import messages
from tests.spark.topics import Out, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.server_process import ServerProcess

MINUTE = timedelta(minutes=1)


def sent(
    msg_id: str,
    at_ms: int,
    cost_ms: int,
    *,
    topic: str = "Shop",
    group: str = "producers",
    host: str | None = None,
    success: bool = True,
) -> PubTrace:
    return PubTrace(
        at_ms, "region", group, topic, msg_id, "t", "k", "host", 10, cost_ms, 0, None, success, host
    )


def handled(
    number: int,
    msg_id: str,
    at_ms: int,
    cost_ms: int,
    success: bool = True,
    retries: int = 0,
    group: str = "readers",
) -> list[Trace]:
    request = f"{group}{number}-{retries}"
    return [
        SubBeforeTrace(at_ms, "region", group, request, msg_id, retries, "k"),
        SubAfterTrace(request, msg_id, cost_ms, success, "k", 0, at_ms + cost_ms, group),
    ]


@contextmanager
def connected(addr: str, group: str, expression: str, kind: str) -> Iterator[None]:
    """A member of a group that is there and asks for something, as brokers see it."""
    beat = HeartbeatData(
        client_id=f"member of {group}",
        consumer_data_set=[
            ConsumerData(
                group_name=group,
                subscription_data_set=[build_subscription("TaggedShop", expression, kind, version_ms=1)],
            )
        ],
    )
    connection = Connection(addr, 10)
    try:
        (number,) = connection.send(request(RequestCode.HEART_BEAT, body=encode(beat)))
        assert connection.receive(number).code == 0
        yield
    finally:
        connection.close()


def kept(spark: SparkSession) -> str | None:
    return spark.conf.get("spark.sql.session.timeZone")


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
        end=start + MINUTE,
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
    assert any("readers asks for is not known: it is not connected" in remark for remark in report.remarks)
    delay = _table(tmp_path, "consumption_delay")
    assert max(float(row["max"]) for row in delay) == pytest.approx(700, abs=1)
    assert sum(int(row["messages"]) for row in delay) == 8
    latency = _table(tmp_path, "send_latency")
    assert max(float(row["max"]) for row in latency) == 14
    (producer,) = _table(tmp_path, "producers")
    assert (producer["producer_group"], producer["client"], producer["topics"]) == (
        "producers",
        "127.0.0.1",
        "Shop",
    )
    assert (int(producer["sends"]), int(producer["failed"])) == (10, 0)
    assert (float(producer["p50"]), float(producer["p99"])) == (9.0, 14.0)
    assert start < datetime.fromisoformat(producer["first"]) < datetime.fromisoformat(producer["last"])
    (host,) = _table(tmp_path, "sending_hosts")
    assert (host["topic"], host["host"], int(host["messages"])) == ("Shop", "127.0.0.1", 10)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count("data:image/png;base64,") == 9
    assert "readers asks for is not known" in page
    assert "customer0" in page and "Slowest consumers" in page
    assert (tmp_path / "plots" / "backlog.png").read_bytes().startswith(b"\x89PNG")


def test_times_are_utc_wherever_the_driver_is_and_the_session_stays_as_it_was(
    spark: SparkSession, server: ServerProcess, start: datetime, tmp_path: Path
) -> None:
    zone = kept(spark)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with time_zone("Asia/Tokyo"):
            report = analytics(
                spark,
                ["Shop"],
                str(tmp_path),
                namesrv=server.namesrv,
                start=start,
                end=start + MINUTE,
                step="1 second",
                trace_topic="Traces",
            )
            assert kept(spark) == "Asia/Tokyo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    assert datetime.fromisoformat(report.start) == start and report.start.endswith("+00:00")
    for name in ("throughput", "backlog", "consumption_delay", "send_latency"):
        times = [datetime.fromisoformat(row["time"]) for row in _table(tmp_path, name)]
        assert times
        assert all(start - timedelta(seconds=1) <= time <= start + MINUTE for time in times)
        assert {time.utcoffset() for time in times} == {timedelta(0)}
    page = (tmp_path / "report.html").read_text("utf-8")
    assert f"{start:%Y-%m-%d %H:}" in page and "time (UTC)" in page


def test_a_cluster_without_traces_is_told_so(
    spark: SparkSession, server: ServerProcess, start: datetime, tmp_path: Path
) -> None:
    report = analytics(
        spark, ["Shop"], str(tmp_path), namesrv=server.namesrv, start=start, trace_topic="NoTraces"
    )
    assert report.without_traces is not None and "NoTraces" in report.without_traces
    assert (report.rows["throughput"], report.rows["slow_consumers"]) == (1, 0)
    assert report.rows["producers"] == 0 and report.rows["sending_hosts"] == 1
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count("there is no topic NoTraces: no client reports traces") == 5


def test_a_range_in_which_nobody_reported_is_told_so(
    spark: SparkSession, server: ServerProcess, start: datetime, tmp_path: Path
) -> None:
    """The topic of the traces is there as soon as a broker is."""
    hour = timedelta(hours=1)
    report = analytics(
        spark,
        ["Shop"],
        str(tmp_path),
        namesrv=server.namesrv,
        start=start - hour,
        end=start - hour / 2,
        trace_topic="Traces",
    )
    assert report.traces == 0 and report.without_traces is not None
    assert report.without_traces in (tmp_path / "report.html").read_text("utf-8")


def test_the_range_ends_for_traces_as_for_messages(
    spark: SparkSession, server: ServerProcess, start: datetime, tmp_path: Path
) -> None:
    """All traces here were stored after the range: they are of it when what they tell happened in it."""
    end = datetime.fromtimestamp(max(m.store_ms for m in messages(server.namesrv, "Shop")) / 1000, UTC)
    end += timedelta(milliseconds=250)
    report = analytics(
        spark,
        ["Shop"],
        str(tmp_path),
        namesrv=server.namesrv,
        start=start,
        end=end,
        step="1 hour",
        trace_topic="Traces",
    )
    assert report.messages == 10
    (producer,) = _table(tmp_path, "producers")
    assert int(producer["sends"]) == 10
    (consumer,) = _table(tmp_path, "slow_consumers")
    # Began 0, 100, 200 ms after they were stored, which took some milliseconds for all of them.
    assert int(consumer["handled"]) in (3, 4)
    assert report.traces == 10 + 2 * int(consumer["handled"])
    # The first failed then, and the last of them was not done yet.
    assert int(_table(tmp_path, "backlog")[-1]["backlog"]) in (8, 9)


def test_a_backlog_is_of_the_tags_that_a_group_asks_for(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path
) -> None:
    begin = datetime.now(UTC) - timedelta(seconds=2)
    topics.create("TaggedShop", 1)
    topics.create("TaggedTraces", 1)
    tags = ["paid", "paid", "open", "refund", "open", "paid"]
    sent_out = [Out(b"x", {"UNIQ_KEY": f"{900 + n:032X}", "TAGS": tag}) for n, tag in enumerate(tags)]
    topics.fill("TaggedShop", 0, sent_out)
    stored = {message.msg_id: message.store_ms for message in messages(server.namesrv, "TaggedShop")}
    traces: list[Trace] = []
    for number in (0, 1, 3):
        msg_id = f"{900 + number:032X}"
        for group in ("by_tags", "by_sql", "away"):
            traces += handled(number, msg_id, stored[msg_id], 1, group=group)
    topics.fill("TaggedTraces", 0, [Out(encode_traces(traces))])
    with (
        connected(server.broker_addr, "by_tags", "paid || refund", "TAG"),
        connected(server.broker_addr, "by_sql", "a > 1", "SQL92"),
    ):
        report = analytics(
            spark,
            ["TaggedShop"],
            str(tmp_path),
            namesrv=server.namesrv,
            start=begin,
            end=begin + MINUTE,
            step="1 hour",
            trace_topic="TaggedTraces",
        )
    left = {row["consumer_group"]: int(row["backlog"]) for row in _table(tmp_path, "backlog")}
    assert left == {"by_tags": 1, "away": 3}
    page = (tmp_path / "report.html").read_text("utf-8")
    for text in (
        "by_tags asks for paid || refund of TaggedShop: only these are counted",
        "by_sql is left out for TaggedShop: it asks for what matches a > 1",
        "what away asks for is not known: it is not connected",
    ):
        assert any(text in remark for remark in report.remarks)
        assert html.escape(text) in page


def test_producers_by_group_and_host(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path
) -> None:
    """Hosts are those that the traces name, or else the one that reported; other topics' sends are not counted."""
    begin = datetime.now(UTC) - timedelta(seconds=2)
    at_ms = round(begin.timestamp() * 1000) + 1000
    topics.create("ProducedShop", 1)
    topics.create("ProducedTraces", 1)
    traces: list[Trace] = [
        sent("A", at_ms, 10, topic="ProducedShop", group="web", host="10.0.0.1"),
        sent("B", at_ms + 500, 30, topic="ProducedShop", group="web", host="10.0.0.1", success=False),
        sent("C", at_ms, 5, topic="ProducedShop", group="web", host="10.0.0.2"),
        sent("D", at_ms, 5, topic="ProducedShop", group="cron"),
        sent("E", at_ms, 5, topic="Another", group="web", host="10.0.0.1"),
    ]
    topics.fill("ProducedTraces", 0, [Out(encode_traces(traces))])
    topics.fill("ProducedShop", 0, [Out(b"x", {"UNIQ_KEY": f"{950:032X}"})])
    analytics(
        spark,
        ["Produced[S]hop"],
        str(tmp_path),
        namesrv=server.namesrv,
        start=begin,
        end=begin + MINUTE,
        trace_topic="ProducedTraces",
    )
    rows = _table(tmp_path, "producers")
    found = {
        (row["producer_group"], row["client"]): (row["sends"], row["failed"], row["p99"]) for row in rows
    }
    assert found == {
        ("web", "10.0.0.1"): ("2", "1", "30.0"),
        ("web", "10.0.0.2"): ("1", "0", "5.0"),
        ("cron", "127.0.0.1"): ("1", "0", "5.0"),
    }
    first = datetime.fromisoformat(rows[0]["first"])
    assert datetime.fromisoformat(rows[0]["last"]) - first == timedelta(milliseconds=500)


def test_what_is_not_drawn_is_told(tmp_path: Path) -> None:
    times = [datetime(2026, 1, 1, 12, minute, tzinfo=UTC) for minute in range(3)]
    rows = [
        {"time": time, "topic": f"topic{number}", "messages": number, "bytes": number}
        for time in times
        for number in range(12)
    ]
    keys = [{"topic": "t", "key": f"k{number}", "messages": 9} for number in range(25)]
    tables = {"throughput": rows, "hot_keys": keys}
    write_report(tmp_path, tables, "heading", step="1 minute", remarks={"hot_keys": ["a <remark>"]})
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "drawn are the 8 lines that rise highest, of 12" in page
    assert "drawn are the first 20; tables/ has 25" in page and "a &lt;remark&gt;" in page
    assert page.count("Messages stored<") == 1


def test_the_unit_says_how_long_a_step_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units: list[str] = []

    def noted(plot: analytics_report.Plot, rows: object, path: Path) -> bytes:
        units.append(plot.unit)
        return b""

    monkeypatch.setattr(analytics_report, "draw", noted)
    row = {"time": datetime(2026, 1, 1, tzinfo=UTC), "topic": "t", "messages": 1, "bytes": 1}
    for step in ("10 seconds", "1 minute"):
        write_report(tmp_path, {"throughput": [row]}, "heading", step=step, remarks={})
    assert units == ["messages per 10 seconds", "messages per minute"]


def test_a_run_that_fails_leaves_nothing(
    spark: SparkSession,
    server: ServerProcess,
    start: datetime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(analytics_report, "draw", full)
    out = tmp_path / "out"
    with pytest.raises(OSError, match="No space left"):
        analytics(spark, ["Shop"], str(out), namesrv=server.namesrv, start=start, trace_topic="NoTraces")
    assert not out.exists()


def test_a_report_replaces_the_one_before_it_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"

    def write(text: str, *, fails: bool = False) -> None:
        with draft_of(out) as draft:
            (draft / "plots").mkdir()
            (draft / "plots" / f"{text}.png").write_text(text, "utf-8")
            (draft / "report.html").write_text(text, "utf-8")
            if fails:
                raise OSError(28, "No space left on device")

    def found() -> dict[str, str]:
        return {
            str(path.relative_to(out)): path.read_text("utf-8") for path in out.rglob("*") if path.is_file()
        }

    write("one")
    (out / "mine.txt").write_text("mine", "utf-8")
    with pytest.raises(OSError, match="No space left"):
        write("two", fails=True)
    assert found() == {"mine.txt": "mine", "plots/one.png": "one", "report.html": "one"}
    write("three")
    assert found() == {"mine.txt": "mine", "plots/three.png": "three", "report.html": "three"}
    assert sorted(path.name for path in out.iterdir()) == ["mine.txt", "plots", "report.html"]


def _table(out: Path, name: str) -> list[dict[str, str]]:
    import csv

    with (out / "tables" / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
