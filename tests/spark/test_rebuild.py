"""rebuild against a store that our own broker made of everything it knows, and its tasks when Spark repeats them."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from orbitmq.cli.main import main
from orbitmq.client.errors import BadRequest
from orbitmq.spark.pipelines.rebuild import rebuild
from orbitmq.spark.pipelines.rebuild_delays import seen_levels_ms
from orbitmq.spark.pipelines.rebuild_write import ATTEMPTS, IndexWriter, QueueWriter
from tests.broker.transaction.producer import COMMIT, ROLLBACK, Producer
from tests.spark.reading_back import messages
from tests.spark.topics import Out, Topics, numbered
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELAYS = "2s 90s 1d"
LIMIT_S = 30.0
QUEUE_FILE_BYTES, SLOTS, ENTRIES = 2000, 200, 300


def fill(server: ServerProcess) -> None:
    topics = Topics(server.broker_addr)
    try:
        topics.create("Plain", 3)
        for queue_id in range(3):
            topics.fill("Plain", queue_id, numbered(150, 1000 * queue_id, tag="paid"))
        topics.send("Plain", 1, Out(b"alone", {"UNIQ_KEY": "ALONE", "KEYS": "a b  c", "TAGS": "x"}))
        topics.send("Plain", 1, Out(b"without any property"))
        for level in ("1", "2", "3", "9"):
            topics.send(
                "Plain", 0, Out(b"late " + level.encode(), {"DELAY": level, "KEYS": "late", "TAGS": "x"})
            )
        due_ms = str(round(time.time() * 1000) + 3_600_000)
        topics.send("Plain", 0, Out(b"at its time", {"TIMER_DELIVER_MS": due_ms, "KEYS": "timed"}))
        topics.create("Gone", 1)
        topics.fill("Gone", 0, numbered(20, 7000))
        topics.delete("Gone")
        topics.create("Again", 1)
        topics.fill("Again", 0, numbered(20, 8000))
        topics.delete("Again")
        topics.create("Again", 1)
        topics.fill("Again", 0, numbered(5, 9000, tag="new"))
        topics.create("Bought", 1)
    finally:
        topics.close()

    async def transactions() -> None:
        async with Producer(server.broker_addr) as producer:
            for number, decision in enumerate((COMMIT, ROLLBACK, COMMIT)):
                msg_id = f"{number:032X}"
                await producer.end(await producer.prepare("Bought", msg_id), decision, msg_id)
            ids = [f"{number:032X}" for number in range(100, 130)]
            for decision in (COMMIT, ROLLBACK):
                await producer.end(await producer.prepare_batch("Bought", ids), decision, ids[0])
            await producer.prepare("Bought", f"{999:032X}")

    asyncio.run(transactions())
    end = time.monotonic() + LIMIT_S
    while not any(m.body == b"late 1" for m in messages(server.namesrv, "Plain")):
        assert time.monotonic() < end, "the first delay has passed"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rebuilt")
    with ServerProcess(
        directory,
        flushDiskType="ASYNC_FLUSH",
        mappedFileSizeCommitLog=1 << 16,
        messageDelayLevel=DELAYS,
        mappedFileSizeConsumeQueue=QUEUE_FILE_BYTES,
        maxHashSlotNum=SLOTS,
        maxIndexNum=ENTRIES,
    ) as server:
        fill(server)
    return server.data


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for part in ("consumequeue", "index")
        for path in (root / part).rglob("*")
        if path.is_file()
    }


def test_a_store_of_our_own_broker_byte_for_byte(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = rebuild(
        spark,
        str(store),
        str(out),
        index_slots=SLOTS,
        index_entries=ENTRIES,
        piece_bytes=20_000,
    )
    assert (report.damage, report.exit_code) == ([], 0)
    made, wanted = files(out), files(store)
    assert sorted(made) == sorted(wanted)
    assert [name for name in wanted if made[name] != wanted[name]] == []
    topics = {name.split("/")[1] for name in wanted if name.startswith("consumequeue/")}
    assert {"Plain", "Again", "Bought", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"} <= topics
    assert "Gone" not in topics
    assert sum(name.startswith("index/") for name in wanted) > 1
    assert sorted(path.name for path in out.iterdir()) == ["consumequeue", "index"]


def test_delays_are_seen_in_queues_that_are_there_and_told_where_there_are_none(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    wanted = files(store)
    assert seen_levels_ms(str(store))[:3] == (2_000, 90_000, 86_400_000)
    bare = tmp_path / "bare"
    shutil.copytree(store, bare)
    shutil.rmtree(bare / "consumequeue")

    def different(out: str, delay_levels: str | None) -> set[str]:
        rebuild(
            spark,
            str(bare),
            str(tmp_path / out),
            queue_file_bytes=QUEUE_FILE_BYTES,
            index_slots=SLOTS,
            index_entries=ENTRIES,
            delay_levels=delay_levels,
        )
        made = files(tmp_path / out)
        return {name.split("/")[1] for name in wanted if made[name] != wanted[name]}

    assert different("told", DELAYS) == set()
    assert different("usual", None) == {"SCHEDULE_TOPIC_XXXX"}


def test_the_command(
    spark: SparkSession, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage is told by the exit code of `orbitmq store verify`."""
    copy = tmp_path / "store"
    (copy / "commitlog").mkdir(parents=True)
    for path in (store / "commitlog").iterdir():
        (copy / "commitlog" / path.name).write_bytes(path.read_bytes())
    log = min((copy / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[9000:9400] = b"\xff" * 400
    log.write_bytes(data)
    words = ["--index-slots", str(SLOTS), "--index-entries", str(ENTRIES), "--quiet"]
    assert main(["spark", "rebuild", str(copy), str(tmp_path / "out"), *words, "--json"]) == 5
    assert '"damage": [{"offset": ' in capsys.readouterr().out
    assert main(["spark", "rebuild", str(copy), str(tmp_path / "new"), *words, "--delay-levels", "soon"]) == 2
    assert "'soon' is no list of delays" in capsys.readouterr().err


def test_delays_are_checked_before_anything_is_read(spark: SparkSession, tmp_path: Path) -> None:
    for text in ("", "10", "5x 1s"):
        with pytest.raises(BadRequest, match="is no list of delays"):
            rebuild(spark, str(tmp_path), str(tmp_path / "out"), delay_levels=text)


def units(*rows: tuple[str, int, int, int, int, int]) -> pa.RecordBatch:
    names = ["topic", "queue_id", "queue_offset", "position", "size", "tags_code"]
    kinds = [pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.int64()]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=names)


def keys(*rows: tuple[int, int, list[int]]) -> pa.RecordBatch:
    kinds = [pa.int64(), pa.int64(), pa.list_(pa.int64())]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=["position", "store_ms", "hashes"])


