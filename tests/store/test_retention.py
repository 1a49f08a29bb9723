from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.store.retention import LogFile, RetentionRules, Why, refuses_writes, up_to, victims, why_clean

HOUR_MS = 3_600_000
RULES = RetentionRules()
NOW = 1_000 * HOUR_MS


def files(*ages_h: float) -> list[LogFile]:
    return [LogFile(i * 100, i * 100 + 100, NOW - int(age * HOUR_MS)) for i, age in enumerate(ages_h)]


@pytest.mark.parametrize(
    ("used", "hour", "manual", "why"),
    [
        (0.10, 3, False, Why.NOT_DUE),
        (0.10, 4, False, Why.HOUR),
        (0.10, 3, True, Why.MANUAL),
        (0.75, 3, False, Why.DISK),
        (0.85, 3, False, Why.FORCED),
        (0.95, 4, True, Why.FORCED),
    ],
)
def test_what_makes_it_time_to_clean(used: float, hour: int, manual: bool, why: Why) -> None:
    assert why_clean(RULES, used, hour, manual) is why


def test_force_can_be_forbidden() -> None:
    assert why_clean(RetentionRules(may_force=False), 0.99, 3, False) is Why.DISK


@pytest.mark.parametrize("why", [Why.HOUR, Why.DISK, Why.MANUAL])
def test_expired_files_go_up_to_the_first_that_is_young(why: Why) -> None:
    found = files(90, 73, 72, 71.9, 80, 0)
    assert victims(RULES, found, why, NOW) == found[:3]


def test_the_last_file_stays_whatever_happens() -> None:
    for why in Why:
        assert victims(RULES, files(1000), why, NOW, manual=True) == []
        assert victims(RULES, [], why, NOW) == []


def test_force_takes_young_ones_too_but_only_ten_a_round() -> None:
    found = files(*[1] * 30)
    assert victims(RULES, found, Why.FORCED, NOW) == found[:10]
    assert victims(RULES, found, Why.FORCED, NOW, manual=True) == found[:10]


def test_by_hand_everything_expired_goes_at_once() -> None:
    found = files(*[100] * 30)
    assert victims(RULES, found, Why.HOUR, NOW) == found[:10]
    assert victims(RULES, found, Why.MANUAL, NOW, manual=True) == found[:29]
    assert victims(RULES, found, Why.FORCED, NOW, manual=True) == found[:29]


def test_files_before_a_needed_offset() -> None:
    found = files(1, 1, 1)
    assert [len(up_to(found, offset)) for offset in (0, 99, 100, 199, 200, 999)] == [0, 0, 1, 1, 2, 3]


def test_writes_are_refused_from_the_mark_on() -> None:
    assert [refuses_writes(RULES, used) for used in (0.89, 0.90, 0.99)] == [False, True, True]


@given(
    st.lists(st.integers(0, 200), max_size=40),
    st.sampled_from(list(Why)),
    st.booleans(),
    st.integers(1, 12),
)
def test_what_goes_is_always_a_beginning_and_never_young_without_force(
    ages: list[int], why: Why, manual: bool, per_round: int
) -> None:
    rules = RetentionRules(files_per_round=per_round)
    found = files(*ages)
    gone = victims(rules, found, why, NOW, manual=manual)
    assert gone == found[: len(gone)]
    assert len(gone) < max(1, len(found))
    if why is not Why.FORCED:
        assert all(file.modified_ms + rules.keep_ms <= NOW for file in gone)
    if not manual:
        assert len(gone) <= per_round
