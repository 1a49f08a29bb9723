"""The error tree: codes, whether to try again, and advice."""

from __future__ import annotations

import pytest

from orbitmq.client.errors import (
    BadRequest,
    NotFound,
    OrbitMQError,
    Refused,
    Unreachable,
    from_remoting,
    from_response,
)
from orbitmq.net.errors import ConnectFailed, ConnectionClosed, RequestTimeout, SendRefused
from orbitmq.wire.codes import RequestCode, ResponseCode


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, NotFound, False),
        (ResponseCode.QUERY_NOT_FOUND, NotFound, False),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, NotFound, False),
        (ResponseCode.NO_PERMISSION, Refused, False),
        (ResponseCode.SYSTEM_BUSY, Refused, True),
        (ResponseCode.SERVICE_NOT_AVAILABLE, Refused, True),
        (9999, Refused, False),
    ],
)
def test_an_answer_becomes_the_right_kind(code: int, kind: type[OrbitMQError], retryable: bool) -> None:
    error = from_response(RequestCode.PULL_MESSAGE, code, "why\nit failed", "h:1")
    assert type(error) is kind
    assert (error.code, error.retryable) == (code, retryable)
    assert str(error).startswith("PULL_MESSAGE at h:1 failed with ")
    assert str(error).endswith(": why it failed")


def test_silence_tells_whether_the_request_may_have_been_processed() -> None:
    never = from_remoting(ConnectFailed("could not connect to h:1"))
    assert isinstance(never, Unreachable)
    assert not never.maybe_processed
    for lost in (RequestTimeout("h:1 did not answer"), ConnectionClosed("h:1 closed")):
        perhaps = from_remoting(lost)
        assert isinstance(perhaps, Unreachable)
        assert perhaps.maybe_processed
        assert perhaps.retryable
    assert isinstance(from_remoting(SendRefused("too large")), BadRequest)


def test_the_text_is_the_cause_and_the_hint_the_advice() -> None:
    error = from_remoting(ConnectFailed("could not connect to h:1"))
    assert str(error) == "could not connect to h:1"
    assert "running" in error.hint
