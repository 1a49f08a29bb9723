"""The pipelines end to end on a live broker, with what they wrote read back message by message."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.cli.main import main
from orbitmq.client.admin.groups import group_progress
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest
from orbitmq.spark.pipelines.archive import archive, read_archive
from orbitmq.spark.pipelines.dedup import dedup
from orbitmq.spark.pipelines.query import query
from orbitmq.spark.pipelines.rebuild import rebuild
from orbitmq.spark.pipelines.redrive import redrive
from orbitmq.spark.pipelines.replay import replay
from orbitmq.spark.pipelines.route import HOPS, route
from orbitmq.spark.pipelines.triage import triage
from tests.spark.reading_back import bodies, messages
from tests.spark.topics import Out, Topics, numbered
from tests.support.server_process import ServerProcess
from tests.support.stores import GOLDEN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_archive_grows_by_what_is_new_and_a_query_sees_it_and_the_live_part_as_one(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path
) -> None:
    path = str(tmp_path / "archive")
    for topic in ("ArchiveA", "ArchiveB"):
        topics.create(topic, 2)
    topics.fill("ArchiveA", 0, numbered(300))
    topics.fill("ArchiveB", 1, numbered(100, 1000))
    first = archive(spark, ["ArchiveA,ArchiveB"], path, namesrv=server.namesrv, per_batch=150)
    assert (first.messages, first.in_archive) == (400, {"ArchiveA": 300, "ArchiveB": 100})
    assert first.batches > 1
    topics.fill("ArchiveA", 1, numbered(50, 300))
    again = archive(spark, ["ArchiveA,ArchiveB"], path, namesrv=server.namesrv)
    assert (again.messages, again.in_archive) == (50, {"ArchiveA": 350, "ArchiveB": 100})
    rows = read_archive(spark, path).select("topic", "body", "keys", "day", "store_time").collect()
    kept = Counter((row["topic"], bytes(row["body"])) for row in rows)
    expected = Counter(("ArchiveA", message.body) for message in numbered(350))
    expected += Counter(("ArchiveB", message.body) for message in numbered(100, 1000))
    assert kept == expected
    assert {row["day"] for row in rows} <= {
        datetime.now(UTC).date(),
        datetime.now(UTC).date() - timedelta(days=1),
    }
    assert (tmp_path / "archive" / "topic=ArchiveA").is_dir()

    topics.fill("ArchiveA", 0, numbered(25, 350))
    sql = "SELECT topic, count(*) AS n, count(DISTINCT body) AS bodies FROM messages GROUP BY topic ORDER BY topic"
    report = query(spark, sql, ["Archive[AB]"], namesrv=server.namesrv, archive=path)
    assert report.rows == [
        {"topic": "ArchiveA", "n": 375, "bodies": 375},
        {"topic": "ArchiveB", "n": 100, "bodies": 100},
    ]


def test_replay_sends_a_range_once(spark: SparkSession, server: ServerProcess, topics: Topics) -> None:
    topics.create("ReplayIn", 2)
    topics.create("ReplayOut", 2)
    topics.fill("ReplayIn", 0, numbered(40, tag="old"))
    middle = _after_now()
    topics.fill("ReplayIn", 1, numbered(60, 40, tag="new"))
    end = _after_now()
    topics.fill("ReplayIn", 1, numbered(10, 100))
    for expected in (False, True):
        report = replay(spark, "ReplayIn", "ReplayOut", namesrv=server.namesrv, start=middle, end=end)
        assert report.sent_before is expected
    found = messages(server.namesrv, "ReplayOut")
    assert Counter(message.body for message in found) == Counter(message.body for message in numbered(60, 40))
    assert {message.tags for message in found} == {"new"}
    origins = {message.offset_msg_id for message in messages(server.namesrv, "ReplayIn")}
    assert {message.properties["ORBITMQ_REPLAYED_FROM"] for message in found} <= origins
    again = replay(
        spark,
        "ReplayIn",
        "ReplayOut",
        namesrv=server.namesrv,
        start=middle,
        end=end,
        where="keys LIKE 'k41 %'",
        again=True,
    )
    assert again.messages == 1
    with pytest.raises(BadRequest, match="replayed to itself"):
        replay(spark, "ReplayIn", "ReplayIn", namesrv=server.namesrv, start=middle, end=end)


@pytest.mark.parametrize(("keep", "expected"), [("first", b"1"), ("last", b"3")])
def test_dedup_keeps_one_message_of_each_key(
    spark: SparkSession, server: ServerProcess, topics: Topics, keep: str, expected: bytes
) -> None:
    source, target = f"DedupIn{keep}", f"DedupOut{keep}"
    topics.create(source, 3)
    topics.create(target, 2)
    for body in (b"1", b"2", b"3"):
        for queue_id, key in enumerate(("a", "b")):
            topics.fill(source, queue_id, [Out(body + b" " + key.encode(), {"KEYS": key})])
        _after_now()
    topics.fill(source, 2, [Out(b"without", {}), Out(b"without", {})])
    report = dedup(spark, source, target, namesrv=server.namesrv, keep=keep, end=_after_now())
    assert (report.messages, report.kept, report.duplicates, report.keys) == (8, 4, 4, 2)
    assert bodies(server.namesrv, target) == Counter(
        {expected + b" a": 1, expected + b" b": 1, b"without": 2}
    )


def test_routes_in_a_circle_stop_after_one_turn(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path
) -> None:
    for topic in ("RouteA", "RouteB"):
        topics.create(topic, 1)
    topics.fill("RouteA", 0, numbered(20, tag="t"))
    sql = "SELECT upper(cast(body AS string)) AS body, tags, keys, properties FROM messages WHERE body NOT LIKE '%5.%'"

    def there_and_back() -> None:
        for source, target in (("RouteA", "RouteB"), ("RouteB", "RouteA")):
            route(
                spark,
                [source],
                target,
                namesrv=server.namesrv,
                checkpoint=str(tmp_path / source),
                here="here",
                sql=sql,
            )

    there_and_back()
    there_and_back()
    found = messages(server.namesrv, "RouteB")
    assert Counter(m.body for m in found) == Counter(m.body for m in numbered(20) if b"5." not in m.body)
    assert {message.properties[HOPS] for message in found} == {"here/RouteA"}
    assert len(messages(server.namesrv, "RouteA")) == 20
    with pytest.raises(BadRequest, match="column 'properties' is missing"):
        route(
            spark,
            ["RouteA"],
            "RouteB",
            namesrv=server.namesrv,
            checkpoint=str(tmp_path / "wrong"),
            sql="SELECT body FROM messages",
        )
    with pytest.raises(BadRequest, match="a column 'topic' is made by.*"):
        route(
            spark,
            ["RouteA"],
            "RouteB",
            namesrv=server.namesrv,
            checkpoint=str(tmp_path / "wrong"),
            sql="SELECT body, properties, tags AS topic FROM messages",
        )


def test_all_that_a_route_selects_goes_to_its_target_and_its_group_is_where_it_is(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path
) -> None:
    for topic in ("RouteStar", "RouteStarOut"):
        topics.create(topic, 1)
    topics.fill("RouteStar", 0, numbered(20))
    words = ["spark", "route", "RouteStarOut", "-t", "RouteStar", "--checkpoint", str(tmp_path / "cp")]
    words += ["--sql", "SELECT * FROM messages WHERE queue_offset < 5", "--group", "route_star"]
    words += ["--read", "pageBytes=4096", "--write", "maxInFlight=8", "-n", server.namesrv, "--quiet"]
    for _ in range(2):
        assert main(words) == 0
    expected = Counter(message.body for message in numbered(5))
    assert bodies(server.namesrv, "RouteStarOut") == expected
    assert bodies(server.namesrv, "RouteStar").total() == 20
    assert asyncio.run(progress(server.namesrv, "route_star")) == {"RouteStar": 20}


async def progress(namesrv: str, group: str) -> dict[str, int | None]:
    async with Cluster(namesrv, timeout_s=5) as cluster:
        return {queue.topic: queue.consumer_offset for queue in (await group_progress(cluster, group)).queues}


def test_a_route_to_another_cluster(
    spark: SparkSession, server: ServerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("RouteAbroad", 1)
    topics.fill("RouteAbroad", 0, numbered(15, tag="t"))
    with ServerProcess(tmp_path / "abroad", flushDiskType="ASYNC_FLUSH") as abroad:
        for _ in range(2):
            report = route(
                spark,
                ["RouteAbroad"],
                "RouteAbroad",
                namesrv=server.namesrv,
                to_namesrv=abroad.namesrv,
                checkpoint=str(tmp_path / "cp"),
            )
        assert report.read == 0
        found = messages(abroad.namesrv, "RouteAbroad")
        assert Counter(m.body for m in found) == Counter(m.body for m in numbered(15))
        assert {message.properties[HOPS] for message in found} == {f"{server.namesrv}/RouteAbroad"}
        assert {message.tags for message in found} == {"t"}
    assert len(messages(server.namesrv, "RouteAbroad")) == 15


def test_triage_groups_dead_letters_and_redrive_sends_the_chosen_ones_back_once(
    spark: SparkSession, server: ServerProcess, topics: Topics
) -> None:
    topics.create("TriageTopic", 1)
    topics.create("%DLQ%triage_group", 1)
    letters = [
        Out(
            b"t%d" % n,
            {"RETRY_TOPIC": "TriageTopic", "DLQ_REASON": f"timed out after {n} ms for order {n * 7}"},
        )
        for n in range(12)
    ]
    letters += [
        Out(b"n%d" % n, {"RETRY_TOPIC": "TriageTopic", "DLQ_REASON": f"no such customer 'c{n}'"})
        for n in range(3)
    ]
    letters += [Out(b"silent", {"RETRY_TOPIC": "TriageTopic"}), Out(b"lost", {"RETRY_TOPIC": "GoneTopic"})]
    topics.fill("%DLQ%triage_group", 0, letters)
    report = triage(spark, ["triage_group"], namesrv=server.namesrv)
    assert report.dead_letters == 17
    kinds = {(row["topic"], row["kind"]): row["count"] for row in report.reasons}
    assert kinds == {
        ("TriageTopic", "timed out after # ms for order #"): 12,
        ("TriageTopic", "no such customer #"): 3,
        ("TriageTopic", "(the consumer gave no reason)"): 1,
        ("GoneTopic", "(the consumer gave no reason)"): 1,
    }
    where = "kind LIKE 'timed out%' OR origin_topic = 'GoneTopic'"
    would = redrive(spark, "triage_group", namesrv=server.namesrv, where=where, dry_run=True)
    assert (would.matching, would.would_be_sent, would.topics) == (13, 12, {"TriageTopic": 12})
    done = redrive(spark, "triage_group", namesrv=server.namesrv, where=where)
    assert (done.sent, done.sent_before, done.failed) == (12, 0, 1)
    assert "GoneTopic" in done.failures[0]["problem"]
    repeated = redrive(spark, "triage_group", namesrv=server.namesrv, where=where)
    assert (repeated.sent, repeated.sent_before) == (0, 12)
    assert bodies(server.namesrv, "TriageTopic") == Counter(b"t%d" % n for n in range(12))


@pytest.mark.parametrize("piece_bytes", [1 << 20, 100_000])
def test_queues_and_index_rebuilt_from_the_golden_log_are_those_of_java(
    spark: SparkSession, tmp_path: Path, piece_bytes: int
) -> None:
    store = tmp_path / "store"
    shutil.copytree(GOLDEN, store)
    out = tmp_path / "out"
    report = rebuild(spark, str(store), str(out), index_slots=500, index_entries=400, piece_bytes=piece_bytes)
    manifest = json.loads((GOLDEN.parent / "manifest.json").read_text("utf-8"))
    assert report.records == len(manifest["messages"])
    assert report.damage == []
    for part in ("consumequeue", "index"):
        wanted = {path.relative_to(GOLDEN): path.read_bytes() for path in files_below(GOLDEN / part)}
        made = {path.relative_to(out): path.read_bytes() for path in files_below(out / part)}
        assert sorted(made) == sorted(wanted)
        assert [str(name) for name in wanted if made[name] != wanted[name]] == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out.")] == []


def test_rebuild_tells_of_damage_and_refuses_a_directory_that_is_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(GOLDEN / "commitlog", store / "commitlog")
    log = store / "commitlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    data[5000:5010] = b"\xff" * 10
    log.write_bytes(data)
    report = rebuild(
        spark, str(store), str(tmp_path / "out"), queue_file_bytes=2000, index_slots=500, index_entries=400
    )
    assert len(report.damage) == 1
    assert (
        report.records
        == len(json.loads((GOLDEN.parent / "manifest.json").read_text("utf-8"))["messages"]) - 1
    )
    with pytest.raises(BadRequest, match="is there already"):
        rebuild(spark, str(store), str(tmp_path / "out"))


def files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def _after_now() -> datetime:
    """A moment that is later than all that was stored and earlier than all that will be."""

    async def wait() -> None:
        await asyncio.sleep(0.005)

    asyncio.run(wait())
    now = datetime.now(UTC)
    moment = now.replace(microsecond=now.microsecond // 1000 * 1000) + timedelta(milliseconds=1)
    asyncio.run(wait())
    return moment
