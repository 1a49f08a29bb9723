"""Unfinished offsets: nothing before the committed one is ever missing."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orbitmq.client.core.process_queue import Limits, ProcessQueue


class Model(RuleBasedStateMachine):
    """Compared with a plain set of unfinished offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(5, Limits(messages=20, bytes=500, span=60))
        self.open: dict[int, int] = {}
        self.end = 5
        self.finished = 0

    @rule(gaps=st.lists(st.integers(0, 3), max_size=8), size=st.integers(1, 90), rest=st.integers(0, 3))
    def page(self, gaps: list[int], size: int, rest: int) -> None:
        offsets = []
        at = self.end
        for gap in gaps:
            offsets.append(at + gap)
            at += gap + 1
        self.end = at + rest
        self.queue.add(offsets, [size] * len(offsets), self.end)
        self.open.update(dict.fromkeys(offsets, size))

    @rule(pick=st.integers(0, 200))
    def finish(self, pick: int) -> None:
        offset = sorted(self.open)[pick % len(self.open)] if self.open else pick
        known = offset in self.open
        assert self.queue.finish(offset) is known
        self.finished += known
        self.open.pop(offset, None)
        assert self.queue.finish(offset) is False

    @invariant()
    def agrees(self) -> None:
        queue = self.queue
        assert len(queue) == len(self.open)
        assert queue.bytes == sum(self.open.values())
        assert queue.commit_offset == min(self.open, default=self.end)
        assert queue.newest == max(self.open, default=None)
        assert queue.next_offset == self.end
        assert queue.finished == self.finished
        span = self.end - queue.commit_offset
        full = bool(self.open) and (len(self.open) >= 20 or queue.bytes >= 500 or span >= 60)
        assert (queue.room() == 0) is full
        assert bool(queue.why_full()) is full
        assert queue.room() <= 20
        if queue.drained():
            assert queue.room() > 0


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_pulling_starts_again_only_when_half_is_done() -> None:
    queue = ProcessQueue(0, Limits(messages=10))
    queue.add(range(10), [1] * 10, 10)
    assert queue.room() == 0
    for offset in range(4):
        queue.finish(offset)
        assert not queue.drained()
    queue.finish(4)
    assert queue.drained() and queue.room() == 5


def test_one_stuck_message_stops_the_queue_by_its_span() -> None:
    queue = ProcessQueue(0, Limits(messages=10, span=15))
    queue.add([0], [1], 1)
    for start in range(1, 16):
        queue.add([start], [1], start + 1)
        queue.finish(start)
    assert queue.room() == 0
    assert "offset 0 is unfinished and 16 offsets behind it" in queue.why_full()
    queue.finish(0)
    assert queue.commit_offset == 16 and queue.room() == 10


def test_a_page_that_does_not_follow_is_refused() -> None:
    queue = ProcessQueue(7, Limits())
    for offsets, end in (([6], 8), ([], 6), ([8], 8)):
        with pytest.raises(ValueError, match="does not follow offset 7"):
            queue.add(offsets, [1] * len(offsets), end)
    assert queue.next_offset == 7 and len(queue) == 0
