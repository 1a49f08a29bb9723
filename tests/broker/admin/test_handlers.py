"""The merged table: which requests are served, and how they fail."""

from __future__ import annotations

import msgspec
import pytest

from orbitmq.broker import admin
from orbitmq.broker.admin import (
    broker_status,
    groups,
    messages,
    progress,
    relay,
    reset,
    settings,
    stopping,
    topics,
)
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.errors import BadHeader, WireError
from orbitmq.wire.headers import REQUEST_HEADERS
from tests.broker.admin.world import World

FAMILIES = (topics, groups, progress, reset, relay, messages, settings, broker_status, stopping)
# What mqadmin 4.9 and the dashboard ask brokers for, besides sends, pulls and what clients ask too.
NEEDED = (
    12, 17, 21, 25, 26, 28, 29, 30, 31, 32, 33, 43, 45, 200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 300,
    303, 305, 306, 307, 308, 309, 314, 315, 316, 317, 321, 328, 329,
)  # fmt: skip


def test_no_request_is_served_by_two_families() -> None:
    assert len(admin.HANDLERS) == sum(len(family.HANDLERS) for family in FAMILIES)
    assert set(NEEDED) <= admin.HANDLERS.keys()


WITH_FIELDS = sorted(
    code
    for code in admin.HANDLERS
    if code in set(RequestCode)
    and (header := REQUEST_HEADERS.get(RequestCode(code))) is not None
    and any(field.required for field in msgspec.structs.fields(header))
)


@pytest.mark.parametrize("code", WITH_FIELDS)
def test_a_missing_field_is_named(world: World, code: int) -> None:
    with pytest.raises(BadHeader, match=f"field .* of {RequestCode(code).name} is missing"):
        world.ask(code)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    ],
)
@pytest.mark.parametrize("body", [b"", b"{", b"null", b'"x"', b"\xff", b"[" * 5000])
def test_a_body_of_garbage_is_refused(world: World, code: int, body: bytes) -> None:
    try:
        assert world.ask(code, body).code == 1
    except WireError as error:
        assert str(error)
