from __future__ import annotations

from collections import Counter
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.core.faults import Faults
from orbitmq.client.core.queue_choice import Turns, queue_index


class Queue(NamedTuple):
    broker: str
    queue_id: int


def queues(**counts: int) -> list[Queue]:
    return [Queue(name, number) for name, count in counts.items() for number in range(count)]


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32))
def test_every_queue_gets_its_turn(a: int, b: int, seed: int) -> None:
    turns, all_queues = Turns(Random(seed)), queues(a=a, b=b)
    counts = Counter(turns.plain(all_queues) for _ in range(3 * len(all_queues)))
    assert set(counts.values()) == {3}


@given(st.integers(0, 2**32), st.sets(st.sampled_from("abc")), st.sets(st.sampled_from("abc")))
def test_a_failed_broker_is_worse_than_an_isolated_one(seed: int, failed: set[str], ill: set[str]) -> None:
    faults = Faults()
    for name in ill:
        faults.isolate(name, 0.0)
    turns = Turns(Random(seed))
    for _ in range(12):
        chosen = turns.choose(queues(a=2, b=2, c=2), faults, 1.0, tuple(failed)).broker
        if best := set("abc") - failed - ill:
            assert chosen in best
        elif others := set("abc") - failed:
            assert chosen in others


def test_healthy_brokers_share_the_turns_of_an_isolated_one() -> None:
    faults = Faults()
    faults.isolate("b", 0.0)
    turns = Turns(Random(1))
    counts = Counter(turns.choose(queues(a=2, b=2, c=2), faults, 1.0).broker for _ in range(400))
    assert set(counts) == {"a", "c"}
    assert min(counts.values()) > 100


def test_the_quickest_broker_is_preferred_until_it_is_ill() -> None:
    faults = Faults()
    faults.note("a", 0.3, 0.0)
    faults.note("b", 0.01, 0.0)
    turns = Turns(Random(1))
    everything = queues(a=2, b=3)
    seen = Counter(turns.quickest(everything, faults, 0.0) for _ in range(9))
    assert seen == {Queue("b", number): 3 for number in range(3)}
    assert turns.quickest(everything, faults, 0.0, ("b",)).broker == "a"
    faults.isolate("b", 0.0)
    assert turns.quickest(everything, faults, 1.0).broker == "a"
    assert turns.quickest(queues(b=1), faults, 1.0).broker == "b"


@pytest.mark.parametrize(
    ("key", "count", "index"),
    [
        ("user-7", 4, 3),
        ("", 4, 0),
        (7, 4, 3),
        (-7, 4, 3),
        (1 << 40, 7, 256 % 7),
        # Its hash is the one number whose absolute value does not fit.
        ("polygenelubricants", 5, 2**31 % 5),
    ],
)
def test_keys_go_where_official_clients_put_them(key: str | int, count: int, index: int) -> None:
    assert queue_index(key, count) == index


@given(st.one_of(st.text(), st.integers(-(2**63), 2**63 - 1)), st.integers(1, 64))
def test_one_key_one_queue(key: str | int, count: int) -> None:
    assert 0 <= queue_index(key, count) < count
    assert queue_index(key, count) == queue_index(key, count)
