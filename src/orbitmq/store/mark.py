"""Our own note beside the checkpoint: up to which log offset queues and index are known to be on the device.

The checkpoint of the original format only knows times, so a start after a crash would read a whole log file; this note
lets it begin within the last seconds. It is a hint: missing, stale or damaged, the start falls back to the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from orbitmq.store.disk import Disk

FILE_NAME = "recovery.json"


class _Saved(msgspec.Struct):
    safe_offset: int
    deleted_topics: dict[str, int] = {}


@dataclass(slots=True)
class RecoveryMark:
    safe_offset: int = -1
    """-1: unknown."""
    deleted_topics: dict[str, int] = field(default_factory=dict)
    """Where the log ended when a topic was deleted: its records before that must not come back."""

    @classmethod
    def load(cls, disk: Disk, path: str) -> RecoveryMark:
        if not disk.exists(path):
            return cls()
        try:
            saved = msgspec.json.decode(disk.read_file(path), type=_Saved)
        except msgspec.DecodeError:
            return cls()
        return cls(saved.safe_offset, saved.deleted_topics)

    def save(self, disk: Disk, path: str) -> None:
        data = msgspec.json.encode(_Saved(self.safe_offset, self.deleted_topics))
        disk.write_atomic(path, data, backup=False)

    def forget_before(self, log_start: int) -> None:
        self.deleted_topics = {topic: at for topic, at in self.deleted_topics.items() if at > log_start}
