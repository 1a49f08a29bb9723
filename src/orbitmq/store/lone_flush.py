"""Whether a flush that a single sender waits for is better done on the event loop itself.

Handing it to the disk thread and back costs two wake-ups, as much CPU as a quick device's flush. So the loop does it,
but only while the device answers within a fraction of a millisecond and the loop has nothing better to do. One slow
flush is all that a device may cost the loop before the thread takes over, the slower it was the longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

QUICK_S = 0.0005
"""The moving average of all flushes has to stay below this."""
WEIGHT = 1 / 16
UNKNOWN_S = 0.002
MOST_BYTES = 64 * 1024
BUSY_SHARE = 0.75
WINDOW_S = 0.02


class LoneFlush:
    """Asked and told on the loop's thread only: `busy_clock` counts that thread's own CPU time."""

    __slots__ = ("_average_s", "_busy_clock", "_busy_s", "_clock", "_idle", "_looked_s")

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        busy_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._busy_clock = busy_clock
        self._average_s = UNKNOWN_S
        self._looked_s = clock()
        self._busy_s = busy_clock()
        self._idle = False

    def is_welcome(self, size: int) -> bool:
        return self._average_s < QUICK_S and size <= MOST_BYTES and self._loop_has_time()

    def took(self, seconds: float) -> None:
        """Of every flush, wherever it was done. After one of a second it takes some ninety quick ones to forget it."""
        self._average_s += (seconds - self._average_s) * WEIGHT

    def _loop_has_time(self) -> bool:
        now = self._clock()
        passed = now - self._looked_s
        if passed >= WINDOW_S:
            busy = self._busy_clock()
            self._idle = busy - self._busy_s < passed * BUSY_SHARE
            self._looked_s, self._busy_s = now, busy
        return self._idle
