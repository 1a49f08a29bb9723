"""When a failed message comes again: delay levels as brokers know them, and pauses of an ordered queue."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# messageDelayLevel of a broker that nobody changed: level 1 is the first.
LEVELS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
BROKER_DECIDES: Final = 0
STRAIGHT_TO_DEAD: Final = -1
# The first retry waits as long as level 3, the next as long as level 4.
FIRST_RETRY_LEVEL: Final = 3
DEFAULT_MAX_RETRIES: Final = 16

ORDERED_PAUSE_S: Final = 1.0
ORDERED_SHORTEST_S: Final = 0.01
ORDERED_LONGEST_S: Final = 30.0


def level_for(after_s: float | None) -> int:
    """The level that waits at least this long, the last one for more; without a time the broker decides."""
    if after_s is None:
        return BROKER_DECIDES
    return min(bisect_left(LEVELS_S, after_s) + 1, len(LEVELS_S))


def own_level(failed_before: int) -> int:
    """The level a client gives a message that it stores for retry itself."""
    return min(FIRST_RETRY_LEVEL + failed_before, len(LEVELS_S))


def ordered_pause_s(after_s: float | None) -> float:
    """How long an ordered queue stands still after a failure."""
    wanted = ORDERED_PAUSE_S if after_s is None else after_s
    return min(max(wanted, ORDERED_SHORTEST_S), ORDERED_LONGEST_S)