INDEXED = [keys(*((n * 100, 1_700_000_000_000 + n, [n, 7]) for n in range(at, at + 3))) for at in (0, 3)]
QUEUED = [
    units(*(("A", 0, n, n * 100, 50, n) for n in range(30))),
    units(*(("B", 1, n + 5, n * 100 + 50, 40, n) for n in range(3))),
]


@pytest.mark.parametrize(
    ("writer", "batches"),
    [("index", INDEXED), ("queues", QUEUED)],
    ids=["index", "queues"],
)
def test_a_task_that_is_run_again_begins_from_nothing(
    tmp_path: Path, writer: str, batches: list[pa.RecordBatch]
) -> None:
    def new(name: str) -> IndexWriter | QueueWriter:
        (tmp_path / name / ATTEMPTS).mkdir(parents=True)
        out = str(tmp_path / name)
        return IndexWriter(out, 10, 9, []) if writer == "index" else QueueWriter(out, 400)

    def torn() -> Iterator[pa.RecordBatch]:
        yield batches[0]
        raise ConnectionError("the executor is lost")

    once = new("once")
    (counts,) = list(once(iter(batches)))
    repeated = new("repeated")
    with pytest.raises(ConnectionError):
        list(repeated(torn()))
    for _ in range(2):
        assert list(repeated(iter(batches))) == [counts]
    assert files(tmp_path / "repeated") == files(tmp_path / "once") != {}
    assert list((tmp_path / "repeated" / ATTEMPTS).iterdir()) == []
