"""Which queue a message goes to: in turn, to the quickest broker, or always the same for one key.

Sans-io: queues are anything with a broker's name; time and randomness are parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from random import Random
from typing import Final, Protocol, TypeVar

from orbitmq.client.core.faults import Faults
from orbitmq.wire.java_hash import string_hash


class HasBroker(Protocol):
    @property
    def broker(self) -> str: ...


Q = TypeVar("Q", bound=HasBroker)
_MOST_TURNS: Final = 1 << 30


class Choice(Enum):
    """How queues are chosen for messages without an order key."""

    ROUND_ROBIN = "round_robin"
    LEAST_LATENCY = "least_latency"


class Turns:
    """Gives queues in turn from a random start, leaving out brokers that failed while others are left."""

    def __init__(self, rng: Random) -> None:
        self._next = rng.randrange(1 << 16)

    def plain(self, queues: Sequence[Q]) -> Q:
        """The next queue, whatever its broker; `queues` must not be empty."""
        self._next = turn = self._next + 1 if self._next < _MOST_TURNS else 0
        return queues[turn % len(queues)]

    def choose(self, queues: Sequence[Q], faults: Faults, now: float, avoid: Collection[str] = ()) -> Q:
        """Brokers that just failed this message are worse than those in isolation, which may be well again."""
        first = self.plain(queues)
        if not avoid and not faults.any:
            return first
        start = self._next
        second_best: Q | None = None
        for step in range(len(queues)):
            queue = queues[(start + step) % len(queues)]
            if queue.broker in avoid:
                continue
            if not faults.avoided(queue.broker, now):
                self._next = start + step
                return queue
            second_best = second_best or queue
        return second_best or first

    def quickest(self, queues: Sequence[Q], faults: Faults, now: float, avoid: Collection[str] = ()) -> Q:
        """A queue of the broker that is expected to answer first; in turn among its queues."""
        names = dict.fromkeys(queue.broker for queue in queues)
        candidates = [name for name in names if name not in avoid] or list(names)
        candidates = faults.healthy(candidates, now) or candidates
        best = min(candidates, key=lambda name: faults.expected_s(name, now))
        return self.plain([queue for queue in queues if queue.broker == best])


def queue_index(order_key: str | int, count: int) -> int:
    """The place of a key among `count` queues, the one that official clients compute for the same key."""
    if isinstance(order_key, str):
        number = string_hash(order_key)
    elif -(1 << 31) <= order_key < 1 << 31:
        number = order_key
    else:
        number = _int32(order_key ^ (order_key & 0xFFFFFFFFFFFFFFFF) >> 32)
    # Java's remainder has the sign of the dividend, and the selector takes its absolute value.
    return abs(number) % count


def _int32(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number
