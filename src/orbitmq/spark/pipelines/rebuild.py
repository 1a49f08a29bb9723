"""rebuild: consume queues and key index made anew from a commit log, byte for byte as a broker's dispatch makes them.

Tasks read pieces of the log side by side; a piece that begins inside a file looks for its first record. Then each
queue is written by one task, and the index, whose chains follow the order of the log, by one. Everything goes to a
directory beside the target first, which gets its name when all of it is there.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.errors import BadRequest, NotFound
from orbitmq.spark.pipelines.command import new_parser, run_main
from orbitmq.spark.pipelines.rebuild_delays import said_levels_ms, seen_levels_ms
from orbitmq.spark.pipelines.rebuild_log import PIECE_SCHEMA, PieceReader, log_pieces
from orbitmq.spark.pipelines.rebuild_write import ATTEMPTS, IndexWriter, QueueWriter
from orbitmq.store.disk import Disk
from orbitmq.store.store_files import CONSUME_QUEUE, INDEX, INDEX_NAME_DIGITS, SEGMENT_NAME_DIGITS, StoreFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_BYTES: Final = 128 << 20
DEFAULT_QUEUE_FILE_BYTES: Final = 300_000 * 20
DEFAULT_SLOTS: Final = 5_000_000
DEFAULT_ENTRIES: Final = 20_000_000
EXIT_DAMAGED: Final = 5

_RECORDS: Final = (
    "topic string, queue_id int, queue_offset bigint, position bigint, size int, tags_code bigint, queued boolean, "
    "store_ms bigint, hashes array<bigint>, problem string"
)


@dataclass(frozen=True)
class RebuildReport:
    store: str
    out: str
    records: int
    queues: int
    units: int
    index_files: int
    index_entries: int
    damage: list[dict[str, Any]]

    @property
    def exit_code(self) -> int:
        """As `orbitmq store verify` ends."""
        return EXIT_DAMAGED if self.damage else 0


def rebuild(
    spark: SparkSession,
    store: str,
    out: str,
    *,
    queue_file_bytes: int | None = None,
    index_slots: int = DEFAULT_SLOTS,
    index_entries: int = DEFAULT_ENTRIES,
    delay_levels: str | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> RebuildReport:
    """Writes `out/consumequeue` and `out/index` from `store/commitlog`. Both directories must be seen by all workers.

    `delay_levels` is the broker's `messageDelayLevel`: the queues of delayed messages hold when each is due, which
    the log does not. It is seen in these queues where the store still has them, and otherwise taken to be the default.
    The size of queue files is taken from the store where it still has some. A file of the index is named by the time
    it was made, which the log does not know: names are taken from the store too, or from the first record in a file.
    """
    from pyspark.sql import functions as F

    # Workers may have another working directory.
    store, out = str(Path(store).absolute()), str(Path(out).absolute())
    if os.path.lexists(out):
        raise BadRequest(f"{out} is there already", hint="name a directory that does not exist yet")
    levels_ms = seen_levels_ms(store) if delay_levels is None else said_levels_ms(delay_levels)
    pieces = log_pieces(store, piece_bytes)
    if not pieces:
        raise NotFound(f"{store} holds no commit log", hint="give the storePathRootDir of a broker")
    draft = f"{out.rstrip('/')}.{uuid.uuid4().hex[:8]}"
    table = spark.createDataFrame([tuple(piece) for piece in pieces], PIECE_SCHEMA)
    records = (
        table.repartition(len(pieces), "number").mapInArrow(PieceReader(store, levels_ms), _RECORDS).persist()
    )
    try:
        os.makedirs(os.path.join(draft, ATTEMPTS))
        damage = [
            {"offset": row["position"], "problem": row["problem"]}
            for row in records.where("problem IS NOT NULL").orderBy("position").limit(1000).collect()
        ]
        sound = records.where("problem IS NULL")
        size = queue_file_bytes or _queue_file_bytes(store)
        units = (
            sound.where("queued")
            .select("topic", "queue_id", "queue_offset", "position", "size", "tags_code")
            .repartition("topic", "queue_id")
            .sortWithinPartitions("topic", "queue_id", "queue_offset", "position")
            .mapInArrow(QueueWriter(draft, size), "queues int, units bigint")
            .agg(F.sum("queues"), F.sum("units"))
            .collect()[0]
        )
        entries = (
            sound.where(F.size("hashes") > 0)
            .select("position", "store_ms", "hashes")
            .repartition(1)
            .sortWithinPartitions("position")
            .mapInArrow(
                IndexWriter(draft, index_slots, index_entries, _index_names(store)),
                "files int, entries bigint",
            )
            .agg(F.sum("files"), F.sum("entries"))
            .collect()[0]
        )
        count = sound.count()
        shutil.rmtree(os.path.join(draft, ATTEMPTS))
        os.rename(draft, out)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    finally:
        records.unpersist()
    return RebuildReport(
        store,
        out,
        count,
        int(units[0] or 0),
        int(units[1] or 0),
        int(entries[0] or 0),
        int(entries[1] or 0),
        damage,
    )


def _queue_file_bytes(store: str) -> int:
    files = StoreFiles(Disk(), store)
    try:
        for topic, queue_id in _directories(files):
            directory = f"{CONSUME_QUEUE}/{topic}/{queue_id}"
            for name in files.names(directory, SEGMENT_NAME_DIGITS):
                return files.size(f"{directory}/{name}")
    finally:
        files.close()
    return DEFAULT_QUEUE_FILE_BYTES


def _directories(files: StoreFiles) -> Iterator[tuple[str, int]]:
    return files.queue_directories() if files.exists(CONSUME_QUEUE) else iter(())


def _index_names(store: str) -> list[str]:
    files = StoreFiles(Disk(), store)
    try:
        return files.names(INDEX, INDEX_NAME_DIGITS) if files.exists(INDEX) else []
    finally:
        files.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("rebuild", "Make consume queues and key index anew from a commit log.")
    parser.add_argument("store", metavar="DIR", help="the storePathRootDir of a broker, stopped or a copy")
    parser.add_argument("out", metavar="OUT", help="a new directory for consumequeue and index")
    parser.add_argument(
        "--queue-file-bytes", type=int, help="mappedFileSizeConsumeQueue, if it cannot be seen"
    )
    parser.add_argument("--index-slots", type=int, default=DEFAULT_SLOTS, help="maxHashSlotNum")
    parser.add_argument("--index-entries", type=int, default=DEFAULT_ENTRIES, help="maxIndexNum")
    parser.add_argument(
        "--delay-levels",
        metavar="DELAYS",
        help="messageDelayLevel, if it was set and cannot be seen: '1s 5s 10s'",
    )
    return run_main(parser, rebuild, argv)


if __name__ == "__main__":
    raise SystemExit(main())
