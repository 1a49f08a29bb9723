"""Delays of failed messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.core.back_off import LEVELS_S, level_for, ordered_pause_s, own_level


@pytest.mark.parametrize(
    ("after_s", "level"), [(None, 0), (0, 1), (1, 1), (1.5, 2), (30, 4), (61, 6), (7200, 18), (99_999, 18)]
)
def test_a_wish_is_rounded_up_to_the_next_delay(after_s: float | None, level: int) -> None:
    assert level_for(after_s) == level


@given(st.floats(0, 7200))
def test_no_message_comes_before_its_time(after_s: float) -> None:
    assert LEVELS_S[level_for(after_s) - 1] >= after_s


def test_own_retries_follow_the_brokers_steps() -> None:
    assert [own_level(failed) for failed in (0, 1, 15, 40)] == [3, 4, 18, 18]


def test_an_ordered_queue_rests_between_ten_milliseconds_and_thirty_seconds() -> None:
    assert [ordered_pause_s(after) for after in (None, 0, 5, 900)] == [1.0, 0.01, 5, 30.0]
