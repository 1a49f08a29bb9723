"""Greetings survive any cutting into pieces; anything else is told from them at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.cluster.epochs import EpochHistory
from orbitmq.cluster.greeting import (
    MAGIC,
    MOST_TEXT_BYTES,
    Greeting,
    GreetingReader,
    Hello,
    NotGreeted,
    Refusal,
    Welcome,
    encode,
)
from orbitmq.cluster.mastership import Mastership

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(0, (1 << 63) - 1)
histories = st.lists(st.tuples(numbers, numbers), max_size=5).map(
    lambda pairs: EpochHistory(
        tuple((number, start) for number, start in enumerate(sorted(start for _, start in pairs), start=1))
    )
)
greetings: st.SearchStrategy[Greeting] = st.one_of(
    st.builds(Hello, names, names, numbers, names, numbers, numbers, histories),
    st.builds(Welcome, numbers, histories, numbers, numbers),
    st.builds(Refusal, names),
)


@given(greetings, st.binary(max_size=20), st.lists(st.integers(0, 400), max_size=6))
def test_a_greeting_comes_through_in_any_pieces(greeting: Greeting, rest: bytes, cuts: list[int]) -> None:
    data = encode(greeting)
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(borders)]
    reader = GreetingReader()
    for piece in pieces[:-1]:
        assert reader.feed(piece) is None
    assert reader.feed(pieces[-1] + rest) == (greeting, rest)


def test_a_greeting_comes_through_byte_by_byte() -> None:
    data = encode(Welcome(3, EpochHistory(((1, 0), (3, 77))), 0, 99))
    reader = GreetingReader()
    answers = [reader.feed(data[at : at + 1]) for at in range(len(data))]
    assert answers[:-1] == [None] * (len(data) - 1)
    assert answers[-1] == (Welcome(3, EpochHistory(((1, 0), (3, 77))), 0, 99), b"")


@given(st.binary(min_size=1, max_size=64).filter(lambda data: not MAGIC.startswith(data[: len(MAGIC)])))
def test_garbage_is_told_at_once(data: bytes) -> None:
    with pytest.raises(NotGreeted, match="instead of a greeting"):
        GreetingReader().feed(data)


def test_a_plain_slave_is_recognised() -> None:
    with pytest.raises(NotGreeted, match="enableControllerMode"):
        GreetingReader().feed((12345).to_bytes(8, "big"))


def of_text(text: bytes, size: int | None = None) -> bytes:
    return MAGIC + (len(text) if size is None else size).to_bytes(4, "big") + text


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (of_text(b"", MOST_TEXT_BYTES + 1), "at most"),
        (of_text(b"{"), "no JSON"),
        (of_text(b"[]"), "kind None"),
        (of_text(b'{"kind":"goodbye"}'), "goodbye"),
        (of_text(b'{"kind":["hello"]}'), "kind"),
        (of_text(b'{"kind":"refusal"}'), "reason of the refusal is None"),
        (of_text(b'{"kind":"welcome","epoch":true,"history":[],"start":0,"end":0}'), "epoch of the welcome"),
        (of_text(b'{"kind":"welcome","epoch":1,"history":[[2,0],[1,5]],"start":0,"end":0}'), "bad history"),
    ],
)
def test_a_greeting_that_makes_no_sense_is_refused_by_name(data: bytes, problem: str) -> None:
    with pytest.raises(NotGreeted, match=problem):
        GreetingReader().feed(data)


MASTER = Mastership("c", "broker-a", 1, 5, EpochHistory(((5, 0),)))
FITTING = Hello("c", "broker-a", 2, "token", 5, 0, EpochHistory())


def test_who_fits_may_follow() -> None:
    assert MASTER.refusal(FITTING) == ""


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("cluster", "other", "brokerClusterName"),
        ("broker", "broker-b", "brokerName"),
        ("replica", 1, "the master itself"),
        ("replica", 0, "no number"),
        ("epoch", 4, "it is 5 by now"),
        ("epoch", 6, "this one served epoch 5"),
        ("end", -1, "cannot end"),
    ],
)
def test_who_does_not_fit_hears_why(field: str, value: str | int, reason: str) -> None:
    fields = {name: getattr(FITTING, name) for name in FITTING.__slots__}
    assert reason in MASTER.refusal(Hello(**{**fields, field: value}))
