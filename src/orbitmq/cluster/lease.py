"""A right that ends by itself: whoever holds it need not be told, and nobody else may act before it has ended."""

from __future__ import annotations

from collections.abc import Callable


class Lease:
    """Counted from when the request for it was SENT, so it ends here before whoever granted it thinks so.

    `clock_s` goes on while the machine sleeps; it never jumps.
    """

    __slots__ = ("_clock_s", "_until")

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._until = float("-inf")

    def renew(self, sent_s: float, length_s: float) -> None:
        """An answer that comes late, after a newer one, takes nothing away."""
        self._until = max(self._until, sent_s + length_s)

    def give_up(self) -> None:
        self._until = float("-inf")

    @property
    def valid(self) -> bool:
        return self._clock_s() < self._until
