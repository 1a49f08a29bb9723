"""Cuts messages into batches: by size, by number, and by how long the first may wait for company.

Sans-io: sizes and times are numbers, messages are anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

MAX_BATCH_BYTES: Final = 512 * 1024
MAX_BATCH_MESSAGES: Final = 4096
LINGER_S: Final = 0.005

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    max_bytes: int = MAX_BATCH_BYTES
    max_messages: int = MAX_BATCH_MESSAGES


def cut(sizes: Sequence[int], limits: Limits) -> Iterator[tuple[int, int]]:
    """(start, stop) of each batch, as few as can be without changing the order.

    A message above the limit stands alone: whoever sends it finds out whether the broker takes it.
    """
    start = total = 0
    for at, size in enumerate(sizes):
        if at > start and (total + size > limits.max_bytes or at - start >= limits.max_messages):
            yield start, at
            start, total = at, 0
        total += size
    if start < len(sizes):
        yield start, len(sizes)


def cut_even(bodies: Sequence[bytes], start: int, overhead: int, limits: Limits) -> int:
    """Where the batch that starts at `start` ends, for bodies of about one size: the same idea in a few steps.

    The count is guessed from the first body and halved until the sum fits, so that no loop runs per message.
    """
    guess = limits.max_bytes // (len(bodies[start]) + overhead)
    count = max(1, min(guess, limits.max_messages, len(bodies) - start))
    while count > 1:
        if sum(map(len, bodies[start : start + count])) + count * overhead <= limits.max_bytes:
            break
        count //= 2
    return start + count


@dataclass(slots=True)
class Gathering(Generic[T]):
    """Messages of one place that wait for company. `add` tells when it must go; `due` when it may wait no longer."""

    limits: Limits
    linger_s: float
    items: list[T] = field(default_factory=list)
    total: int = 0
    due: float = float("inf")

    def add(self, item: T, size: int, now: float) -> list[T] | None:
        """Takes a message. Gives the batch that must be sent now: the full one, or the one before a large message."""
        ready: list[T] | None = None
        if self.items and self.total + size > self.limits.max_bytes:
            ready = self.take()
        if not self.items:
            self.due = now + self.linger_s
        self.items.append(item)
        self.total += size
        if ready is None and (
            len(self.items) >= self.limits.max_messages or self.total >= self.limits.max_bytes
        ):
            ready = self.take()
        return ready

    def take(self) -> list[T]:
        """Everything that waits; afterwards nothing does."""
        items = self.items
        self.items, self.total, self.due = [], 0, float("inf")
        return items
