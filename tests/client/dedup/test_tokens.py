from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.dedup.tokens import Name, name_of, token_of
from orbitmq.client.errors import BadRequest
from tests.client.dedup.cases import FakeMessage

# Few words, so that equal ones meet in different places.
WORDS = st.sampled_from(["a", "b", "id", "ab"])
MESSAGES = st.builds(FakeMessage, keys=st.lists(WORDS, max_size=3), topic=WORDS, tag=WORDS, msg_id=WORDS)


@given(MESSAGES, MESSAGES)
def test_equal_tokens_mean_equal_messages(one: FakeMessage, other: FakeMessage) -> None:
    def identity(msg: FakeMessage) -> tuple[str, str | None, list[str]]:
        return (msg.topic, msg.tag, msg.keys) if msg.keys else (msg.topic, None, [msg.msg_id])

    assert (token_of(one) == token_of(other)) is (identity(one) == identity(other))


def test_keys_count_and_not_the_id_so_that_a_second_send_is_a_duplicate() -> None:
    assert token_of(FakeMessage(msg_id="A")) == token_of(FakeMessage(msg_id="B"))
    assert token_of(FakeMessage(tag="paid")) != token_of(FakeMessage(tag="shipped"))
    assert token_of(FakeMessage(tag=None)) == token_of(FakeMessage(tag=""))


def test_without_keys_the_id_counts() -> None:
    assert token_of(FakeMessage(keys=[], msg_id="A")) != token_of(FakeMessage(keys=[], msg_id="B"))
    assert token_of(FakeMessage(keys=[], msg_id="A")) == token_of(FakeMessage(keys=[], msg_id="A"))


@pytest.mark.parametrize("given_token", ["", "a\0b", None, 7, "x" * 1025])
def test_a_useless_token_is_refused_with_advice(given_token: str) -> None:
    with pytest.raises(BadRequest, match="0A000001") as caught:
        name_of(FakeMessage(), "billing", lambda msg: given_token)
    assert "token" in str(caught.value) and caught.value.hint


def test_the_scope_keeps_groups_apart() -> None:
    assert name_of(FakeMessage(), "billing", None) == Name("billing", "orders\npaid\norder-1")
    assert name_of(FakeMessage(), "billing", None) != name_of(FakeMessage(), "shipping", None)
