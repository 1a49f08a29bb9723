from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.core.batches import Gathering, Limits, cut, cut_even

LIMITS = st.builds(Limits, st.integers(1, 200), st.integers(1, 10))


@given(st.lists(st.integers(1, 100), max_size=60), LIMITS)
def test_batches_cover_everything_in_order_within_the_limits(sizes: list[int], limits: Limits) -> None:
    pieces = list(cut(sizes, limits))
    assert [at for start, stop in pieces for at in range(start, stop)] == list(range(len(sizes)))
    for start, stop in pieces:
        assert stop - start <= limits.max_messages
        assert sum(sizes[start:stop]) <= limits.max_bytes or stop - start == 1
    for (start, stop), (_, after) in pairwise(pieces):
        # No batch could have taken the first message of the next.
        assert after > stop
        assert sum(sizes[start : stop + 1]) > limits.max_bytes or stop - start == limits.max_messages


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=60), LIMITS, st.integers(0, 20))
def test_the_quick_cut_keeps_the_limits_too(bodies: list[bytes], limits: Limits, overhead: int) -> None:
    start = 0
    while start < len(bodies):
        stop = cut_even(bodies, start, overhead, limits)
        assert start < stop <= len(bodies)
        size = sum(len(body) + overhead for body in bodies[start:stop])
        assert stop - start == 1 or (size <= limits.max_bytes and stop - start <= limits.max_messages)
        start = stop


def test_the_quick_cut_fills_batches_of_equal_bodies() -> None:
    assert cut_even([b"x" * 8] * 100, 0, 2, Limits(95, 50)) == 9
    assert cut_even([b"x" * 8] * 100, 95, 2, Limits(95, 50)) == 100


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), max_size=60), LIMITS, st.floats(0, 2))
def test_gathering_loses_nothing_and_keeps_the_order(
    arrivals: list[tuple[int, float]], limits: Limits, linger_s: float
) -> None:
    gathering: Gathering[int] = Gathering(limits, linger_s)
    sent: list[list[int]] = []
    sizes = [size for size, _ in arrivals]
    now = 0.0
    for number, (size, step_s) in enumerate(arrivals):
        now += step_s
        if gathering.items and gathering.due <= now:
            sent.append(gathering.take())
        if ready := gathering.add(number, size, now):
            sent.append(ready)
        if gathering.items:
            assert gathering.due <= now + linger_s
    sent.append(gathering.take())
    assert [number for batch in sent for number in batch] == list(range(len(arrivals)))
    for batch in sent:
        assert len(batch) <= limits.max_messages
        assert len(batch) <= 1 or sum(sizes[at] for at in batch) <= limits.max_bytes
    assert gathering.due == float("inf")
