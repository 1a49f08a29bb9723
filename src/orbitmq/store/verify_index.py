"""Check the key index against the log: its entries, file after file, are the keys of the records in order.

So the two sequences are compared side by side, in slices. Where they differ, a closer look tells a missing
entry from one that points nowhere; an entry written twice, by a recovery that took its record again, is fine.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from orbitmq.store.index_check import IndexView, detect_shape, structure_problem
from orbitmq.store.index_file import MAX_SECONDS, file_bytes
from orbitmq.store.key_hashes import KeyHasher
from orbitmq.store.log_scan import FileBytes, ScannedRecord
from orbitmq.store.store_files import INDEX, INDEX_NAME_DIGITS, StoreFiles, unmap
from orbitmq.store.verify_report import REBUILD, Severity, VerifyReport
from orbitmq.wire.numeric import np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

_SLICE_ROWS = 4096
# How many entries too many a slice may hold and still be matched as a whole.
_EXTRA_ENTRIES = 64

Pair = tuple[int, int]


def find_shape(files: StoreFiles) -> tuple[int, int] | None:
    """(slots, entries) of the index files, from the first file that shows it."""
    for name in files.names(INDEX, INDEX_NAME_DIGITS):
        buf = files.map(f"{INDEX}/{name}")
        try:
            shape = detect_shape(buf)
        finally:
            unmap(buf)
        if shape is not None:
            return shape
    return None


class _Entries:
    """The entries of all files as one sequence; at most one file is open."""

    def __init__(
        self, files: StoreFiles, names: list[str], shape: tuple[int, int], covered_from: int
    ) -> None:
        self._files = files
        self._names = names
        self._shape = shape
        self._file = -1
        self._buf: FileBytes = b""
        self._view: IndexView | None = None
        self._covered_from = covered_from
        self.name = ""
        self.number = 1

    def window(self, rows: int) -> npt.NDArray[np.void]:
        """A copy of up to `rows` next entries, all of one file; empty at the very end."""
        while self._view is None or self.number >= self._view.count:
            if not self._next_file():
                return np.empty(0, dtype=np.void)
        entries, _ = self._view.views
        return entries[self.number : min(self.number + rows, self._view.count)].copy()

    def expected_seconds(self, store_ms: Ints) -> Ints:
        assert self._view is not None
        begin_ms = self._view.begin_ms
        return (
            np.clip((store_ms - begin_ms) // 1000, 0, MAX_SECONDS)
            if begin_ms > 0
            else np.zeros_like(store_ms)
        )

    def header_times(self, entries: int) -> tuple[int | None, int | None]:
        """The header's first and last time, each only if the next `entries` hold the entry it is of."""
        assert self._view is not None
        ends = self.number + entries == self._view.count
        return self._view.begin_ms if self.number == 1 else None, self._view.end_ms if ends else None

    def advance(self, entries: int) -> None:
        self.number += entries

    def _next_file(self) -> bool:
        self.close()
        self._file += 1
        if self._file >= len(self._names):
            self._file = len(self._names)
            return False
        self.name = f"{INDEX}/{self._names[self._file]}"
        self._buf = self._files.map(self.name)
        self._view = IndexView(self._buf, *self._shape)
        # A count beyond the file is told by the check of its structure; here it only must not be followed.
        self._view.count = min(self._view.count, self._view.entries)
        self.number = 1
        offsets = self._view.views[0]["offset"][1 : self._view.count]
        # Entries of records whose log file is gone come first.
        kept = np.flatnonzero(offsets >= self._covered_from)
        self.number = 1 + int(kept[0]) if len(kept) else self._view.count
        del offsets, kept
        return True

    def close(self) -> None:
        self._view = None
        unmap(self._buf)
        self._buf = b""


