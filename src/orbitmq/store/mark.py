"""Our own note beside the checkpoint: up to which log offset queues and index are known to be on the device.

The checkpoint of the original format only knows times, so a start after a crash would read a whole log file; this note
lets it begin within the last seconds. It also knows how long each queue was, which nothing else tells once the
end of a queue's file is lost. It is a hint: where it is missing or stale, the start falls back to the checkpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import msgspec

from orbitmq.store.disk import Disk
from orbitmq.wire.checksum import crc32

FILE_NAME = "recovery.json"
BORDER_BYTES = 1 << 20
MOST_BORDERS = 64

QueueEnds = dict[str, dict[int, int]]


class _Note(msgspec.Struct):
    safe_offset: int
    deleted_topics: dict[str, int] = {}
    queue_ends: QueueEnds = {}
    checkpoint_ms: int = 0
    borders: list[int] = []


class _File(msgspec.Struct):
    note: msgspec.Raw
    crc: int


@dataclass(slots=True)
class RecoveryMark:
    safe_offset: int = -1
    """-1: unknown."""
    deleted_topics: dict[str, int] = field(default_factory=dict)
    """Where the log ended when a topic was deleted: its records before that must not come back."""
    queue_ends: QueueEnds = field(default_factory=dict)
    """By topic and queue id, the queue's end when the note was made."""
    checkpoint_ms: int = 0
    """The checkpoint's time when the note was made: another one means that another broker was here since."""
    borders: list[int] = field(default_factory=list)
    """Places near the log's end where records begin: searched for, one could be found inside a message's body."""
    damaged: bool = False
    """There is a note that cannot be read: the disk has lost something, and perhaps not only here."""

    @classmethod
    def load(cls, disk: Disk, path: str) -> RecoveryMark:
        if not disk.exists(path):
            return cls()
        try:
            file = msgspec.json.decode(disk.read_file(path), type=_File)
            note = msgspec.json.decode(file.note, type=_Note)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return cls(damaged=True)
        if crc32(bytes(file.note)) != file.crc:
            return cls(damaged=True)
        return cls(note.safe_offset, note.deleted_topics, note.queue_ends, note.checkpoint_ms, note.borders)

    def save(self, disk: Disk, path: str) -> None:
        note = _Note(self.safe_offset, self.deleted_topics, self.queue_ends, self.checkpoint_ms, self.borders)
        data = msgspec.json.encode(note)
        disk.write_atomic(path, msgspec.json.encode(_File(msgspec.Raw(data), crc32(data))), backup=False)

    def forget_before(self, log_start: int) -> None:
        self.deleted_topics = {topic: at for topic, at in self.deleted_topics.items() if at > log_start}

    def forget_topic(self, topic: str, log_end: int) -> None:
        """The topic was deleted when the log ended there."""
        self.deleted_topics[topic] = log_end
        self.queue_ends.pop(topic, None)

    def forget_behind(self, log_end: int) -> None:
        """The log was cut there: what begins behind it is not known yet."""
        self.borders = [border for border in self.borders if border <= log_end]

    def note_border(self, offset: int) -> None:
        """A record will begin there."""
        borders = self.borders
        if not borders or offset >= borders[-1] + BORDER_BYTES:
            borders.append(offset)
            if len(borders) > MOST_BORDERS:
                del borders[0]

    def border_before(self, offset: int) -> int | None:
        """The last noted place that is not behind this one."""
        at = bisect_right(self.borders, offset)
        return self.borders[at - 1] if at else None
