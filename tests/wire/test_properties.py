from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.errors import WireError
from orbitmq.wire.properties import (
    RESERVED_NAMES,
    Prop,
    append_properties,
    decode_properties,
    encode_properties,
    find_property,
    split_keys,
    without_property,
)

names = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12
)
values = st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
maps = st.dictionaries(names, values, max_size=8)
# Few letters and many separators, so that empty sides, repeats and stray separators all come up.
messy = st.lists(st.sampled_from([b"a", b"b", b"ab", b"\x01", b"\x02"]), max_size=24).map(b"".join)


def test_the_two_trailing_forms_read_alike() -> None:
    text = b"KEYS\x01k\x02TAGS\x01tag"
    assert decode_properties(text) == decode_properties(text + b"\x02") == {"KEYS": "k", "TAGS": "tag"}
    assert decode_properties(text.decode()) == {"KEYS": "k", "TAGS": "tag"}


def test_written_as_4_9_does() -> None:
    assert encode_properties({"KEYS": "k", "TAGS": "tag"}) == b"KEYS\x01k\x02TAGS\x01tag"
    assert encode_properties({}) == b""
    assert encode_properties({"A": "", "B": None, "C": "c"}) == b"C\x01c"


@given(maps, st.sampled_from([b"", b"\x02"]))
def test_round_trip(properties: dict[str, str], trailing: bytes) -> None:
    assert decode_properties(encode_properties(properties) + trailing) == properties


@pytest.mark.parametrize(
    ("properties", "culprit"),
    [
        ({"a\x01b": "v"}, "name"),
        ({"a\x02b": "v"}, "name"),
        ({"ok": "1", "a": "v\x02TAGS\x01forged"}, "value"),
        ({"a": "v\x02"}, "value"),
    ],
)
def test_separators_cannot_forge_properties(properties: dict[str, str], culprit: str) -> None:
    with pytest.raises(WireError, match=culprit):
        encode_properties(properties)


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read(raw: bytes) -> None:
    properties = decode_properties(raw)
    assert all(properties.keys())
    assert all(properties.values())
    assert decode_properties(encode_properties(properties)) == properties


@pytest.mark.parametrize(
    "raw", [b"", b"\x01", b"\x02", b"\x01\x02", b"a\x01", b"\x01a", b"a", b"\x02\x02\x02", b"a\x01\x02"]
)
def test_half_pairs_vanish(raw: bytes) -> None:
    assert decode_properties(raw) == {}


def test_broken_utf8_does_not_hide_the_other_properties() -> None:
    properties = decode_properties(b"bad\x01\xff\xfe\x02TAGS\x01t")
    assert properties["TAGS"] == "t"
    assert properties["bad"] == "\ufffd\ufffd"


@given(messy, st.sampled_from([b"", b"a", b"b", b"ab", b"ba"]))
def test_finding_one_equals_reading_all(raw: bytes, name: bytes) -> None:
    found = find_property(raw, name)
    assert (None if found is None else found.decode()) == decode_properties(raw).get(name.decode())


@given(maps, maps, st.sampled_from([b"", b"\x02"]))
def test_appending_merges(first: dict[str, str], more: dict[str, str], trailing: bytes) -> None:
    joined = append_properties(encode_properties(first) + trailing, encode_properties(more))
    assert decode_properties(joined) == first | more


@given(messy, st.sampled_from([b"a", b"b", b"ab"]))
def test_removing_takes_only_that_name(raw: bytes, name: bytes) -> None:
    expected = decode_properties(raw)
    expected.pop(name.decode(), None)
    assert decode_properties(without_property(raw, name)) == expected


def test_removing_the_wait_flag_leaves_the_rest_untouched() -> None:
    assert without_property(b"A\x011\x02WAIT\x01true\x02B\x012", b"WAIT") == b"A\x011\x02B\x012"
    assert without_property(b"WAIT\x01true", b"WAIT") == b""
    assert without_property(b"AWAIT\x01true", b"WAIT") == b"AWAIT\x01true"


def test_keys_are_separated_by_blanks() -> None:
    assert split_keys("a  b c ") == ["a", "b", "c"]
    assert split_keys(None) == split_keys("") == []


def test_reserved_names() -> None:
    assert {"KEYS", "TAGS", "UNIQ_KEY", "REAL_QID", "1ST_POP_TIME"} <= RESERVED_NAMES
    # Users set the immunity time of a transaction check by its property name.
    assert Prop.CHECK_IMMUNITY_SECONDS not in RESERVED_NAMES