class IndexCheck:
    def __init__(
        self, files: StoreFiles, shape: tuple[int, int], report: VerifyReport, log_start: int
    ) -> None:
        self._files = files
        self._report = report
        self._hasher = KeyHasher()
        self._rows: list[tuple[bytes, bytes, int, int]] = []
        # Pairs lately matched: an entry that repeats one was written again by a recovery.
        self._recent: deque[Pair] = deque(maxlen=4 * _SLICE_ROWS)
        self._unindexed_before = 0
        self._missing_at_end = 0
        names = [name for name in files.names(INDEX, INDEX_NAME_DIGITS) if self._check_file(name, shape)]
        self._any = bool(names)
        self._entries = _Entries(files, names, shape, log_start)
        first = self._entries.window(1)
        self._first_offset = int(first["offset"][0]) if len(first) else 0

    def _check_file(self, name: str, shape: tuple[int, int]) -> bool:
        """The file in itself; False when it cannot be compared at all."""
        path = f"{INDEX}/{name}"
        actual, expected = self._files.size(path), file_bytes(*shape)
        if actual != expected:
            text = f"has {actual} bytes, the index files of this store have {expected}"
            self._report.error(path, None, text, REBUILD)
            return False
        buf = self._files.map(path)
        try:
            view = IndexView(buf, *shape)
            problem = structure_problem(view)
            self._report.index_entries += view.count - 1
            del view
        finally:
            unmap(buf)
        if problem is not None:
            severity: Severity = "error" if self._report.clean_stop else "warning"
            self._report.add(severity, path, None, f"keys may not be found: {problem}", REBUILD)
        return True

    def take(self, record: ScannedRecord) -> None:
        """Records come in log order."""
        if not self._any:
            return
        if record.offset < self._first_offset:
            self._unindexed_before += len(record.index_rows)
            return
        self._rows += record.index_rows
        if len(self._rows) >= _SLICE_ROWS:
            self._compare()

    def finish(self) -> None:
        self._compare()
        self._check_rest()
        self._entries.close()
        if self._unindexed_before:
            text = (
                f"{self._unindexed_before} keys of records before offset {self._first_offset} are not indexed"
            )
            self._report.warning(INDEX, None, text, REBUILD)
        if self._missing_at_end:
            severity: Severity = "error" if self._report.clean_stop else "info"
            text = f"the keys of the last records are not in the index ({self._missing_at_end})"
            self._report.add(severity, INDEX, None, text, REBUILD if severity == "error" else "")

    def _compare(self) -> None:
        if not self._rows:
            return
        prefixes, keys, offset_column, ms_column = zip(*self._rows, strict=True)
        self._rows = []
        hashes = self._hasher.columns(prefixes, keys)
        offsets = np.array(offset_column, dtype=np.int64)
        store_ms = np.array(ms_column, dtype=np.int64)
        row = 0
        while row < len(hashes):
            found = self._entries.window(len(hashes) - row)
            if not len(found):
                self._missing_at_end += len(hashes) - row
                return
            rows = slice(row, row + len(found))
            if self._equal(found, hashes[rows], offsets[rows], store_ms[rows]):
                self._recent.extend(zip(offsets[rows].tolist(), hashes[rows].tolist(), strict=True))
                self._check_times(store_ms[rows])
                self._entries.advance(len(found))
                row += len(found)
            else:
                row += self._match(hashes[rows], offsets[rows], store_ms[rows])

    def _equal(self, found: npt.NDArray[np.void], hashes: Ints, offsets: Ints, store_ms: Ints) -> bool:
        seconds = self._entries.expected_seconds(store_ms)
        if self._entries.number == 1:
            # The first entry of a file counts its seconds from the file before.
            seconds[0] = found["seconds"][0]
        return bool(
            np.array_equal(found["hash"], hashes)
            and np.array_equal(found["offset"], offsets)
            and np.array_equal(found["seconds"], seconds)
        )

    def _check_times(self, store_ms: Ints) -> None:
        """The header's times decide whether a query looks into the file at all."""
        begin_ms, end_ms = self._entries.header_times(len(store_ms))
        for name, header_ms, record_ms in (
            ("begins", begin_ms, int(store_ms[0])),
            ("ends", end_ms, int(store_ms[-1])),
        ):
            if header_ms is not None and header_ms != record_ms:
                text = f"the header {name} at time {header_ms}, the records at {record_ms}"
                self._report.error(self._entries.name, 0, text, REBUILD)

    def _match(self, hashes: Ints, offsets: Ints, store_ms: Ints) -> int:
        """Pair rows with entries regardless of order; returns how many rows are dealt with.

        Either that is at least one, or the entries moved on: the caller's loop always ends.
        """
        window = self._entries.window(len(hashes) + _EXTRA_ENTRIES)
        pairs: list[Pair] = list(zip(window["offset"].tolist(), window["hash"].tolist(), strict=True))
        places: defaultdict[Pair, deque[int]] = defaultdict(deque)
        for place, pair in enumerate(pairs):
            places[pair].append(place)
        seconds = self._entries.expected_seconds(store_ms)
        rows = list(zip(offsets.tolist(), hashes.tolist(), strict=True))
        place_of: dict[int, int] = {}
        for row, pair in enumerate(rows):
            if places.get(pair):
                place_of[row] = places[pair].popleft()
        if not place_of:
            return self._step(rows, pairs)
        last_row = max(place_of)
        last_place = max(place_of.values())
        self._recent.extend(rows[: last_row + 1])
        taken = set(place_of.values())
        for row in range(last_row + 1):
            if row not in place_of:
                self._missing(rows[row])
                continue
            place = place_of[row]
            if window["seconds"][place] != seconds[row] and self._entries.number + place != 1:
                text = (
                    f"entry {self._entries.number + place} has another time than its record at {rows[row][0]}"
                )
                self._report.warning(self._entries.name, None, text, REBUILD, kind="index time")
        for place in range(last_place + 1):
            if place not in taken:
                self._orphan(place, pairs[place])
        self._entries.advance(last_place + 1)
        return last_row + 1

    def _step(self, rows: list[Pair], pairs: list[Pair]) -> int:
        """Nothing fits: pass over what is surely alone on its side."""
        lowest_entry = min(offset for offset, _ in pairs)
        alone = 0
        while alone < len(rows) and rows[alone][0] < lowest_entry:
            self._missing(rows[alone])
            alone += 1
        if alone:
            return alone
        self._orphan(0, pairs[0])
        self._entries.advance(1)
        return 0

    def _missing(self, row: Pair) -> None:
        text = f"a key of the record at {row[0]} is not in the index"
        self._report.error(self._entries.name, None, text, REBUILD, kind="not indexed")

    def _orphan(self, place: int, pair: Pair) -> None:
        offset = pair[0]
        if pair in self._recent:
            return
        number = self._entries.number + place
        if self._report.damaged(offset) is not None:
            text = f"entry {number} points at {offset}, where the log is damaged"
            self._report.info(self._entries.name, None, text, kind="index of damage")
            return
        text = f"entry {number} points at {offset}, where no record has such a key"
        self._report.error(self._entries.name, None, text, REBUILD, kind="index entry")

    def _check_rest(self) -> None:
        """Entries behind the last row."""
        while len(window := self._entries.window(_SLICE_ROWS)):
            pairs = zip(window["offset"].tolist(), window["hash"].tolist(), strict=True)
            for place, pair in enumerate(pairs):
                if pair[0] < self._report.log_end or self._report.clean_stop:
                    self._orphan(place, pair)
            self._entries.advance(len(window))
