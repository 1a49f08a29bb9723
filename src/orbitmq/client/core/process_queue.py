"""What of a queue has been pulled and is not finished: how far its offset may go, and when to stop pulling.

The offset that is committed is that of the oldest unfinished message, so that whatever happens nothing before it
is missing. Pulls come in the order of offsets, therefore the order of insertion is the order of offsets too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DEFAULT_MESSAGES: Final = 8192
DEFAULT_BYTES: Final = 32 * 1024 * 1024
DEFAULT_SPAN: Final = 16_384


@dataclass(frozen=True, slots=True)
class Limits:
    """When a queue is not pulled from any further. The span is from the oldest unfinished offset to the newest:
    one stuck message would otherwise let everything behind it be repeated after a crash.
    """

    messages: int = DEFAULT_MESSAGES
    bytes: int = DEFAULT_BYTES
    span: int = DEFAULT_SPAN


class ProcessQueue:
    """The unfinished messages of one queue, by offset."""

    __slots__ = ("_next", "_sizes", "bytes", "finished", "limits")

    def __init__(self, start: int, limits: Limits) -> None:
        self.limits = limits
        self.bytes = 0
        self.finished = 0
        self._sizes: dict[int, int] = {}
        self._next = start

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, offset: int) -> bool:
        return offset in self._sizes

    @property
    def next_offset(self) -> int:
        """Where the next pull begins."""
        return self._next

    @property
    def commit_offset(self) -> int:
        """Everything before this offset is finished."""
        return next(iter(self._sizes), self._next)

    @property
    def newest(self) -> int | None:
        return next(reversed(self._sizes), None)

    def add(self, offsets: Sequence[int], sizes: Sequence[int], next_offset: int) -> None:
        """Takes in a page: its wanted messages, and where the broker says to go on."""
        if next_offset < self._next or (
            offsets and not self._next <= offsets[0] <= offsets[-1] < next_offset
        ):
            raise ValueError(f"a page up to {next_offset} does not follow offset {self._next}")
        self._sizes.update(zip(offsets, sizes, strict=True))
        self.bytes += sum(sizes)
        self._next = next_offset

    def finish(self, offset: int) -> bool:
        """A message is done with; False if it was not among the unfinished."""
        size = self._sizes.pop(offset, -1)
        if size < 0:
            return False
        self.bytes -= size
        self.finished += 1
        return True

    def room(self) -> int:
        """How many messages may be pulled now; 0 stops pulling."""
        limits = self.limits
        if not self._sizes:
            return limits.messages
        if self.bytes >= limits.bytes or self._next - self.commit_offset >= limits.span:
            return 0
        return max(0, limits.messages - len(self._sizes))

    def drained(self) -> bool:
        """Whether pulling is worth while again after it was stopped: not for every single message."""
        limits = self.limits
        return (
            len(self._sizes) <= limits.messages // 2
            and self.bytes <= limits.bytes // 2
            and (not self._sizes or self._next - self.commit_offset < limits.span)
        )

    def why_full(self) -> str:
        """Which limit stops the pulling, for people."""
        limits, count = self.limits, len(self._sizes)
        if count >= limits.messages:
            return f"{count} messages are unfinished, allowed are {limits.messages}"
        if count and self.bytes >= limits.bytes:
            return f"unfinished messages take {self.bytes:,} bytes, allowed are {limits.bytes:,}"
        if self._next - self.commit_offset >= limits.span:
            return (
                f"offset {self.commit_offset} is unfinished and {self._next - self.commit_offset} offsets "
                f"behind it were pulled, allowed are {limits.span}"
            )
        return ""
