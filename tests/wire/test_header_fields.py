from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.errors import BadHeader
from orbitmq.wire.header_fields import Header, Int32, Int64, read, read_tolerant, to_ext


class Sample(Header, kw_only=True):
    queue_id: Int32
    topic: str
    big_offset: Int64 = 0
    order: bool = False
    note: str | None = None
    limit: Int32 | None = None
    force: bool | None = None


GOOD = {"queueId": "1", "topic": "T"}


def test_names_are_camel_case_on_the_wire() -> None:
    sample = Sample(queue_id=1, topic="T", big_offset=2**62, order=True, force=False)
    ext = {"queueId": "1", "topic": "T", "bigOffset": str(2**62), "order": "true", "force": "false"}
    assert to_ext(sample) == ext
    assert read(Sample, ext, "SAMPLE") == sample


def test_unknown_fields_are_ignored() -> None:
    assert read(Sample, GOOD | {"ns": "x", "queueID": "7"}, "SAMPLE") == Sample(queue_id=1, topic="T")


@pytest.mark.parametrize(
    ("field", "text", "attribute", "value"),
    [
        ("queueId", " 5 ", "queue_id", 5),
        ("queueId", "+5", "queue_id", 5),
        ("queueId", "-1", "queue_id", -1),
        ("queueId", "007", "queue_id", 7),
        ("bigOffset", " 9223372036854775807\n", "big_offset", 2**63 - 1),
        ("bigOffset", "", "big_offset", 0),
        ("limit", "", "limit", None),
        ("limit", " ", "limit", None),
        ("limit", "null", "limit", None),
        ("force", "", "force", None),
        ("order", "TRUE", "order", True),
        ("order", "1", "order", True),
        ("order", " true", "order", True),
        ("order", "yes", "order", False),
        ("note", "", "note", ""),
        ("note", "null", "note", "null"),
        ("topic", "", "topic", ""),
        ("topic", " T ", "topic", " T "),
    ],
)
def test_tolerated_texts(field: str, text: str, attribute: str, value: object) -> None:
    assert getattr(read(Sample, GOOD | {field: text}, "SAMPLE"), attribute) == value


@pytest.mark.parametrize(
    ("ext", "message"),
    [
        ({"topic": "T"}, "field queueId of SAMPLE is missing"),
        ({"queueId": "1"}, "field topic of SAMPLE is missing"),
        ({"queueId": "", "topic": "T"}, "field queueId of SAMPLE is missing"),
        ({"queueId": "x", "topic": "T"}, "field queueId of SAMPLE is not an int: 'x'"),
        ({"queueId": "1.5", "topic": "T"}, "field queueId of SAMPLE is not an int: '1.5'"),
        ({"queueId": "1_0", "topic": "T"}, "field queueId of SAMPLE is not an int: '1_0'"),
        ({"queueId": "٣", "topic": "T"}, "field queueId of SAMPLE is not an int: '٣'"),
        ({"queueId": "2147483648", "topic": "T"}, "field queueId of SAMPLE is not an int: '2147483648'"),
        (GOOD | {"limit": "many"}, "field limit of SAMPLE is not an int: 'many'"),
        (GOOD | {"bigOffset": "1" * 30}, f"field bigOffset of SAMPLE is not an int of 64 bits: '{'1' * 30}'"),
    ],
)
def test_an_error_names_field_and_request(ext: dict[str, str], message: str) -> None:
    with pytest.raises(BadHeader) as caught:
        read(Sample, ext, "SAMPLE")
    assert str(caught.value) == message


def test_an_error_shows_only_the_start_of_a_long_value() -> None:
    with pytest.raises(BadHeader) as caught:
        read(Sample, GOOD | {"queueId": "x" * 10000}, "SAMPLE")
    assert len(str(caught.value)) < 200


NUMBERS = (
    st.integers(-(2**70), 2**70).map(str) | st.floats().map(str) | st.sampled_from(["", " 1", "null", "0x1"])
)
WORDS = st.sampled_from(["true", "false", "True", "FALSE", "1", "0", "", "no", "null"])


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "queueId": NUMBERS | st.text(max_size=5),
            "topic": st.text(max_size=5),
            "bigOffset": NUMBERS,
            "order": WORDS,
            "note": st.text(max_size=5),
            "limit": NUMBERS,
            "force": WORDS,
        },
    )
)
def test_fast_and_tolerant_reading_agree(ext: dict[str, str]) -> None:
    def outcome(reader: object) -> object:
        try:
            return reader(Sample, ext, "SAMPLE")  # type: ignore[operator]
        except BadHeader as error:
            return str(error)

    assert outcome(read) == outcome(read_tolerant)
