"""Which timers are next. Memory holds the next seconds in order and the newest arrivals; all else lies in
sorted runs.

`bound` divides: timers below it are in `_near` (from runs, in order) or in `_heap` (arrived since), all
others in `_far` (arrived since the last flush), in `_frozen` (being flushed) or in a run. The bound only
moves up.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from typing import Final

from orbitmq.broker.timing.runs import FOREVER, NEVER, Columns, Entry, Key, Run, joined, take
from orbitmq.wire.numeric import np

HORIZON_MS: Final = 8_000
LEAD_MS: Final = 2_000
NEAR_LIMIT: Final = 1 << 13
_LOOK: Final = 1 << 12


class Agenda:
    def __init__(self, *, horizon_ms: int = HORIZON_MS, near_limit: int = NEAR_LIMIT) -> None:
        self._horizon_ms = horizon_ms
        self._lead_ms = min(LEAD_MS, horizon_ms // 2)
        self._near_limit = near_limit
        self.bound: Key = NEVER
        self.runs: list[Run] = []
        self.rolled = 0
        """Timers before this queue offset have been written anew further on, or are done."""
        self._near: list[Entry] = []
        self._at = 0
        self._heap: list[Entry] = []
        self._far: list[array[int]] = _empty()
        self._far_first_ms = FOREVER[0]
        self._frozen: Columns | None = None

    # --- timers come ----------------------------------------------------------------------------------------

    def add(self, due: int, queue_offset: int, position: int, size: int) -> None:
        if (due, queue_offset) < self.bound:
            heapq.heappush(self._heap, (due, queue_offset, position, size))
            return
        far = self._far
        far[0].append(due)
        far[1].append(queue_offset)
        far[2].append(position)
        far[3].append(size)
        self._far_first_ms = min(due, self._far_first_ms)

    def put_back(self, entries: list[Entry]) -> None:
        """Taken, but not delivered after all."""
        for entry in entries:
            heapq.heappush(self._heap, entry)

    # --- timers go ------------------------------------------------------------------------------------------

    def take_due(self, now_ms: int, most: int) -> list[Entry]:
        """The next timers whose time has come, in order."""
        taken: list[Entry] = []
        heap = self._heap
        while len(taken) < most:
            self._refill(now_ms)
            near, at = self._near, self._at
            if at < len(near) and (not heap or near[at] < heap[0]):
                if near[at][0] > now_ms:
                    break
                entry = near[at]
                self._at = at + 1
            elif heap and heap[0][0] <= now_ms:
                entry = heapq.heappop(heap)
            else:
                break
            if entry[1] >= self.rolled:
                taken.append(entry)
        return taken

    def head(self, now_ms: int) -> Key | None:
        """The first timer of the next seconds; None when nothing is due for a while."""
        self._refill(now_ms)
        return self.first

    @property
    def first(self) -> Key | None:
        """The first timer in memory; all others lie behind the bound."""
        firsts = self._near[self._at : self._at + 1] + self._heap[:1]
        return min(firsts)[:2] if firsts else None

    def next_ms(self, now_ms: int) -> int | None:
        """When to look again: a timer is due, or one that is not in memory comes near."""
        head = self.head(now_ms)
        times = [head[0]] if head else []
        beyond = self._first_beyond() if self._at >= len(self._near) else None
        if beyond is not None:
            times.append(max(beyond, self.bound[0]) - self._lead_ms)
        return min(times, default=None)

    def _first_beyond(self) -> int | None:
        """The first delivery time at or above the bound."""
        times = [run.key(run.cursor)[0] for run in self.runs if run.cursor < run.count]
        if self._far[0]:
            times.append(self._far_first_ms)
        if self._frozen is not None and self._frozen.rows:
            times.append(int(self._frozen.due.min()))
        return min(times, default=None)

    @property
    def pending(self) -> int:
        """How many timers wait, among them those that are cancelled. Looks at all of them: not for every step."""
        loose = [entry[1] for entry in (*self._near[self._at :], *self._heap)]
        stored = [_columns(self._far)] + [run.columns.part(run.cursor, run.count) for run in self.runs]
        if self._frozen is not None:
            stored.append(self._frozen.where(~self._frozen.below(self.bound)))
        found = sum(int((part.queue_offset >= self.rolled).sum()) for part in stored)
        return found + sum(queue_offset >= self.rolled for queue_offset in loose)

    def _refill(self, now_ms: int) -> None:
        while self._at >= len(self._near) and self.bound[0] <= now_ms + self._lead_ms:
            before = self.bound
            # A step back of the clock must not take the bound with it.
            goal = max((now_ms + self._horizon_ms, 0), (before[0] + 1, 0))
            if not (self.runs or self._far[0] or self._frozen):
                # Most brokers have no timer at all: nothing to look through, in particular not with numpy.
                self._near, self._at, self.bound = [], 0, goal
                return
            goal = self._with_few_loose(before, goal)
            starts = [run.cursor for run in self.runs]
            columns, ends, reached = take(self.runs, starts, self._near_limit, goal)
            for run, end in zip(self.runs, ends, strict=True):
                run.cursor = end
            parts = [columns, *self._leave_far(reached)]
            if self._frozen is not None:
                frozen = self._frozen
                parts.append(frozen.where(frozen.below(reached) & ~frozen.below(before)))
            self._near = joined(parts).in_order().entries()
            self._at = 0
            self.bound = reached

    def _with_few_loose(self, before: Key, goal: Key) -> Key:
        """A nearer goal, when more timers than fit lie below it outside of the runs."""
        times = [np.array(self._far[0], dtype=np.int64)]
        if self._frozen is not None:
            times.append(self._frozen.due)
        due = np.concatenate(times)
        due = due[(due >= before[0]) & (due < goal[0])]
        if len(due) <= self._near_limit:
            return goal
        nearer = int(np.partition(due, self._near_limit)[self._near_limit])
        return max((nearer, 0), (before[0] + 1, 0))

    def _leave_far(self, reached: Key) -> list[Columns]:
        if not self._far[0]:
            return []
        far = _columns(self._far)
        mask = far.below(reached)
        if not mask.any():
            return []
        self._set_far(far.where(~mask))
        return [far.where(mask)]

    def _set_far(self, columns: Columns) -> None:
        self._far = _arrays(columns)
        self._far_first_ms = int(columns.due.min()) if columns.rows else FOREVER[0]

    # --- to and from runs -----------------------------------------------------------------------------------

    @property
    def far_count(self) -> int:
        return len(self._far[0])

    @property
    def frozen(self) -> Columns | None:
        return self._frozen

    def freeze(self, before: int) -> Columns:
        """Hands out the far timers before a queue offset, to be written as a run; they stay known until then."""
        assert self._frozen is None, "one flush at a time"
        far = _columns(self._far)
        self._frozen = far.where(far.queue_offset < before)
        self._set_far(far.where(far.queue_offset >= before))
        return self._frozen

    def flushed(self, run: Run | None) -> None:
        self._frozen = None
        if run is not None:
            self.add_run(run)

    def flush_failed(self) -> None:
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            self._set_far(joined([_columns(self._far), frozen.where(~frozen.below(self.bound))]))

    def add_run(self, run: Run) -> None:
        run.cursor = run.first_from(self.bound)
        self.runs.append(run)

    def replace_runs(self, old: list[Run], new: Run | None) -> None:
        self.runs = [run for run in self.runs if run not in old]
        if new is not None:
            self.add_run(new)

    # --- looking --------------------------------------------------------------------------------------------

    def after(self, key: Key, most: int) -> list[Entry]:
        """The next timers above a key, in order, without taking them."""
        mark = (*key, FOREVER[0], FOREVER[0])
        first = bisect_right(self._near, mark, self._at)
        found = [entry for entry in self._near[first:] if entry[1] >= self.rolled][:most]
        found += heapq.nsmallest(most, [e for e in self._heap if e > mark and e[1] >= self.rolled])
        loose = [_columns(self._far)]
        if self._frozen is not None:
            loose.append(self._frozen.where(~self._frozen.below(self.bound)))
        start = (key[0], key[1] + 1)
        for part in loose:
            alive = part.where(~part.below(start) & (part.queue_offset >= self.rolled))
            found += alive.in_order().part(0, most).entries()
        for run in self.runs:
            found += self._alive_in(run, max(run.cursor, run.first_from(start)), most)
        return sorted(found)[:most]

    def _alive_in(self, run: Run, first: int, most: int) -> list[Entry]:
        alive: list[Entry] = []
        while first < run.count and len(alive) < most:
            part = run.columns.part(first, first + _LOOK)
            alive += part.where(part.queue_offset >= self.rolled).entries()
            first += _LOOK
        return alive[:most]


def _empty() -> list[array[int]]:
    return [array("q"), array("q"), array("q"), array("q")]


def _columns(arrays: list[array[int]]) -> Columns:
    due, queue_offset, position, size = arrays
    return Columns(
        np.array(due, dtype=np.int64),
        np.array(queue_offset, dtype=np.int64),
        np.array(position, dtype=np.int64),
        np.array(size, dtype=np.int64),
    )


def _arrays(columns: Columns) -> list[array[int]]:
    made = _empty()
    for target, column in zip(made, columns, strict=True):
        target.frombytes(column.tobytes())
    return made
