"""How typed headers meet extFields: every value travels as a string, names are Java's.

`read` is fast for well-formed fields and falls back to `read_tolerant`, which also names the wrong field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from orbitmq.wire.errors import BadHeader
from orbitmq.wire.fastjson import parse_int

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_SHOWN_CHARS: Final = 60
# The binary codec sends null as an empty value; some clients write the word.
_NOTHING: Final = ("", "null")


class Header(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """Base of all typed headers: Python names in code, camel case on the wire, unknown fields ignored."""


H = TypeVar("H", bound=Header)


def read(header_type: type[H], ext: Mapping[str, str], request: str) -> H:
    """The typed header in extFields; `request` names the request in the error text."""
    try:
        return msgspec.convert(ext, header_type, strict=False)
    except msgspec.ValidationError:
        return read_tolerant(header_type, ext, request)


def read_tolerant(header_type: type[H], ext: Mapping[str, str], request: str) -> H:
    """The plain twin of `read`: blanks around numbers, empty optional numbers, and any word as a boolean."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(header_type):
        text = ext.get(field.encode_name)
        kind, parse = _KINDS[field.type]
        if text is None or (kind != "string" and text.strip().lower() in _NOTHING):
            if field.required:
                raise BadHeader(f"field {field.encode_name} of {request} is missing")
            continue
        value = parse(text)
        if value is None:
            raise BadHeader(
                f"field {field.encode_name} of {request} is not an {kind}: {text[:_SHOWN_CHARS]!r}"
            )
        values[field.name] = value
    return header_type(**values)


def to_ext(header: Header) -> dict[str, str]:
    """The header as extFields; fields that are None are left out."""
    ext: dict[str, str] = {}
    for name, attribute in zip(header.__struct_encode_fields__, header.__struct_fields__, strict=True):
        value = getattr(header, attribute)
        if value is True:
            ext[name] = "true"
        elif value is False:
            ext[name] = "false"
        elif value is not None:
            ext[name] = value if type(value) is str else str(value)
    return ext


def _bounded(bits: int) -> Callable[[str], int | None]:
    limit = 1 << (bits - 1)

    def parse(text: str) -> int | None:
        value = parse_int(text)
        if value is None:
            try:
                # Whole numbers in a float's clothes ("1.0", "1e3"), which the fast way takes as well.
                value = msgspec.convert(text.strip(), int, strict=False)
            except msgspec.ValidationError:
                return None
        return value if -limit <= value < limit else None

    return parse


def _to_bool(text: str) -> bool:
    # Java's rule: the word true in any case is true, every other text is false.
    return text.strip().lower() in ("true", "1")


def _same(text: str) -> str:
    return text


_int32: Final = _bounded(32)
_int64: Final = _bounded(64)
_KINDS: Final[dict[Any, tuple[str, Callable[[str], Any]]]] = {
    str: ("string", _same),
    str | None: ("string", _same),
    Int32: ("int", _int32),
    Int32 | None: ("int", _int32),
    Int64: ("int of 64 bits", _int64),
    Int64 | None: ("int of 64 bits", _int64),
    bool: ("boolean", _to_bool),
    bool | None: ("boolean", _to_bool),
}
