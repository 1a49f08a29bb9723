from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.core.faults import ISOLATION_MS, LONG_STEPS, STEPS, Faults


@pytest.mark.parametrize(
    ("latency_s", "pause_s"), [(0.5, 0), (0.55, 2), (1.8, 5), (3.0, 6), (5.0, 10), (15.0, 30), (100.0, 30)]
)
def test_the_slower_the_longer_avoided(latency_s: float, pause_s: float) -> None:
    faults = Faults()
    faults.note("a", latency_s, 100.0)
    assert faults.avoided("a", 100.0 + pause_s - 0.001) is (pause_s > 0)
    assert not faults.avoided("a", 100.0 + pause_s)


def test_the_table_of_older_clients() -> None:
    faults = Faults(LONG_STEPS, 600_000)
    faults.note("a", 1.0, 0.0)
    assert faults.avoided("a", 59.9) and not faults.avoided("a", 60.0)
    faults.isolate("a", 100.0)
    assert faults.avoided("a", 699.0) and not faults.avoided("a", 700.0)


def test_a_silent_broker_is_isolated_and_forgiven_by_time_or_by_an_answer() -> None:
    faults = Faults()
    assert not faults.any
    faults.isolate("a", 0.0)
    assert faults.any
    assert faults.healthy(["a", "b"], 1.0) == ["b"]
    assert faults.healthy(["a", "b"], ISOLATION_MS / 1000) == ["a", "b"]
    assert not faults.any
    faults.isolate("a", 20.0)
    faults.note("a", 0.01, 21.0)
    assert not faults.avoided("a", 21.0)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 100), st.floats(0, 5), st.booleans()), max_size=40
    )
)
def test_nobody_is_avoided_longer_than_the_table_says(
    events: list[tuple[str, float, float, bool]],
) -> None:
    faults = Faults()
    now = 0.0
    for broker, latency_s, step_s, silent in events:
        now += step_s
        if silent:
            faults.isolate(broker, now)
        else:
            faults.note(broker, latency_s, now)
            assert 0 <= faults.expected_s(broker, now) <= 100.0
    longest_s = max(ISOLATION_MS, *(pause for _, pause in STEPS)) / 1000
    assert faults.healthy("abc", now + longest_s) == ["a", "b", "c"]
    assert not faults.any


def test_the_mean_follows_and_fades() -> None:
    faults = Faults()
    assert faults.expected_s("a", 0.0) == 0.0
    faults.note("a", 0.2, 0.0)
    assert faults.expected_s("a", 0.0) == pytest.approx(0.2)
    assert faults.expected_s("a", 2.0) == pytest.approx(0.1)
    for _ in range(200):
        faults.note("a", 0.05, 0.0)
    assert faults.expected_s("a", 0.0) == pytest.approx(0.05, rel=0.01)


def test_another_process_in_a_brokers_place_starts_with_a_clean_slate() -> None:
    faults = Faults()
    faults.note("a", 3.0, 1.0)
    faults.isolate("a", 1.0)
    faults.forgive("a")
    assert not faults.avoided("a", 1.0)
    assert faults.expected_s("a", 1.0) == 0.0
    faults.forgive("never heard of")
