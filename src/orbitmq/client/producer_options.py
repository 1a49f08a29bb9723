"""The options of a producer, checked where they are written."""

from __future__ import annotations

from typing import Any

from orbitmq.client.core.queue_choice import Choice
from orbitmq.client.errors import BadRequest
from orbitmq.wire.compression import Compression
from orbitmq.wire.errors import WireError
from orbitmq.wire.topics import validate_group


def check_group(group: Any) -> str:
    if not isinstance(group, str):
        raise BadRequest(
            f"the producer group is {type(group).__name__}, not text",
            hint='pass a name: producer("orders-app")',
        )
    if reason := validate_group(group):
        raise BadRequest(reason, hint="choose another producer group")
    return group


def check_count(value: Any, what: str, least: int) -> int:
    if type(value) is not int or value < least:
        raise BadRequest(f"{what} is {value!r}", hint=f"pass a whole number from {least}")
    return value


def choice_named(name: Any) -> Choice:
    try:
        return Choice(name)
    except ValueError:
        names = " or ".join(repr(choice.value) for choice in Choice)
        raise BadRequest(f"choice is {name!r}", hint=f"pass {names}") from None


def compression_named(name: Any) -> Compression | None:
    if name is None:
        return None
    try:
        return Compression.named(str(name))
    except WireError as error:
        raise BadRequest(str(error), hint='pass "zlib", "lz4", "zstd" or None') from error
