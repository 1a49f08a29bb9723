"""Messages that are delivered later: by one of the delay levels, or at any moment up to 40 days ahead.

In: drafts with DELAY or TIMER_* properties (`rules`), requests to list and cancel, the passing of time.
Out: records in the schedule topic and in the timer topic, and at their moment new records in the real topics.

What waits lies in the log. Levels need only a position per queue, since a level's queue is in order of
delivery (`levels`). For timers there is an index by delivery time (`agenda`, with sorted files of `runs`
behind it) that can be made anew from the timer topic's queue. How far delivery has come is in a small
checkpoint, written when the log holds what it claims; so a crash may repeat the last few deliveries, and
never loses one.

Invariants: nothing is delivered before its time; a log file goes only after the timers in it were written
anew further on (`rolling`); a cancelled message is never delivered; the loop is held for a few milliseconds
at most.

May import the broker's own modules, `orbitmq.store`, `orbitmq.net` and `orbitmq.wire`.
"""

from __future__ import annotations

from orbitmq.broker.timing.room import Timing

__all__ = ["Timing"]
