"""Messages by key: a series of index files, filled in log order, searched from the newest back.

Each indexed key of a record is one row (prefix b"Topic#", key, physical offset, store time). Rows come in
log order; rows below what the last file already covers are skipped, so dispatching a stretch of the log again
does no harm. Large slices are hashed and linked in columns, small ones one by one; both give the same bytes,
the ones Java's IndexService writes.

One thread adds and queries; `flush` alone may run in another.
"""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orbitmq.store.disk import Disk, StrPath
from orbitmq.store.errors import StoreDamaged
from orbitmq.store.index_check import structure_problem
from orbitmq.store.index_file import IndexFile
from orbitmq.store.key_hashes import KeyHasher, plain_hash
from orbitmq.wire.java_hash import index_hash
from orbitmq.wire.numeric import np

if TYPE_CHECKING:
    import numpy.typing as npt

DEFAULT_SLOTS = 5_000_000
DEFAULT_ENTRIES = 20_000_000

# Below this, setting up the columns costs more than they save.
COLUMN_ROWS = 16
# A key shared by millions of messages must not hold the event loop for seconds.
MAX_QUERY_STEPS = 500_000

Row = tuple[bytes, bytes, int, int]

_NAME_FORMAT = "%Y%m%d%H%M%S"
_NAME_DIGITS = 17


