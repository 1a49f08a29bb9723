"""C × (T1 + T2) / T1 from measured times."""

from __future__ import annotations

from orbitmq.client.core.advice import MEMORY_SAMPLES, MIN_SAMPLES, HandlingTimes


def measured(
    busy_ms: float, total_ms: float, *, samples: int = MIN_SAMPLES, processors: int = 1
) -> HandlingTimes:
    times = HandlingTimes(processors)
    for _ in range(samples):
        times.record(busy_ms / 1000, total_ms / 1000)
    return times


def test_a_message_that_waits_nine_tenths_of_its_time_wants_ten_at_once() -> None:
    advice = measured(2, 20).advice()
    assert advice is not None
    assert advice.concurrency == 10
    assert round(advice.busy_ms, 6) == 2 and round(advice.waiting_ms, 6) == 18
    assert "2 ms of work and 18 ms of waiting: 10 at the same time" in str(advice)


def test_pure_work_wants_one_per_processor() -> None:
    assert measured(5, 5).advice().concurrency == 1  # type: ignore[union-attr]
    assert measured(5, 5, processors=4).advice().concurrency == 4  # type: ignore[union-attr]


def test_few_samples_give_no_advice() -> None:
    assert measured(1, 2, samples=MIN_SAMPLES - 1).advice() is None


def test_old_samples_fade() -> None:
    times = measured(1, 100, samples=1000)
    for _ in range(MEMORY_SAMPLES * 8):
        times.record(0.001, 0.002)
    assert times.advice().concurrency == 2  # type: ignore[union-attr]


def test_no_measurable_work_stays_within_bounds() -> None:
    advice = measured(0, 3_600_000).advice()
    assert advice is not None and advice.concurrency == 1000


def test_only_a_factor_of_two_is_worth_a_word() -> None:
    advice = measured(2, 20).advice()
    assert advice is not None
    assert [n for n in (1, 5, 6, 10, 19, 20, 40) if advice.differs_from(n)] == [1, 5, 20, 40]
