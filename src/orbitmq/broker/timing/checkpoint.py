"""How far delivery has come, in one small file that is written after every batch of deliveries.

Three places: one for the newest state, whose deliveries may not be on the device yet, and two in turn for
states whose deliveries are. After a crash the newest state counts whose deliveries the recovered log still
holds; so a killed process repeats next to nothing, and a power cut loses nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

from orbitmq.broker.timing.runs import NEVER, Key
from orbitmq.store.disk import Disk
from orbitmq.wire.checksum import crc32

_PLACE_BYTES: Final = 16 << 10
_PLACES: Final = 3
_HEAD: Final = Struct(">II")


class Progress(msgspec.Struct, frozen=True):
    """Timers with an offset below `indexed` and a key up to `delivered` are done, all others wait."""

    number: int = 0
    log_end: int = 0
    """Where the log ended when this was true."""
    delivered: Key = NEVER
    indexed: int = 0
    rolled: int = 0
    levels: dict[str, tuple[int, int]] = {}
    """Level to the next offsets of users' messages and of retries."""

    def is_done(self, due: int, queue_offset: int) -> bool:
        return queue_offset < self.indexed and (due, queue_offset) <= self.delivered


class CheckpointFile:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._fd = disk.open_rw(path, create=True, size=_PLACES * _PLACE_BYTES)
        self._number = 0
        self._turn = False
        self.dirty = False

    def load(self, log_end: int) -> Progress:
        """The newest state that agrees with the log; an empty one, which repeats everything, when there is
        none.
        """
        found = [Progress()]
        for place in range(_PLACES):
            data = self._disk.pread(self._fd, _PLACE_BYTES, place * _PLACE_BYTES)
            progress = _decode(data)
            if progress is not None:
                self._number = max(self._number, progress.number)
                if progress.log_end <= log_end:
                    found.append(progress)
        return max(found, key=lambda progress: progress.number)

    def next_number(self) -> int:
        """For a new state. One that is written again, when it is on the device, keeps its number."""
        self._number += 1
        return self._number

    def write(self, progress: Progress, *, durable: bool) -> None:
        """OSError: the older states are still there, at worst more is repeated."""
        data = msgspec.json.encode(progress)
        place = 0
        if durable:
            self._turn = not self._turn
            place = 1 + self._turn
        framed = _HEAD.pack(len(data), crc32(data)) + data
        if len(framed) <= _PLACE_BYTES:
            self._disk.pwrite(self._fd, framed, place * _PLACE_BYTES)
            self.dirty = True

    def sync(self) -> None:
        """May run in another thread."""
        self.dirty = False
        self._disk.fdatasync(self._fd)

    def close(self) -> None:
        self._disk.close(self._fd)


def _decode(data: bytes) -> Progress | None:
    if len(data) < _HEAD.size:
        return None
    size, checksum = _HEAD.unpack_from(data, 0)
    body = data[_HEAD.size : _HEAD.size + size]
    if not size or len(body) != size or crc32(body) != checksum:
        return None
    try:
        return msgspec.json.decode(body, type=Progress)
    except msgspec.DecodeError:
        return None
