"""A property found where the first message has it is the one that a search in every message finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.spark.alike_properties import alike_values
from orbitmq.spark.property_columns import PropertyColumns
from orbitmq.spark.spans import as_bytes

NAMES = (b"TAGS", b"KEYS", b"UNIQ_KEY")


def laid(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts as they lie in records: each behind two bytes of length, and something else behind it."""
    data, begins, ends = bytearray(), [], []
    for text in texts:
        data += len(text).to_bytes(2, "big")
        begins.append(len(data))
        data += text
        ends.append(len(data))
        data += b"next record"
    return as_bytes(bytes(data)), np.array(begins, np.int64), np.array(ends, np.int64)


def found(texts: list[bytes], name: bytes = b"TAGS") -> list[str] | None:
    values = alike_values(*laid(texts), name)
    return None if values is None else values.to_pylist()


def searched(texts: list[bytes], name: bytes = b"TAGS") -> list[str | None]:
    values: list[str | None] = PropertyColumns(*laid(texts)).value(name).to_pylist()
    return values


value = st.one_of(
    st.sampled_from([b"a", b"bb", b"label-07"]),
    st.lists(
        st.sampled_from([b"\x00", b"\x01", b"\x02", b"TAGS", b"\x02TAGS\x01", b"x", b"\xff", b"\xc3\xa9"])
    ).map(b"".join),
)
shapes = st.sampled_from(
    [
        b"TAGS\x01%s",
        b"TAGS\x01%s\x02",
        b"UNIQ_KEY\x0100\x02TAGS\x01%s\x02CLUSTER\x01c",
        b"KEYS\x01%s\x02TAGS\x01x",
        b"TAGS\x01y\x02WAIT\x01true\x02TAGS\x01%s",
        b"TAGS\x01%s\x02n\x01",
        b"\x02TAGS\x01%s\x02\x02",
        b"xTAGS\x01%s",
        b"%s",
    ]
)


@st.composite
def pages(draw: st.DrawFn) -> list[bytes]:
    shape = draw(shapes)
    texts = [shape % draw(value) for _ in range(draw(st.integers(1, 6)))]
    if draw(st.integers(0, 4)) == 0:
        texts[draw(st.integers(0, len(texts) - 1))] = draw(shapes) % draw(value)
    return texts


@settings(max_examples=400, deadline=None)
@given(pages(), st.sampled_from(NAMES))
def test_what_is_found_is_what_a_search_finds(texts: list[bytes], name: bytes) -> None:
    values = found(texts, name)
    assert values is None or values == searched(texts, name)


@pytest.mark.parametrize(
    "shape",
    [
        b"TAGS\x01%s",
        b"UNIQ_KEY\x01C000\x02TAGS\x01%s\x02CLUSTER\x01DefaultCluster",
        b"n\x011\x02TAGS\x01%s\x02",
    ],
)
def test_messages_of_one_client_need_no_search_whatever_their_values_lengths(shape: bytes) -> None:
    assert found([shape % tag for tag in (b"a", b"long tag", b"bb")]) == ["a", "long tag", "bb"]
    assert found([shape % tag for tag in (b"aa", b"bb", b"cc")]) == ["aa", "bb", "cc"]


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [b"", b"TAGS\x01a"],
        [b"TAGS\x01a", b""],
        [b"TAGS\x01a", b"KEYS\x01a"],
        [b"TAGS\x01a\x02x\x011", b"TAGS\x01a\x02x\x012"],
        [b"k\x011\x02TAGS\x01a", b"k\x0122\x02TAGS\x01a"],
        [b"TAGS\x01a\x02TAGS\x01b"],
        [b"TAGS\x01a", b"TAGS\x01a\x02TAGS\x01b"],
        [b"TAGS\x01a", b"TAGS\x01\xc3\xa9"],
        [b"TAGS\x01", b"TAGS\x01"],
    ],
)
def test_all_others_are_left_to_the_search(texts: list[bytes]) -> None:
    assert found(texts) is None
