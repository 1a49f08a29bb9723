"""What a special message kind adds to the broker: requests it answers, drafts it diverts, work it does by itself."""

from __future__ import annotations

from orbitmq.broker.send import Draft
from orbitmq.broker.timers import Timers
from orbitmq.net.service import Handler


class Room:
    """Base of the rooms. A room overrides what it needs; `Broker.start` asks each of them in the order of `ROOMS`."""

    def handlers(self) -> dict[int, Handler]:
        """Requests this room answers, by code."""
        return {}

    def divert(self, draft: Draft) -> None:
        """A draft that is not plain passes here before it is stored; the room may change where it goes."""

    def start(self, timers: Timers) -> None:
        """The store is open and clients are about to come."""

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the earliest message that waits in this room is due, by the messages' clock."""
        return None

    def time_has_passed(self) -> bool:
        """Does at once a piece of what is due; whether there is more. For clocks that jump, as in tests."""
        return False

    def stop(self) -> None:
        """Clients are gone, the store is still open."""
