"""The ROCKETMQ binary form of a command header.

    code 2 | language 1 | version 2 | opaque 4 | flag 4 | remark 4+n | ext length 4 | (key 2+n, value 4+n)*

An empty value and an absent one are the same thing in this form, so empty values are dropped on reading. A
key may come twice (header fields written once, extFields of an RPC hook once more); the last one wins.
"""

from __future__ import annotations

import struct
from typing import Final

from orbitmq.wire.codes import LANGUAGES
from orbitmq.wire.errors import WireError
from orbitmq.wire.header_json import UNKNOWN_LANGUAGE, HeaderFields

MAX_CODE: Final = 2**15 - 1
_MAX_KEY_BYTES: Final = 2**15 - 1
_FIXED: Final = struct.Struct(">hBhiii")
_INT: Final = struct.Struct(">i")
_UNSIGNED: Final = struct.Struct(">I")
_ORDINALS: Final = {name: ordinal for ordinal, name in enumerate(LANGUAGES)}
_OTHER: Final = _ORDINALS[UNKNOWN_LANGUAGE]


def decode(data: bytes | memoryview) -> HeaderFields:
    """Read one header; raises WireError when a length does not fit or text is not UTF-8."""
    header = bytes(data)
    size = len(header)
    if size < _FIXED.size:
        raise WireError(f"binary header of {size} bytes is shorter than its fixed part of {_FIXED.size}")
    code, ordinal, version, opaque, flag, remark_size = _FIXED.unpack_from(header)
    pos: int = _FIXED.size
    end = pos + remark_size
    if remark_size < 0 or end > size:
        raise WireError(f"binary header's remark length {remark_size} does not fit into {size} bytes")
    try:
        remark = header[pos:end].decode() if remark_size else None
        ext = _decode_ext(header, end, size)
    except UnicodeDecodeError as error:
        raise WireError(f"binary header holds text that is not UTF-8: {error}") from error
    language = LANGUAGES[ordinal] if ordinal < len(LANGUAGES) else UNKNOWN_LANGUAGE
    return code, flag, opaque, ext, remark, language, version


def _decode_ext(header: bytes, pos: int, size: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    if size - pos < 4:
        # Java stops silently when the ext length is missing, and so do we: there is nothing left to misread.
        return ext
    (ext_size,) = _INT.unpack_from(header, pos)
    pos += 4
    end = pos + ext_size
    if ext_size < 0 or end > size:
        raise WireError(f"binary header's ext length {ext_size} does not fit into {size} bytes")
    while pos < end:
        key_start = pos + 2
        if key_start > end:
            raise WireError(f"binary header's ext entry at byte {pos} does not fit the ext length {ext_size}")
        key_end = key_start + (header[pos] << 8 | header[pos + 1])
        value_start = key_end + 4
        if value_start > end:
            raise WireError(f"binary header's ext key at byte {pos} does not fit the ext length {ext_size}")
        (value_size,) = _UNSIGNED.unpack_from(header, key_end)
        pos = value_start + value_size
        if pos > end:
            raise WireError(f"binary header's ext value of {value_size} does not fit its ext of {ext_size}")
        if value_size:
            ext[header[key_start:key_end].decode()] = header[value_start:pos].decode()
    return ext


def encode(
    code: int, flag: int, opaque: int, ext: dict[str, str], remark: str | None, language: str, version: int
) -> bytes:
    """Write one header; the caller keeps codes above MAX_CODE out of this form."""
    try:
        remark_bytes = remark.encode() if remark else b""
        parts: list[bytes] = []
        for key, value in ext.items():
            key_bytes, value_bytes = key.encode(), value.encode()
            if len(key_bytes) > _MAX_KEY_BYTES:
                raise WireError(f"ext key of {len(key_bytes)} bytes is above the limit of {_MAX_KEY_BYTES}")
            parts += (
                len(key_bytes).to_bytes(2, "big"),
                key_bytes,
                len(value_bytes).to_bytes(4, "big"),
                value_bytes,
            )
        fields = b"".join(parts)
        fixed = _FIXED.pack(code, _ORDINALS.get(language, _OTHER), version, opaque, flag, len(remark_bytes))
    except UnicodeEncodeError as error:
        raise WireError(f"header text is not valid Unicode: {error}; remove lone surrogates") from error
    except struct.error as error:
        raise WireError(f"header of code {code} does not fit the binary form: {error}; use JSON") from error
    return fixed + remark_bytes + _INT.pack(len(fields)) + fields
