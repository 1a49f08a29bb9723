from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.properties_text import PropertiesError, dump_properties, load_properties, merge_properties

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PROPERTIES = st.dictionaries(TEXT.filter(bool), TEXT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# comment\n! comment\n\n   \n  # indented\n", {}),
        ("a=1\nb:2\nc 3\nd\t=\t4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a = b = c \n", {"a": "b = c "}),
        ("lonely", {"lonely": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("list=a,\\\n   b,\\\n\tc", {"list": "a,b,c"}),
        ("path=c:\\\\dir\\\\", {"path": "c:\\dir\\"}),
        ("k\\=e\\:y\\ x=v\\tw\\n", {"k=e:y x": "v\tw\n"}),
        ("u=\\u4E2D\\u6587", {"u": "中文"}),
        ("u=\\uD83D\\uDE00", {"u": "😀"}),
        ("odd=\\q", {"odd": "q"}),
        ("end=x\\", {"end": "x"}),
        ("a=x # not a comment", {"a": "x # not a comment"}),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert load_properties(text) == expected


def test_a_broken_escape_names_its_line() -> None:
    with pytest.raises(PropertiesError, match="line 3: "):
        load_properties("a=1\n\nb=\\uZZZZ")


def test_only_ascii_is_written_because_java_reads_latin_1() -> None:
    assert dump_properties({"a b": " ü😀"}) == "a\\ b=\\ \\u00fc\\ud83d\\ude00\n"


@given(PROPERTIES)
def test_what_is_written_is_read_back(properties: dict[str, str]) -> None:
    assert load_properties(dump_properties(properties)) == properties


@given(st.text())
def test_no_text_makes_the_reader_fail_in_another_way(text: str) -> None:
    with contextlib.suppress(PropertiesError):
        load_properties(text)


@given(PROPERTIES, PROPERTIES)
def test_merged_text_holds_the_old_values_and_the_changes(old: dict[str, str], new: dict[str, str]) -> None:
    assert load_properties(merge_properties(dump_properties(old), new)) == {**old, **new}


def test_merging_keeps_comments_order_and_untouched_lines() -> None:
    text = "# head\na = 1\nlist = x,\\\n  y\n\n! tail\na=5\nb : 2"
    assert merge_properties(text, {"a": "3", "new": "n"}) == (
        "# head\na=3\nlist = x,\\\n  y\n\n! tail\nb : 2\nnew=n\n"
    )
    assert merge_properties(text, {"list": "z"}) == "# head\na = 1\nlist=z\n\n! tail\na=5\nb : 2\n"
    assert merge_properties("", {}) == ""