def _name_of(when_ms: int) -> str:
    return time.strftime(_NAME_FORMAT, time.localtime(when_ms // 1000)) + f"{when_ms % 1000:03d}"


def _name_after(name: str) -> str:
    moment = datetime.datetime.strptime(name[:-3], _NAME_FORMAT)
    moment += datetime.timedelta(milliseconds=int(name[-3:]) + 1)
    return moment.strftime(_NAME_FORMAT) + f"{moment.microsecond // 1000:03d}"


class IndexService:
    """The key index of a store. `load` comes first, `close` last."""

    def __init__(
        self,
        disk: Disk,
        directory: StrPath,
        clock: Callable[[], int],
        slots: int = DEFAULT_SLOTS,
        entries: int = DEFAULT_ENTRIES,
    ) -> None:
        if slots < 1 or entries < 2:
            raise ValueError(f"an index of {slots} slots and {entries} entries cannot hold a key")
        self.directory = os.fspath(directory)
        self.dropped: list[str] = []
        self._disk = disk
        self._clock = clock
        self._slots = slots
        self._entries = entries
        self._files: list[IndexFile] = []
        self._hasher = KeyHasher()
        # Keeps a file open while a flush in another thread works on it.
        self._open_files = threading.Lock()

    def load(self, abnormal: bool = False, checkpoint_index_ms: int = 0) -> int:
        """Open the files; returns the log offset from which records have to be indexed again (0: all).

        After an abnormal exit a file that goes beyond the checkpoint may be torn. Java deletes it; here it is
        first looked through, since most crashes leave it whole and rebuilding it takes minutes. What is torn
        is deleted, with all behind it, and named in `dropped`; so is a file with an impossible header.
        """
        self.dropped = []
        for name in self._disk.listdir(self.directory):
            if len(name) != _NAME_DIGITS or not name.isdigit():
                continue
            path = os.path.join(self.directory, name)
            # Behind a file that is not full there cannot be another, unless a power cut took the end of the first.
            behind_torn = bool(self._files and self._files[-1].room)
            if self.dropped or behind_torn or self._disk.size(path) == 0:
                self._drop(path)
                continue
            file = IndexFile(self._disk, path, self._slots, self._entries)
            if self._is_sound(file, abnormal, checkpoint_index_ms):
                self._files.append(file)
            else:
                file.close()
                self._drop(path)
        if self.dropped:
            self._disk.fsync_dir(self.directory)
        return self._covered()

    def _is_sound(self, file: IndexFile, abnormal: bool, checkpoint_index_ms: int) -> bool:
        try:
            file.check_header()
        except StoreDamaged:
            return False
        # A file not yet full may have got entries of the checkpoint's very millisecond after its flush.
        flushed = file.room == 0 and file.end_ms <= checkpoint_index_ms
        return not abnormal or flushed or structure_problem(file) is None

    def _drop(self, path: str) -> None:
        self._disk.unlink(path)
        self.dropped.append(path)

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self._files]

    def last(self) -> tuple[int, int]:
        """(store time, physical offset) of the newest indexed record; zeros when there is none."""
        return (self._files[-1].end_ms, self._files[-1].end_offset) if self._files else (0, 0)

    def last_rows(self) -> int:
        """How many entries the newest indexed record has: it may have got only some of its keys before a crash."""
        offset = self._covered()
        rows = 0
        for file in reversed(self._files):
            found = file.trailing(offset)
            rows += found
            if found < file.count - 1:
                break
        return rows

    def add(
        self, prefix: bytes, keys: Sequence[bytes], offsets: Sequence[int], store_ms: Sequence[int]
    ) -> None:
        """Index keys of one topic; the three columns are in log order."""
        self.add_keys([prefix] * len(keys), keys, offsets, store_ms)

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Index rows (prefix, key, physical offset, store time) in log order.

        Raises OSError when the disk is full; the first rows may then be in, and adding all again is right.
        """
        if rows:
            prefixes, keys, offsets, store_ms = zip(*rows, strict=True)
            self.add_keys(prefixes, keys, offsets, store_ms)

    def add_keys(
        self,
        prefixes: Sequence[bytes],
        keys: Sequence[bytes],
        offsets: Sequence[int],
        store_ms: Sequence[int],
    ) -> None:
        """Index one key per row; the four columns are in log order."""
        if len(keys) < COLUMN_ROWS:
            self.add_plain(prefixes, keys, offsets, store_ms)
        else:
            self.add_columns(prefixes, keys, offsets, store_ms)

    def add_plain(
        self,
        prefixes: Sequence[bytes],
        keys: Sequence[bytes],
        offsets: Sequence[int],
        store_ms: Sequence[int],
    ) -> None:
        """Row by row: the reference, and the faster way for few rows."""
        for prefix, key, offset, row_ms in zip(prefixes, keys, offsets, store_ms, strict=True):
            last = self._files[-1] if self._files else None
            if last is not None and offset < last.end_offset:
                if row_ms <= last.end_ms:
                    continue
                # Newer than all that is indexed, at a place already covered: the log lost its end meanwhile.
                self.cut(offset)
            self._writable().put(plain_hash(prefix, key), offset, row_ms)

    def add_hashes(self, hashes: bytes, offsets: bytes, ms_column: npt.NDArray[np.int64]) -> None:
        """Keys hashed already: native 32-bit index hashes and 64-bit offsets, in log order and behind all others."""
        if not hashes:
            return
        hash_column = np.frombuffer(hashes, dtype=np.uint32).astype(np.int64)
        offset_column = np.frombuffer(offsets, dtype=np.int64)
        fresh = offset_column >= self._covered()
        if not fresh.all():
            # A full disk stopped an earlier try half-way: those are in.
            hash_column, offset_column, ms_column = hash_column[fresh], offset_column[fresh], ms_column[fresh]
        self._add_hashed(hash_column, offset_column, ms_column)

    def add_columns(
        self,
        prefixes: Sequence[bytes],
        keys: Sequence[bytes],
        offsets: Sequence[int],
        store_ms: Sequence[int],
    ) -> None:
        if not keys:
            return
        offset_column = np.array(offsets, dtype=np.int64)
        reached = np.maximum(np.maximum.accumulate(offset_column), self._covered())
        if np.any(offset_column < reached):
            # Rows to skip: part of the log is dispatched again. Rare, and hashing them would be in vain.
            self.add_plain(prefixes, keys, offsets, store_ms)
            return
        self._add_hashed(
            self._hasher.columns(prefixes, keys), offset_column, np.array(store_ms, dtype=np.int64)
        )

    def _add_hashed(
        self,
        hash_column: npt.NDArray[np.int64],
        offset_column: npt.NDArray[np.int64],
        ms_column: npt.NDArray[np.int64],
    ) -> None:
        start = 0
        while start < len(hash_column):
            file = self._writable()
            end = min(start + file.room, len(hash_column))
            file.put_columns(hash_column[start:end], offset_column[start:end], ms_column[start:end])
            start = end

    def _covered(self) -> int:
        return self._files[-1].end_offset if self._files else 0

    def _writable(self) -> IndexFile:
        """The last file, or the next one when that is full."""
        last = self._files[-1] if self._files else None
        if last is not None and last.room:
            return last
        name = _name_of(self._clock())
        if last is not None:
            # Names must sort in the order of the files, also when the clock or the time zone steps back.
            name = max(name, _name_after(os.path.basename(last.path)))
        else:
            self._disk.makedirs(self.directory)
        path = os.path.join(self.directory, name)
        while self._disk.exists(path):
            path = os.path.join(self.directory, _name_after(os.path.basename(path)))
        end_offset, end_ms = (last.end_offset, last.end_ms) if last is not None else (0, 0)
        file = IndexFile.create(self._disk, path, self._slots, self._entries, end_offset, end_ms)
        self._files.append(file)
        return file

    def cut(self, log_end: int) -> None:
        """Forget records at `log_end` and behind it: the log ends there, and other records will follow."""
        with self._open_files:
            while self._files and self._files[-1].end_offset >= log_end:
                file = self._files[-1]
                if not file.is_empty and file.begin_offset < log_end:
                    file.cut(log_end)
                    return
                self._files.pop()
                file.close()
                self._disk.unlink(file.path)

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int) -> list[int]:
        """Physical offsets of records that may have this key, newest first, at most max_num.

        Only hashes are compared, and times to the second: the caller looks at topic, key and time of each.
        """
        key_hash = index_hash(f"{topic}#{key}")
        found: dict[int, None] = {}
        steps = MAX_QUERY_STEPS
        for file in reversed(self._files):
            if file.overlaps(begin_ms, end_ms):
                steps = file.select(key_hash, begin_ms, end_ms, found, max_num, steps)
            if len(found) >= max_num or steps <= 0:
                break
            if not file.is_empty and file.begin_ms < begin_ms:
                break
        return list(found)

    @property
    def needs_flush(self) -> bool:
        """A full file waits for the disk; the one being filled can wait."""
        return any(file.room == 0 and file.synced_count != file.count for file in self._files[-2:])

    def flush(self) -> int:
        """Everything added so far reaches the disk; returns the checkpoint's indexMsgTimestamp."""
        with self._open_files:
            safe_ms = 0
            for file in list(self._files):
                safe_ms = file.sync()
            return safe_ms

    def delete_before(self, min_offset: int) -> int:
        """Delete files that only hold records below min_offset, never the last; returns how many went."""
        if not self._open_files.acquire(blocking=False):
            # A flush is at work; the cleaner comes again soon.
            return 0
        try:
            deleted = 0
            while len(self._files) > 1 and self._files[0].end_offset < min_offset:
                file = self._files.pop(0)
                file.close()
                self._disk.unlink(file.path)
                deleted += 1
            return deleted
        finally:
            self._open_files.release()

    def close(self) -> None:
        with self._open_files:
            for file in self._files:
                file.close()
            self._files.clear()
