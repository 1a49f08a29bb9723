"""How far the store was safely written: three store timestamps in one 4096-byte page (StoreCheckpoint).

| byte | field | store time of |
|---|---|---|
| 0 | physicMsgTimestamp | the last flushed commit-log record |
| 8 | logicsMsgTimestamp | the last flushed consume-queue unit |
| 16 | indexMsgTimestamp | the last record of the last flushed index file |

The bytes behind belong to other versions (5.x keeps two offsets there) and are left as they are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from orbitmq.store.disk import Disk, StrPath
from orbitmq.store.errors import StoreDamaged

PAGE_BYTES = 4096
# Java backs off by the time in which the queues' own flush may lag behind what the checkpoint says.
_SAFETY_MS = 3000

_TIMES = struct.Struct(">qqq")


@dataclass(slots=True)
class Checkpoint:
    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0

    @classmethod
    def load(cls, disk: Disk, path: StrPath) -> Checkpoint:
        """The saved times; zeros (scan everything) when there is no file, or an empty one from a crash."""
        if not disk.exists(path):
            return cls()
        page = disk.read_file(path)
        if not page:
            return cls()
        if len(page) < _TIMES.size:
            raise StoreDamaged(
                str(path),
                0,
                f"a checkpoint of {len(page)} bytes instead of {PAGE_BYTES}",
                "delete the file: the store then scans the whole commit log at its next start",
            )
        return cls(*_TIMES.unpack_from(page))

    def save(self, disk: Disk, path: StrPath) -> None:
        """In place and flushed: the 24 bytes share one sector, so a crash leaves the old or the new ones."""
        fd = disk.open_rw(path, create=True, size=PAGE_BYTES)
        try:
            disk.pwrite(fd, _TIMES.pack(self.physic_ms, self.logics_ms, self.index_ms), 0)
            disk.fdatasync(fd)
        finally:
            disk.close(fd)

    def safe_ms(self, with_index: bool = False) -> int:
        """Records stored up to then need no second dispatch after a crash: where recovery may begin."""
        safe_ms = max(min(self.physic_ms, self.logics_ms) - _SAFETY_MS, 0)
        return min(safe_ms, self.index_ms) if with_index else safe_ms
