"""The reading side of rebuild: a commit log in pieces, and what dispatch needs to know of every record in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from orbitmq.store.disk import Disk
from orbitmq.store.key_hashes import KeyHasher
from orbitmq.store.log_scan import FileBytes, ScannedRecord, Stop, read_record, resync, scan_segment
from orbitmq.store.mark import FILE_NAME, RecoveryMark
from orbitmq.store.store_files import COMMIT_LOG, StoreFiles, segment_path, unmap

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE = 20_000
NAMES = (
    "topic",
    "queue_id",
    "queue_offset",
    "position",
    "size",
    "tags_code",
    "queued",
    "store_ms",
    "hashes",
    "problem",
)

PIECE_SCHEMA = "number int, base bigint, start bigint, end bigint"


class Piece(NamedTuple):
    """Records that begin from `start` up to `end`, positions in the file that begins at log offset `base`."""

    number: int
    base: int
    start: int
    end: int


def log_pieces(store: str, piece_bytes: int) -> list[Piece]:
    files = StoreFiles(Disk(), store)
    try:
        if not files.exists(COMMIT_LOG):
            return []
        pieces: list[Piece] = []
        for base in files.bases(COMMIT_LOG):
            size = files.size(segment_path(COMMIT_LOG, base))
            for start in range(0, size, piece_bytes):
                pieces.append(Piece(len(pieces), base, start, min(start + piece_bytes, size)))
        return pieces
    finally:
        files.close()


class PieceReader:
    """For mapInArrow: rows of `Piece` in, a row per record out, and one per damaged stretch."""

    def __init__(self, store: str, delay_levels_ms: tuple[int, ...]) -> None:
        self._store = store
        self._delay_levels_ms = delay_levels_ms

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = StoreFiles(Disk(), self._store)
        deleted = RecoveryMark.load(files.disk, files.path(FILE_NAME)).deleted_topics
        rows = _Rows(self._delay_levels_ms, deleted)
        try:
            for batch in batches:
                for piece in (Piece(*row.values()) for row in batch.to_pylist()):
                    buf = files.map(segment_path(COMMIT_LOG, piece.base))
                    try:
                        for record in records_of(buf, piece):
                            rows.add(record)
                            if len(rows) >= ROWS_AT_ONCE:
                                yield rows.take()
                    finally:
                        unmap(buf)
            if len(rows):
                yield rows.take()
        finally:
            files.close()


def records_of(buf: FileBytes, piece: Piece) -> Iterator[ScannedRecord | tuple[int, str]]:
    """The records that begin in a piece, and (log offset, problem) for stretches that hold none."""
    position: int | None = piece.start
    if piece.start and read_record(buf, piece.base, piece.start) is None:
        position = resync(buf, piece.base, piece.start - 1)
    while position is not None and position < piece.end:
        scan = scan_segment(buf, piece.base, position)
        for record in scan:
            if record.offset - piece.base >= piece.end:
                return
            yield record
        if scan.stop in (Stop.BLANK, Stop.END) or scan.pos >= piece.end:
            return
        behind = resync(buf, piece.base, scan.pos)
        if scan.stop is Stop.ZEROS and behind is None:
            return
        yield piece.base + scan.pos, scan.problem or "it reads as zeros"
        position = behind


class _Rows:
    """Columns that grow until they are taken as one Arrow batch."""

    def __init__(self, delay_levels_ms: tuple[int, ...], deleted: dict[str, int]) -> None:
        self._levels = delay_levels_ms
        self._deleted = deleted
        self._hasher = KeyHasher()
        self._rows: list[tuple[Any, ...]] = []
        self._prefixes: list[bytes] = []
        self._keys: list[bytes] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, found: ScannedRecord | tuple[int, str]) -> None:
        if not isinstance(found, ScannedRecord):
            self._rows.append((None, None, None, found[0], None, None, False, None, 0, found[1]))
            return
        keys = found.keys if found.is_indexed else []
        self._prefixes += [found.topic.encode() + b"#"] * len(keys)
        self._keys += keys
        self._rows.append(
            (
                found.topic,
                found.queue_id,
                found.queue_offset,
                found.offset,
                found.size,
                found.unit_code(self._levels),
                # A deleted topic stays deleted: only what came after is dispatched.
                found.is_queued and found.offset >= self._deleted.get(found.topic, 0),
                found.store_ms,
                len(keys),
                None,
            )
        )

    def take(self) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        columns = list(zip(*self._rows, strict=True))
        counts = np.array(columns[8], dtype=np.int32)
        ends = np.concatenate((np.zeros(1, dtype=np.int32), np.cumsum(counts, dtype=np.int32)))
        hashes = (
            self._hasher.columns(self._prefixes, self._keys) if self._keys else np.empty(0, dtype=np.int64)
        )
        types = (
            pa.string(),
            pa.int32(),
            pa.int64(),
            pa.int64(),
            pa.int32(),
            pa.int64(),
            pa.bool_(),
            pa.int64(),
            None,
            pa.string(),
        )
        arrays = [
            pa.ListArray.from_arrays(pa.array(ends), pa.array(hashes, pa.int64()))
            if kind is None
            else pa.array(column, kind)
            for column, kind in zip(columns, types, strict=True)
        ]
        self._rows, self._prefixes, self._keys = [], [], []
        return pa.RecordBatch.from_arrays(arrays, names=list(NAMES))
