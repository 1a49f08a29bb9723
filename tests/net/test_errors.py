from __future__ import annotations

import pytest

from orbitmq.net.errors import (
    ConnectFailed,
    ConnectionClosed,
    RemotingError,
    RequestError,
    RequestTimeout,
    SendRefused,
)


@pytest.mark.parametrize("kind", [ConnectFailed, RequestTimeout, ConnectionClosed, SendRefused])
def test_a_remoting_error_says_what_happened_and_what_to_do(kind: type[RemotingError]) -> None:
    error = kind("10.0.0.1:9876 did it", addr="10.0.0.1:9876")
    assert str(error).startswith("10.0.0.1:9876 did it; ")
    assert error.hint
    assert error.addr == "10.0.0.1:9876"
    assert error.retryable is (kind is not SendRefused)


def test_an_empty_hint_is_left_out() -> None:
    assert str(ConnectFailed("no route", hint="")) == "no route"


def test_a_request_error_reads_as_its_remark() -> None:
    error = RequestError(17, "No topic route info")
    assert (error.code, error.remark, str(error)) == (17, "No topic route info", "No topic route info")
    assert not isinstance(error, RemotingError)
