from __future__ import annotations

import pytest

from orbitmq.broker.registration_link import Answer, _parse_answer
from orbitmq.wire.command import Command, request


def reply(body: bytes, **ext: str) -> Command:
    return request(103).reply(ext=dict(ext), body=body)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b'{"table":null}', b'{"table":[]}'])
def test_an_answer_without_order_configuration(body: bytes) -> None:
    assert _parse_answer(reply(body)) == Answer(None, None, {})


def test_an_answer_with_everything() -> None:
    answer = _parse_answer(
        reply(b'{"table":{"T":"broker-a:4"}}', masterAddr="127.0.0.1:10911", haServerAddr="127.0.0.1:10912")
    )
    assert answer == Answer("127.0.0.1:10911", "127.0.0.1:10912", {"T": "broker-a:4"})


def test_an_empty_master_address_is_none() -> None:
    assert _parse_answer(reply(b"", masterAddr="", haServerAddr="")) == Answer(None, None, {})
