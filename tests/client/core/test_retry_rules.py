from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.core.retry_rules import (
    RetryRules,
    SendKind,
    counts_as_try,
    not_the_place,
    share_of_time,
)
from orbitmq.client.errors import BadRequest, NotFound, Unreachable, from_response
from orbitmq.wire.codes import RequestCode, ResponseCode

ELSEWHERE = {1, 2, 14, 16, 17, 204, 205}
NOT_THE_PLACE = {14, 16}


@pytest.mark.parametrize(
    ("kind", "tries", "elsewhere"),
    [
        (SendKind.AWAITED, 3, True),
        (SendKind.POSTED, 3, False),
        (SendKind.ORDERED, 1, False),
        (SendKind.ONEWAY, 1, False),
    ],
)
def test_tries_by_kind(kind: SendKind, tries: int, elsewhere: bool) -> None:
    rules = RetryRules()
    assert rules.tries(kind) == tries
    assert rules.elsewhere(kind) is elsewhere
    assert RetryRules(retries=0).tries(kind) == 1


@given(st.sampled_from([int(code) for code in ResponseCode]))
def test_only_the_listed_answers_are_tried_elsewhere(code: int) -> None:
    error = from_response(RequestCode.SEND_MESSAGE_V2, code, None, "127.0.0.1:1")
    assert RetryRules().worth_another_try(SendKind.AWAITED, error) is (code in ELSEWHERE)
    assert RetryRules().worth_another_try(SendKind.POSTED, error) is (code in NOT_THE_PLACE)
    assert not_the_place(error) is (code in NOT_THE_PLACE)


def test_a_broker_that_is_not_the_place_costs_no_try() -> None:
    gone = Unreachable("connection refused")
    assert not_the_place(gone) and not counts_as_try(gone)
    silent = Unreachable("no answer", maybe_processed=True)
    assert not not_the_place(silent) and counts_as_try(silent)
    lost = from_response(RequestCode.SEND_MESSAGE_V2, ResponseCode.SERVICE_NOT_AVAILABLE, None, "127.0.0.1:1")
    assert not counts_as_try(lost)
    forbidden = from_response(RequestCode.SEND_MESSAGE_V2, ResponseCode.NO_PERMISSION, None, "127.0.0.1:1")
    assert not_the_place(forbidden) and counts_as_try(forbidden)
    assert not counts_as_try(NotFound("no master", retryable=True))
    assert counts_as_try(NotFound("no such topic"))


def test_silence_is_always_worth_another_try_and_a_bad_request_never() -> None:
    for kind in (SendKind.AWAITED, SendKind.POSTED):
        assert RetryRules().worth_another_try(kind, Unreachable("silent"))
        assert not RetryRules().worth_another_try(kind, BadRequest("too large"))


@given(st.floats(0.001, 60), st.integers(1, 10), st.booleans())
def test_the_shares_of_all_tries_fit_into_the_time(left_s: float, tries: int, alone: bool) -> None:
    if alone:
        assert share_of_time(left_s, tries, alone=True) == left_s
        return
    used = 0.0
    for left_tries in range(tries, 0, -1):
        share = share_of_time(left_s - used, left_tries, alone=False)
        assert share > 0
        used += share
    assert used == pytest.approx(left_s)
