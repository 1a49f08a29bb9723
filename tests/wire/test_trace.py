from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.errors import WireError
from orbitmq.wire.trace import (
    ConsumeResult,
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TraceMessageType,
    decode_traces,
    encode_traces,
    trace_keys,
)

longs = st.integers(0, (1 << 63) - 1)
ints = st.integers(0, (1 << 31) - 1)
texts = st.none() | st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12
).filter(lambda text: text != "null")
traces = st.one_of(
    st.builds(
        PubTrace,
        *(longs, texts, texts, texts, texts, texts, texts, texts, ints, ints, st.integers(0, 3), texts),
        *(st.booleans(), texts),
    ),
    st.builds(SubBeforeTrace, longs, texts, texts, texts, texts, ints, texts),
    st.builds(SubAfterTrace, texts, texts, ints, st.booleans(), texts, st.integers(0, 4), longs, texts),
    st.builds(
        EndTransactionTrace,
        *(longs, texts, texts, texts, texts, texts, texts, texts, st.integers(0, 3), texts, texts),
        st.booleans(),
    ),
)

PUB = PubTrace(
    timestamp_ms=1700000000000,
    region_id="DefaultRegion",
    group="pg",
    topic="TopicA",
    msg_id="ID1",
    tags="TagA",
    keys="k1",
    store_host="10.0.0.2:10911",
    body_bytes=2,
    cost_ms=3,
    msg_type=TraceMessageType.NORMAL,
    offset_msg_id="OFF1",
    success=True,
)
PUB_TEXT = "Pub|1700000000000|DefaultRegion|pg|TopicA|ID1|TagA|k1|10.0.0.2:10911|2|3|0|OFF1|true;"


def raw(text: str) -> bytes:
    """Contexts written with visible separators."""
    return text.replace("|", "\x01").replace(";", "\x02").encode()


def assert_read_or_refused(body: bytes) -> None:
    try:
        traces = decode_traces(body)
    except WireError:
        return
    assert decode_traces(encode_traces(traces)) == traces


def test_a_send_is_written_as_java_does() -> None:
    assert encode_traces([PUB]) == raw(PUB_TEXT)
    assert decode_traces(raw(PUB_TEXT)) == [PUB]


def test_the_other_kinds_are_written_as_java_does() -> None:
    before = SubBeforeTrace(1, "r", "cg", "REQ", "ID1", 2, None)
    after = SubAfterTrace("REQ", "ID1", 7, False, "k1", ConsumeResult.FAILED, 9, "cg")
    end = EndTransactionTrace(1, None, "pg", "T", "ID1", None, "k", "h:1", 2, "TX", "COMMIT_MESSAGE", False)
    assert encode_traces([before, after, end]) == raw(
        "SubBefore|1|r|cg|REQ|ID1|2|null;"
        "SubAfter|REQ|ID1|7|false|k1|4|9|cg;"
        "EndTransaction|1|null|pg|T|ID1|null|k|h:1|2|TX|COMMIT_MESSAGE|false;"
    )


@given(st.lists(traces, max_size=5))
def test_round_trip(given_traces: list[Trace]) -> None:
    assert decode_traces(encode_traces(given_traces)) == given_traces


def test_older_and_newer_forms_of_a_send() -> None:
    without_offset_id = PUB_TEXT.replace("|OFF1", "")
    with_client_host = PUB_TEXT.replace(";", "|10.0.0.9;")
    old, new = decode_traces(raw(without_offset_id + with_client_host))
    assert isinstance(old, PubTrace)
    assert (old.offset_msg_id, old.success, old.client_host) == (None, True, None)
    assert isinstance(new, PubTrace)
    assert (new.offset_msg_id, new.success, new.client_host) == ("OFF1", True, "10.0.0.9")


@pytest.mark.parametrize("tail", ["", "|4", "|4|", "|4|9", "|4|9|cg"])
def test_shorter_forms_of_a_consumption(tail: str) -> None:
    (trace,) = decode_traces(raw(f"SubAfter|REQ|ID1|7|true|k1{tail};"))
    assert isinstance(trace, SubAfterTrace)
    assert (trace.request_id, trace.cost_ms, trace.success) == ("REQ", 7, True)
    assert trace.context_code == (4 if tail else 0)
    assert trace.group == ("cg" if tail.endswith("cg") else None)


def test_unknown_kinds_are_left_out() -> None:
    assert decode_traces(raw(f"Recall|1|2;{PUB_TEXT}")) == [PUB]
    assert decode_traces(b"") == []


@pytest.mark.parametrize("text", ["Pub;", "Pub|x|" + "a|" * 12 + ";", "SubBefore|1|2;", "EndTransaction|1;"])
def test_broken_contexts_are_refused(text: str) -> None:
    with pytest.raises(WireError, match="trace context 0"):
        decode_traces(raw(text))


@given(
    st.lists(
        st.sampled_from(["Pub", "SubAfter", "SubBefore", "EndTransaction", "|", ";", "1", "x"]), max_size=40
    )
)
def test_garbage_is_refused_cleanly(words: list[str]) -> None:
    assert_read_or_refused(raw("".join(words)))


@given(st.binary(max_size=100))
def test_any_bytes_are_refused_cleanly(body: bytes) -> None:
    assert_read_or_refused(body)
    assert_read_or_refused(b"Pub\x01" + body)


def test_separators_in_fields_are_refused() -> None:
    with pytest.raises(WireError, match="separator"):
        encode_traces([SubBeforeTrace(1, "r", "cg\x02", "REQ", "ID1", 0, None)])


def test_keys_of_the_trace_message() -> None:
    other = SubAfterTrace("REQ", "ID2", 7, False, None)
    assert trace_keys([PUB, PUB, other]) == "ID1 k1 ID2"
