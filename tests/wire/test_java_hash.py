from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orbitmq.wire.java_hash import hash_keys, index_hash, index_hashes, string_hash, unsigned_hash

# Java texts may hold lone surrogates, so they are drawn too.
any_text = st.text(st.characters(), max_size=600)
ascii_text = st.text(st.characters(max_codepoint=127), max_size=60)


def plain_hash(text: str) -> int:
    """String.hashCode as its documentation puts it, one UTF-16 unit at a time."""
    units = text.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for position in range(0, len(units), 2):
        hashed = (31 * hashed + int.from_bytes(units[position : position + 2], "big")) & 0xFFFFFFFF
    return hashed - (1 << 32) if hashed >= 1 << 31 else hashed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(1 << 31)),
        ("\U0001f600", 1772899),
    ],
)
def test_known_hashes(text: str, expected: int) -> None:
    assert string_hash(text) == expected


@given(any_text)
@example("x" * 255)
@example("x" * 256)
@example("x" * 257)
@example("é" * 1000)
@example("\U0001f600" * 200)
def test_agrees_with_the_plain_definition(text: str) -> None:
    assert string_hash(text) == plain_hash(text)
    assert string_hash(text) & 0xFFFFFFFF == unsigned_hash(text)


def test_long_texts_are_not_kept() -> None:
    long_text = "t" * 30000
    assert string_hash(long_text) == plain_hash(long_text)


def test_index_hash_is_never_negative() -> None:
    assert index_hash("TopicA#k1") == 1903240649
    assert index_hash("polygenelubricants") == 0


@given(any_text)
def test_index_hash_is_the_absolute_value(text: str) -> None:
    absolute = abs(plain_hash(text))
    assert index_hash(text) == (0 if absolute == 1 << 31 else absolute)


@given(
    any_text, st.integers(0, 40).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), max_size=20))
)
def test_columns_agree_with_single_hashes(prefix: str, keys: list[bytes]) -> None:
    keys = [bytes(unit & 0x7F for unit in key) for key in keys]
    texts = [prefix + key.decode() for key in keys]
    hashes = hash_keys(string_hash(prefix), keys)
    assert hashes.dtype == np.uint32
    assert hashes.tolist() == [string_hash(text) & 0xFFFFFFFF for text in texts]
    assert hash_keys(unsigned_hash(prefix), keys).tolist() == hashes.tolist()
    assert index_hashes(hashes).tolist() == [index_hash(text) for text in texts]


def test_columns_of_the_edge_values() -> None:
    edges = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF], dtype=np.uint32)
    assert index_hashes(edges).tolist() == [0, 1, 0x7FFFFFFF, 0, 0x7FFFFFFF, 1]


@pytest.mark.parametrize("keys", [[b"abc", b"abcde", b"a"], ["é".encode()]])
def test_columns_refuse_mixed_lengths_and_other_alphabets(keys: list[bytes]) -> None:
    with pytest.raises(ValueError, match="ASCII keys of one length"):
        hash_keys(0, keys)
