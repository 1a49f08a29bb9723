"""Whether this controller may speak: one at a time does, and one that cannot be sure is silent. Pure."""

from __future__ import annotations

from orbitmq.cluster.controller.engines import Hold


class Leadership:
    """Asked before every answer. A process that was frozen finds its time over when it wakes."""

    def __init__(self) -> None:
        self._until_ms = float("-inf")
        self.address = ""
        """Of the active controller, as far as is known."""

    def observe(self, hold: Hold) -> None:
        self.address = hold.address
        if hold.active:
            self._until_ms = max(self._until_ms, hold.until_ms)
        else:
            self._until_ms = float("-inf")

    def valid(self, now_ms: float) -> bool:
        return now_ms < self._until_ms

    def give_up(self) -> None:
        self._until_ms = float("-inf")
        self.address = ""
