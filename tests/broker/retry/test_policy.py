"""How often and after how long: pure, so that 16 tries over hours take no time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orbitmq.broker.retry.policy import (
    CLIENT_LIMIT_VERSION,
    DEAD,
    MAX_REASON_CHARS,
    MAX_RECONSUME_TIMES,
    clean_reason,
    limit_of,
    next_level,
    next_times,
)
from orbitmq.config import BrokerConfig
from orbitmq.wire.properties import decode_properties, encode_properties

INT32 = st.integers(-(2**31), 2**31 - 1)


def test_sixteen_steps_from_ten_seconds_to_two_hours_and_then_dead() -> None:
    delays_ms = BrokerConfig().delay_levels_ms()
    times, waited_s = 0, []
    while (level := next_level(times, 16, 0, len(delays_ms))) != DEAD:
        waited_s.append(delays_ms[level - 1] // 1000)
        times = next_times(times)
    minute, hour = 60, 3600
    assert waited_s == [
        *(10, 30, minute, 2 * minute, 3 * minute, 4 * minute, 5 * minute, 6 * minute, 7 * minute),
        *(8 * minute, 9 * minute, 10 * minute, 20 * minute, 30 * minute, hour, 2 * hour),
    ]


def test_further_tries_come_every_two_hours() -> None:
    assert [next_level(times, 100, 0, 18) for times in (15, 16, 40, 99)] == [18, 18, 18, 18]
    assert next_level(100, 100, 0, 18) == DEAD


def test_the_consumer_may_choose_a_level_or_give_up_at_once() -> None:
    assert next_level(0, 16, 5, 18) == 5
    assert next_level(0, 16, 99, 18) == 18
    assert next_level(0, 16, -1, 18) == DEAD
    assert next_level(16, 16, 5, 18) == DEAD


def test_whose_limit_counts() -> None:
    assert limit_of(16, 3, CLIENT_LIMIT_VERSION) == 3
    assert limit_of(16, None, 400) == 16
    assert limit_of(16, 3, CLIENT_LIMIT_VERSION - 1) == 16


@given(times=INT32, limit=INT32, asked=INT32, levels=st.integers(1, 30))
def test_any_numbers_give_a_level_that_exists_or_dead(
    times: int, limit: int, asked: int, levels: int
) -> None:
    level = next_level(times, limit, asked, levels)
    assert level == DEAD or 1 <= level <= levels
    assert (level == DEAD) == (asked < 0 or times >= limit)
    assert 1 <= next_times(times) <= MAX_RECONSUME_TIMES


@given(st.text())
def test_any_reason_can_be_stored(text: str) -> None:
    reason = clean_reason(text)
    assert len(reason) <= MAX_REASON_CHARS
    assert "\n" not in reason
    if reason:
        stored = reason.encode("utf-8", "replace").decode()
        assert decode_properties(encode_properties({"DLQ_REASON": reason, "x": "y"})) == {
            "DLQ_REASON": stored,
            "x": "y",
        }
