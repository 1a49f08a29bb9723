"""How far the log is on the device, noted at every flush without a flush of its own.

A crash of the process keeps the note: behind it nothing was acknowledged, and a bad place before it is damage. After a
power cut it may be an older one, which is still true. Without it, recovery could not tell a message that
damage has hit from one that was being written when the power went.
"""

from __future__ import annotations

import logging
import os
from struct import Struct
from typing import NamedTuple

from orbitmq.store.disk import Disk
from orbitmq.wire.checksum import crc32

log = logging.getLogger("orbitmq.store")

FILE_NAME = "flushed"
_FIELDS = Struct(">qqq")
_CRC = Struct(">I")
_BYTES = _FIELDS.size + _CRC.size


class Flushed(NamedTuple):
    offset: int
    last_ms: int
    next_ms: int
    """The checkpoint's times, last saved and about to be saved: a third one means that another broker was here."""

    def is_of(self, checkpoint_ms: int) -> bool:
        return checkpoint_ms in (self.last_ms, self.next_ms)


class FlushNote:
    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = os.path.join(root, FILE_NAME)
        self._fd = -1
        self._failed = False
        self._offset = 0
        self._last_ms = 0
        self._next_ms = 0

    def load(self) -> Flushed | None:
        """What the last broker noted; None when it noted nothing that can be believed."""
        if not self._disk.exists(self._path):
            return None
        data = self._disk.read_file(self._path)[:_BYTES]
        if len(data) < _BYTES or crc32(data[: _FIELDS.size]) != _CRC.unpack_from(data, _FIELDS.size)[0]:
            return None
        return Flushed(*_FIELDS.unpack_from(data))

    def open(self, offset: int, checkpoint_ms: int) -> None:
        self._fd = self._disk.open_rw(self._path, create=True)
        self._offset, self._next_ms = offset, checkpoint_ms
        self.expect_checkpoint(checkpoint_ms)

    def expect_checkpoint(self, checkpoint_ms: int) -> None:
        """A checkpoint with this time will be saved. This reaches the device, or the note would look like another's."""
        self._last_ms, self._next_ms = self._next_ms, checkpoint_ms
        self.set(self._offset)
        self._disk.fdatasync(self._fd)

    def set(self, offset: int) -> None:
        if self._fd < 0:
            return  # a flush that was under way when the store was closed, and flushed everything once more
        self._offset = offset
        fields = _FIELDS.pack(offset, self._last_ms, self._next_ms)
        try:
            self._disk.pwrite(self._fd, fields + _CRC.pack(crc32(fields)), 0)
        except OSError as error:
            if not self._failed:
                log.warning("how far the log is flushed cannot be noted: %s", error)
            self._failed = True
        else:
            self._failed = False

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
