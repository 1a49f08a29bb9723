from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.errors import WireError
from orbitmq.wire.recall import RecallHandle, decode_handle

names = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=20)


def test_the_form_of_rocketmq_5() -> None:
    handle = RecallHandle("TopicA", "broker-a", 1_700_000_000_000, "ID1")
    text = "djEgVG9waWNBIGJyb2tlci1hIDE3MDAwMDAwMDAwMDAgSUQx"
    assert handle.encode() == text
    assert decode_handle(text) == handle


@given(names, names, st.integers(0, 1 << 62), names)
def test_there_and_back(topic: str, broker: str, moment: int, msg_id: str) -> None:
    handle = RecallHandle(topic, broker, moment, msg_id)
    assert decode_handle(handle.encode()) == handle
    assert decode_handle(handle.encode().rstrip("=")) == handle


@pytest.mark.parametrize(
    "plain", ["", "v1", "v2 a b 1 c", "v1 a b c", "v1 a b x c", "v1 a b 1 ", "v1 a b 99999999999999999999 c"]
)
def test_other_texts_are_refused(plain: str) -> None:
    with pytest.raises(WireError, match="recall handle is invalid"):
        decode_handle(base64.urlsafe_b64encode(plain.encode()).decode())


@given(st.text())
def test_garbage_never_raises_anything_else(text: str) -> None:
    try:
        decode_handle(text)
    except WireError as error:
        assert "recall handle" in str(error)
