"""Writing Java's fastjson dialect: compact for the wire, pretty for config files, strict for those who ask.

Structs, mappings, sequences, sets, queues and scalars are accepted. None is left out of objects, as Java
leaves out nulls, and stays `null` in lists. Keys come in the order of the mapping or of the struct's fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from orbitmq.wire.errors import WireError


class MessageQueue(NamedTuple):
    """A queue of a topic on a broker: a value, and a map key, in many bodies."""

    topic: str
    brokerName: str
    queueId: int

    @property
    def broker_name(self) -> str:
        return self.brokerName

    @property
    def queue_id(self) -> int:
        return self.queueId


# For scalars msgspec writes what fastjson writes: non-ASCII as is, control characters escaped, NaN as null.
_scalar: Final = msgspec.json.Encoder().encode
_SCALARS: Final = frozenset({str, float, bool, type(None)})
_Put = Callable[[bytes], None]


def dumps(value: Any) -> bytes:
    """Compact text without any white space; integer and queue keys stand bare."""
    parts: list[bytes] = []
    try:
        _compact(value, parts.append)
    except (UnicodeEncodeError, RecursionError) as error:
        raise _unwritable(error) from error
    return b"".join(parts)


def dumps_pretty(value: Any) -> bytes:
    """The layout of config/*.json: one tab per level; entries of a bare-key map stay on the opening line."""
    parts: list[bytes] = []
    try:
        _pretty(value, parts.append, b"\n")
    except (UnicodeEncodeError, RecursionError) as error:
        raise _unwritable(error) from error
    return b"".join(parts)


def dumps_strict(value: Any) -> bytes:
    """Standard JSON in ASCII with sorted, quoted keys; a queue key becomes its own text as a string."""
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":")).encode()
    except RecursionError as error:
        raise _unwritable(error) from error


def _unwritable(error: UnicodeEncodeError | RecursionError) -> WireError:
    if isinstance(error, RecursionError):
        return WireError("the value is nested too deeply to be written as JSON")
    return WireError(f"text cannot be written as UTF-8: {error}; remove lone surrogates from it")


def _items(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """The entries of anything that is written as an object, or None for lists and scalars."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, MessageQueue):
        return ("brokerName", value.brokerName), ("queueId", value.queueId), ("topic", value.topic)
    if isinstance(value, msgspec.Struct):
        fields = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return [(name, getattr(value, attribute)) for name, attribute in fields]
    return None


def _elements(value: Any) -> Iterable[Any] | None:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, set | frozenset):
        return sorted(value)
    return None


def _is_bare(key: Any) -> bool:
    return not isinstance(key, str)


def _compact(value: Any, put: _Put) -> None:
    if type(value) is int:
        # msgspec refuses what does not fit 64 bits, but a peer may have sent it.
        put(b"%d" % value)
        return
    if type(value) in _SCALARS:
        put(_scalar(value))
        return
    items = _items(value)
    if items is not None:
        separator = b"{"
        for key, item in items:
            if item is None:
                continue
            put(separator)
            _compact(key, put)
            put(b":")
            _compact(item, put)
            separator = b","
        put(b"{}" if separator == b"{" else b"}")
        return
    elements = _elements(value)
    if elements is None:
        put(_scalar(value))
        return
    separator = b"["
    for item in elements:
        put(separator)
        _compact(item, put)
        separator = b","
    put(b"[]" if separator == b"[" else b"]")


def _pretty(value: Any, put: _Put, line: bytes) -> None:
    """`line` is the line break and indent of the level that value stands on."""
    inner = line + b"\t"
    items = _items(value)
    if items is not None:
        separator = b"{"
        for key, item in items:
            if item is None:
                continue
            put(separator)
            if not _is_bare(key):
                put(inner)
            _pretty(key, put, inner)
            put(b":")
            _pretty(item, put, inner)
            separator = b","
        put(b"{}" if separator == b"{" else line + b"}")
        return
    elements = _elements(value)
    if elements is None or all(type(item) is int for item in elements):
        # Java keeps numbers in arrays, which it writes on one line, and everything else in lists.
        _compact(value, put)
        return
    separator = b"["
    for item in elements:
        put(separator + inner)
        _pretty(item, put, inner)
        separator = b","
    put(line + b"]")


def _plain(value: Any) -> Any:
    """The value in the types of the standard library's encoder, every key a string."""
    items = _items(value)
    if items is not None:
        return {
            key if isinstance(key, str) else dumps(key).decode(): _plain(item)
            for key, item in items
            if item is not None
        }
    elements = _elements(value)
    if elements is not None:
        return [_plain(item) for item in elements]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
