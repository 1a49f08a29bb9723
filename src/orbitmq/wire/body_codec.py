"""How typed bodies meet JSON: tolerant in what is read, Java's layout in what is written.

Structs list their fields in the alphabetical order of the wire names, because that is the order Java writes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from orbitmq.wire import fastjson
from orbitmq.wire.errors import BadBody

# Position = ordinal: Java reads and some clients write enums by number.
CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
CONSUME_RESULTS: Final = (
    "CR_SUCCESS",
    "CR_LATER",
    "CR_ROLLBACK",
    "CR_COMMIT",
    "CR_THROW_EXCEPTION",
    "CR_RETURN_NULL",
)
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")

_ENUMS: Final = {
    "consumeFromWhere": CONSUME_FROM_WHERE,
    "consumeResult": CONSUME_RESULTS,
    "consumeType": CONSUME_TYPES,
    "messageModel": MESSAGE_MODELS,
    "topicFilterType": FILTER_TYPES,
}
_QUEUE_KEYS: Final = frozenset(fastjson.MessageQueue._fields)


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all typed bodies: every field has a default and unknown fields are ignored, as in Java."""


B = TypeVar("B", bound=Body)


def encode(body: Body) -> bytes:
    """The body as Java writes it; fields that are None are left out."""
    return fastjson.dumps(body)


def decode(body_type: type[B], data: bytes) -> B:
    """Read a body; raises BadBody. Strict JSON of the expected types is fast, all else still works."""
    decoder = _typed_decoder(body_type)
    if decoder is None:
        return decode_tolerant(body_type, data)
    try:
        body: B = decoder.decode(data)
        return body
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_tolerant(body_type, data)


def decode_tolerant(body_type: type[B], data: bytes) -> B:
    """The plain twin of `decode`: nulls, enums by ordinal, numbers as text, every form of a queue."""
    if not data:
        raise BadBody(f"the body is empty where a {body_type.__name__} should be")
    tree = fastjson.loads(data)
    try:
        return msgspec.convert(_normal(tree), body_type, strict=False)
    except msgspec.ValidationError as error:
        raise BadBody(f"the body is not a {body_type.__name__}: {error}") from error
    except RecursionError as error:
        raise BadBody(f"the body is nested too deeply for a {body_type.__name__}") from error


@cache
def _typed_decoder(body_type: type[B]) -> msgspec.json.Decoder[B] | None:
    try:
        return msgspec.json.Decoder(body_type, strict=False)
    except TypeError:
        # A map with queues as keys has no strict JSON form that msgspec could read directly.
        return None


def _normal(value: Any) -> Any:
    """The tree with nulls dropped from objects, queues recognised and enums by name."""
    if isinstance(value, dict):
        if value.keys() == _QUEUE_KEYS:
            return fastjson.as_queue(value) or value
        return {
            _normal_key(key): _normal(_enum_name(key, item))
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return value


def _normal_key(key: Any) -> Any:
    if isinstance(key, str) and key.startswith("{"):
        return fastjson.as_queue(key) or key
    return key


def _enum_name(field: Any, value: Any) -> Any:
    names = _ENUMS.get(field) if isinstance(field, str) else None
    if names is not None and type(value) is int and 0 <= value < len(names):
        return names[value]
    return value
