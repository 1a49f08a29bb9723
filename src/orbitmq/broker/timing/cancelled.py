"""Which waiting messages are not to be delivered, by the log offset of their record.

The cancelling itself is a record in the timer topic, so this table can be made anew; it is saved with the
list of runs only so that old cancellations need not be looked for. An entry goes when its message would have
been delivered.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

MOST: Final = 200_000
"""Cancelled messages that wait for their time, so that memory stays bounded: 30 MB."""
_ENTRY: Final = Struct(">qq")
_SLACK_MS: Final = 60_000


class Cancelled:
    def __init__(self, most: int = MOST) -> None:
        self._due: dict[int, int] = {}
        self._most = most

    def __contains__(self, position: int) -> bool:
        return position in self._due

    def __len__(self) -> int:
        return len(self._due)

    @property
    def full(self) -> bool:
        return len(self._due) >= self._most

    def add(self, position: int, due_ms: int) -> None:
        self._due[position] = due_ms

    def discard(self, position: int) -> None:
        self._due.pop(position, None)

    def forget_before(self, settled_ms: int, log_start: int) -> None:
        """Entries whose message never came up, though everything due before `settled_ms` did."""
        self._due = {
            position: due
            for position, due in self._due.items()
            if due > settled_ms - _SLACK_MS and position >= log_start
        }

    def to_bytes(self) -> bytes:
        return b"".join(_ENTRY.pack(position, due) for position, due in self._due.items())

    def load(self, data: bytes, log_end: int) -> None:
        """What lies behind the end of the log was lost, and its place will be given to other messages."""
        usable = len(data) - len(data) % _ENTRY.size
        for position, due_ms in _ENTRY.iter_unpack(data[:usable]):
            if position < log_end:
                self._due[position] = due_ms
