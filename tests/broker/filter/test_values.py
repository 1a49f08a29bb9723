from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.broker.filter.values import Unreadable, compare, read_double, read_int, read_long


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("+7", 7),
        ("-7", -7),
        ("007", 7),
        ("٣", 3),
        ("2147483647", 2**31 - 1),
        ("-2147483648", -(2**31)),
    ],
)
def test_whole_numbers_as_java_reads_them(text: str, number: int) -> None:
    assert read_int(text.encode()) == number
    assert read_long(text.encode()) == number


@pytest.mark.parametrize("text", ["", "+", "-", " 1", "1 ", "1_000", "3.5", "1e2", "0x10", "𝟏", "2147483648"])
def test_texts_that_are_no_int(text: str) -> None:
    with pytest.raises(Unreadable):
        read_int(text.encode())


def test_a_long_has_64_bits_and_any_number_of_zeros() -> None:
    assert read_long(b"9223372036854775807") == 2**63 - 1
    assert read_long(b"-9223372036854775808") == -(2**63)
    assert read_long(b"0" * 30_000 + b"5") == 5
    for text in (b"9223372036854775808", b"-9223372036854775809", b"9" * 30_000):
        with pytest.raises(Unreadable):
            read_long(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1.0),
        (" \t2.5\n", 2.5),
        ("5.", 5.0),
        (".5", 0.5),
        ("-1e3", -1000.0),
        ("1d", 1.0),
        ("1.5F", 1.5),
        ("0x1p3", 8.0),
        ("0x.8P1d", 1.0),
        ("1e400", math.inf),
        ("-0x1p9999", -math.inf),
        ("-Infinity", -math.inf),
    ],
)
def test_floating_numbers_as_java_reads_them(text: str, number: float) -> None:
    assert read_double(text.encode()) == number


@pytest.mark.parametrize(
    "text", ["", ".", "e5", "inf", "nan", "1_0", "1 2", "0x10", "1dd", "١", "--1", "0x1.8"]
)
def test_texts_that_are_no_double(text: str) -> None:
    with pytest.raises(Unreadable):
        read_double(text.encode())


def test_the_order_of_floating_numbers() -> None:
    row = [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]
    for i, left in enumerate(row):
        for j, right in enumerate(row):
            assert math.copysign(1, compare(left, right)) == math.copysign(1, i - j) or i == j
            assert (compare(left, right) == 0) is (i == j)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_compare_exactly(left: int, right: int) -> None:
    assert compare(left, right) == (left > right) - (left < right)


def test_a_whole_number_beside_a_floating_one_becomes_floating() -> None:
    assert compare(2**53 + 1, float(2**53)) == 0
