from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.broker.stats_window import MINUTE, NO_RATE, Window

STEP = 10_000


def sampled(adds: list[int], start_ms: int = 0) -> tuple[Window, int]:
    """A window that saw one addition per ten seconds."""
    window = Window(start_ms)
    now = start_ms
    for add in adds:
        now += STEP
        window.value += add
        window.times += bool(add)
        window.sample(MINUTE, now)
    return window, now


def test_a_steady_counter_shows_its_rate() -> None:
    window, now = sampled([20] * 12)
    rate = window.rate(MINUTE, now)
    assert rate.sum == 120
    assert rate.tps == pytest.approx(2.0)
    assert rate.avgpt == pytest.approx(20.0)


def test_a_young_counter_is_divided_by_its_age() -> None:
    window, now = sampled([20, 20])
    rate = window.rate(MINUTE, now)
    assert rate.sum == 40
    assert rate.tps == pytest.approx(2.0)


def test_an_idle_minute_is_zero_again() -> None:
    window, now = sampled([20] * 6 + [0] * 6)
    assert window.rate(MINUTE, now) == NO_RATE


def test_an_idle_counter_keeps_no_new_samples() -> None:
    window, _ = sampled([20] + [0] * 1000)
    assert len(window._levels[MINUTE]) == 2


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_sparse_samples_say_the_same_as_all_of_them(adds: list[int]) -> None:
    window, now = sampled(adds)
    assert window.rate(MINUTE, now).sum == sum(adds[-6:])
