"""Messages of a store directory as Arrow batches: units give the places, the mapped log gives the records.

A unit that does not lead to its own sound record is damage: reported, and left out unless it should be an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from orbitmq.spark.columns import decode_page, decode_parts
from orbitmq.spark.errors import DataLost, SourceError
from orbitmq.spark.placed_bodies import BodyForm, PlainPlaces, with_whole_bodies
from orbitmq.spark.plain_bodies import PlainBodies, UnitRun
from orbitmq.spark.plain_properties import PlainProperties
from orbitmq.spark.reading import joined_batches
from orbitmq.spark.records import Heads
from orbitmq.spark.spans import as_bytes
from orbitmq.spark.store_queues import (
    FILLER_SIZE,
    UNIT,
    UNIT_DTYPE,
    LateUnit,
    StoreQueue,
    open_files,
    queue_directory,
    unit_runs,
)
from orbitmq.store.log_scan import FileBytes
from orbitmq.store.store_files import COMMIT_LOG, StoreFiles, segment_path
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.message import (
    FIXED_BYTES,
    MAGIC_AT,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    RecordKind,
    check_record,
)
from orbitmq.wire.topics import LMQ_PREFIX, SCHEDULE_TOPIC

if TYPE_CHECKING:
    import numpy.typing as npt

log = logging.getLogger("orbitmq.spark")

# Looked at together; their bodies are then handed on in smaller batches.
CHUNK_BYTES: Final = 32 << 20
CHUNK_ROWS: Final = 16_384
PACKED_ROWS: Final = 1024
MOST_MAPPED: Final = 64
# Codes up to here are addresses of ext units, which keep the tag's hash elsewhere.
MAX_EXT_ADDRESS: Final = -0x80000001


Plain = PlainBodies | PlainPlaces | PlainProperties
"""Ways to take plain messages from the log; the others go by columns."""


class StoreSlice(NamedTuple):
    """Offsets `start` up to before `end` of one queue. `late` holds the units that its files do not have."""

    topic: str
    queue_id: int
    start: int
    end: int
    late: tuple[LateUnit, ...] = ()


@dataclass(frozen=True)
class StoreSettings:
    """How to read a store. Records from `check_from` on in the log are checked by their checksums."""

    path: str
    log_file_bytes: int
    queue_file_bytes: int
    columns: tuple[str, ...]
    broker: str | None = None
    tags: frozenset[str] = frozenset()
    tag_codes: frozenset[int] | None = None
    check_from: int | None = None
    fail_on_data_loss: bool = False
    body_form: BodyForm = BodyForm.BYTES


def cut(queue: StoreQueue, start: int, end: int) -> StoreSlice:
    late = tuple(unit for unit in queue.late if start <= unit.number < end)
    return StoreSlice(queue.topic, queue.queue_id, start, end, late)


def read_store(settings: StoreSettings, slices: Iterable[StoreSlice]) -> Iterator[pa.RecordBatch]:
    files = open_files(settings.path)
    try:
        reader = _Reader(settings, files)
        yield from joined_batches(batch for piece in slices for batch in reader.batches(piece))
    finally:
        files.close()


class _Reader:
    def __init__(self, settings: StoreSettings, files: StoreFiles) -> None:
        self._settings = settings
        self._files = files
        self._mapped: dict[int, FileBytes] = {}

    def batches(self, piece: StoreSlice) -> Iterator[pa.RecordBatch]:
        settings = self._settings
        plain = _plain_kind(settings)(settings.columns, piece.topic, settings.broker)
        quick = plain.able and settings.tag_codes is None and not piece.topic.startswith(LMQ_PREFIX)
        quick &= settings.body_form is not BodyForm.WHOLE
        for first, units in self._units(piece):
            if quick:
                yield from self._quick(plain, piece, first, units)
            else:
                yield from self._by_columns(piece, first, units)

    def _quick(
        self, plain: Plain, piece: StoreSlice, first: int, units: npt.NDArray[np.void]
    ) -> Iterator[pa.RecordBatch]:
        """Plain messages by the accelerator; from the first other one on, some in the way that knows all."""
        file_bytes, checked = self._settings.log_file_bytes, self._settings.check_from
        row, stretch = 0, PACKED_ROWS
        while row < len(units):
            offset = int(units["offset"][row])
            base = offset - offset % file_bytes
            batch = None
            with suppress(OSError):  # a file that is gone is reported by the other way
                if offset >= 0:
                    mapped = self._file(base)
                    limit = base + len(mapped) if checked is None else checked
                    run = UnitRun(units, row, first + row, piece.queue_id, mapped, base, limit)
                    batch = plain.of_units(run)
            if batch is None:
                rest = units[row : row + stretch]
                yield from self._by_columns(piece, first + row, rest)
                row += len(rest)
                stretch *= 4  # where nothing is plain, many at a time cost less
            else:
                yield batch
                row += len(batch)
                stretch = PACKED_ROWS

    def _by_columns(
        self, piece: StoreSlice, first: int, units: npt.NDArray[np.void]
    ) -> Iterator[pa.RecordBatch]:
        batches = self._decoded_units(piece, first, units)
        return batches if self._settings.body_form is BodyForm.BYTES else map(with_whole_bodies, batches)

    def _decoded_units(
        self, piece: StoreSlice, first: int, units: npt.NDArray[np.void]
    ) -> Iterator[pa.RecordBatch]:
        offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int64)
        numbers = np.arange(first, first + len(units), dtype=np.int64)
        there = (sizes > 0) & (sizes != FILLER_SIZE) & (offsets >= 0)
        if not there.all():
            self._missing(piece, numbers[~there], "the queue has no units for them")
        if (codes := self._settings.tag_codes) is not None and piece.topic != SCHEDULE_TOPIC:
            found = units["code"].astype(np.int64)
            there &= np.isin(found, list(codes)) | (found <= MAX_EXT_ADDRESS)
        if not there.all():
            offsets, sizes, numbers = offsets[there], sizes[there], numbers[there]
        for chunk in _chunks(offsets, sizes, self._settings.log_file_bytes):
            yield from self._chunk(piece, offsets[chunk], sizes[chunk], numbers[chunk])

    def _units(self, piece: StoreSlice) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
        """Runs of units of the slice, each with the offset of its first."""
        per_file = self._settings.queue_file_bytes // UNIT.size
        directory = queue_directory(piece.topic, piece.queue_id)
        at_offset = piece.start
        end = min(piece.end, piece.late[0].number) if piece.late else piece.end
        while at_offset < end:
            first = at_offset - at_offset % per_file
            stop = min(end, first + per_file)
            try:
                for units in unit_runs(
                    self._files, directory, first * UNIT.size, at_offset - first, stop - first
                ):
                    yield at_offset, units
                    at_offset += len(units)
            except OSError as error:
                self._missing(piece, np.arange(at_offset, stop), f"a file of the queue is gone: {error}")
            else:
                if at_offset < stop:
                    self._missing(piece, np.arange(at_offset, stop), "a file of the queue is cut short")
            at_offset = stop
        yield from self._late_units(piece)

    def _late_units(self, piece: StoreSlice) -> Iterator[tuple[int, npt.NDArray[np.void]]]:
        numbers = np.array([unit.number for unit in piece.late], dtype=np.int64)
        borders = np.flatnonzero(np.diff(numbers) != 1) + 1 if len(numbers) else numbers
        for run in np.split(np.arange(len(numbers)), borders):
            if len(run):
                units = np.zeros(len(run), UNIT_DTYPE)
                units["offset"] = [piece.late[i].offset for i in run]
                units["size"] = [piece.late[i].size for i in run]
                units["code"] = [piece.late[i].tags_code for i in run]
                yield int(numbers[run[0]]), units
        for before, after in pairwise(numbers.tolist()):
            if after != before + 1:
                self._missing(piece, np.arange(before + 1, after), "the log has no sound records for them")

    def _chunk(
        self,
        piece: StoreSlice,
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
    ) -> Iterator[pa.RecordBatch]:
        base = int(offsets[0]) // self._settings.log_file_bytes * self._settings.log_file_bytes
        try:
            mapped = self._file(base)
        except OSError as error:
            self._missing(piece, numbers, f"their file of the log is gone: {error}")
            return
        data = as_bytes(mapped)
        if len(data) < FIXED_BYTES:
            self._missing(piece, numbers, "their file of the log is cut short")
            return
        starts = offsets - base
        heads, own = _own_records(data, base, starts, sizes, piece, numbers)
        if not own.all():
            self._missing(piece, numbers[~own], "their places in the log hold something else")
            heads, numbers = heads.subset(own), numbers[own]
        checked = self._settings.check_from
        if checked is not None and len(heads.starts) and base + int(heads.starts[-1]) >= checked:
            heads, numbers = self._sound(piece, mapped, heads, numbers)
        for run in self._runs(heads):
            yield from self._sound_batches(piece, mapped, heads.subset(run), numbers[run])

    def _runs(self, heads: Heads) -> Sequence[slice]:
        """All rows, or fewer at a time where bodies are compressed: they grow when they are read."""
        rows = len(heads.starts)
        flags = heads.field(SYS_FLAG_AT, ">i4")
        if "body" not in self._settings.columns or not (flags & SysFlag.COMPRESSED).any():
            return [slice(0, rows)] if rows else []
        return [slice(first, first + PACKED_ROWS) for first in range(0, rows, PACKED_ROWS)]

    def _sound_batches(
        self, piece: StoreSlice, mapped: FileBytes, heads: Heads, numbers: npt.NDArray[np.int64]
    ) -> Iterable[pa.RecordBatch]:
        data = as_bytes(mapped)
        try:
            return self._decoded(data, piece, heads)
        except SourceError:
            # Lengths inside a record, or a compressed body, are wrong: find out whose, and read the others.
            sound, _ = self._sound(piece, mapped, heads, numbers)
            if len(sound.starts) == len(heads.starts):
                raise
            return self._decoded(data, piece, sound) if len(sound.starts) else ()

    def _decoded(
        self, data: npt.NDArray[np.uint8], piece: StoreSlice, heads: Heads
    ) -> Iterable[pa.RecordBatch]:
        columns, tags = self._settings.columns, self._settings.tags
        topic, broker = piece.topic, self._settings.broker
        if not tags:
            return decode_parts(data, columns=columns, topic=topic, broker=broker, heads=heads)
        return (decode_page(data, columns=columns, topic=topic, broker=broker, heads=heads, tags=tags),)

    def _sound(
        self, piece: StoreSlice, mapped: FileBytes, heads: Heads, numbers: npt.NDArray[np.int64]
    ) -> tuple[Heads, npt.NDArray[np.int64]]:
        """One by one, with their checksums."""
        checks = [check_record(mapped, start, len(mapped)) for start in heads.starts.tolist()]
        sound = np.array([check.kind is RecordKind.MESSAGE for check in checks], dtype=np.bool_)
        for index in np.flatnonzero(~sound):
            self._missing(piece, numbers[index : index + 1], checks[index].reason or "no record lies there")
        return heads.subset(sound), numbers[sound]

    def _file(self, base: int) -> FileBytes:
        """Mapped once for all queues of the task: their records lie between each other, and the same pages are read."""
        mapped = self._mapped.get(base)
        if mapped is None:
            if len(self._mapped) >= MOST_MAPPED:
                # Batches are copies, but a view may still wait for the collector; the map then closes with it.
                del self._mapped[next(iter(self._mapped))]
            mapped = self._mapped[base] = self._files.map(segment_path(COMMIT_LOG, base))
        return mapped

    def _missing(self, piece: StoreSlice, numbers: npt.NDArray[np.int64], why: str) -> None:
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            if not len(run):
                continue
            broker = self._settings.broker or ""
            lost = DataLost(piece.topic, broker, piece.queue_id, int(run[0]), int(run[-1]) + 1, why)
            if self._settings.fail_on_data_loss:
                raise lost
            log.warning("%s: left out as damaged: %s", self._settings.path, lost)


def _plain_kind(settings: StoreSettings) -> type[Plain]:
    if settings.body_form is BodyForm.PLACES:
        return PlainPlaces
    return PlainBodies if "body" in settings.columns else PlainProperties


def _own_records(
    data: npt.NDArray[np.uint8],
    base: int,
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    piece: StoreSlice,
    numbers: npt.NDArray[np.int64],
) -> tuple[Heads, npt.NDArray[np.bool_]]:
    """What lies at each place, and whether it is the record that its unit stands for."""
    inside = (sizes >= FIXED_BYTES) & (starts + sizes <= len(data))
    places = starts if inside.all() else np.where(inside, starts, 0)
    heads = Heads(data, places)
    magic = heads.field(MAGIC_AT, ">u4")
    own: npt.NDArray[np.bool_] = (
        inside & (heads.field(0, ">i4") == sizes) & ((magic == MESSAGE_MAGIC) | (magic == MESSAGE_MAGIC_V2))
    )
    if not piece.topic.startswith(LMQ_PREFIX):  # those share the records of other queues
        own &= heads.field(QUEUE_OFFSET_AT, ">i8") == numbers
        own &= heads.field(QUEUE_ID_AT, ">i4") == piece.queue_id
    own &= heads.field(PHYSICAL_OFFSET_AT, ">i8") == base + starts
    return heads, own


def _chunks(offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], file_bytes: int) -> Sequence[slice]:
    """Runs that lie in one file of the log and are not too large."""
    if not len(offsets):
        return []
    borders = np.flatnonzero(np.diff(offsets // file_bytes)) + 1
    # Records that go back in the log cannot be laid under one array.
    borders = np.union1d(borders, np.flatnonzero(np.diff(offsets) <= 0) + 1)
    chunks: list[slice] = []
    for first, last in zip([0, *borders.tolist()], [*borders.tolist(), len(offsets)], strict=True):
        total = np.cumsum(sizes[first:last])
        done = 0
        while done < last - first:
            before = int(total[done - 1]) if done else 0
            stop = int(np.searchsorted(total, before + CHUNK_BYTES, side="right"))
            stop = min(max(stop, done + 1), done + CHUNK_ROWS, last - first)
            chunks.append(slice(first + done, first + stop))
            done = stop
    return chunks
