"""The JSON form of a command header: tolerant reading, exact writing, typed decoders for the hot requests.

Reading tries a strict typed decoder first. Whatever that refuses (bare numbers in extFields, the language as
an ordinal, nulls, raw control characters, unquoted keys) goes through the tolerant reader, which accepts what
Java's fastjson accepts.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import msgspec

from orbitmq.wire import fastjson
from orbitmq.wire.codes import LANGUAGES, PagePart
from orbitmq.wire.errors import WireError
from orbitmq.wire.header_fields import Int32, Int64

# code, flag, opaque, ext, remark, language, version
HeaderFields: TypeAlias = tuple[int, int, int, dict[str, str], str | None, str, int]

UNKNOWN_LANGUAGE: Final = "OTHER"
_MAX_INT32: Final = 2**31 - 1
_SHOWN_BYTES: Final = 80


class _StrictHeader(msgspec.Struct, gc=False):
    code: Int32
    flag: Int32 = 0
    opaque: Int32 = 0
    extFields: dict[str, str] = msgspec.field(default_factory=dict)
    remark: str | None = None
    language: str = UNKNOWN_LANGUAGE
    version: Int32 = 0


_strict = msgspec.json.Decoder(_StrictHeader)
_to_json = msgspec.json.Encoder().encode
_REAL: Final = re.compile(r"-?[0-9]{1,20}(?=[.eE])(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?").fullmatch
_LANGUAGE_JSON: Final = {name: b'"%b"' % name.encode() for name in LANGUAGES}


def decode(data: bytes | memoryview) -> HeaderFields:
    """Read one header; raises WireError when it is not a header even for a tolerant reader."""
    try:
        header = _strict.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_tolerant(data)
    return (
        header.code,
        header.flag,
        header.opaque,
        header.extFields,
        header.remark,
        header.language,
        header.version,
    )


def decode_tolerant(data: bytes | memoryview) -> HeaderFields:
    """The plain twin of `decode`: slower, accepts everything Java accepts."""
    raw = bytes(data)
    try:
        tree = fastjson.loads(raw)
    except WireError as error:
        raise WireError(f"command header is no JSON: {error}; it starts {raw[:_SHOWN_BYTES]!r}") from error
    if not isinstance(tree, dict):
        raise WireError(f"command header is not a JSON object; it starts with {raw[:_SHOWN_BYTES]!r}")
    if tree.get("code") is None:
        raise WireError("command header has no field code")
    ext = tree.get("extFields")
    if ext is None:
        ext = {}
    elif not isinstance(ext, dict):
        raise WireError(f"command header's extFields is {type(ext).__name__}, not an object")
    remark = tree.get("remark")
    return (
        _int32(tree, "code"),
        _int32(tree, "flag"),
        _int32(tree, "opaque"),
        {_text(key): _text(value) for key, value in ext.items() if value is not None},
        None if remark is None else _text(remark),
        _language(tree.get("language")),
        _int32(tree, "version"),
    )


def encode(
    code: int, flag: int, opaque: int, ext: dict[str, str], remark: str | None, language: str, version: int
) -> bytes:
    """Write one header as Java does: keys in alphabetical order, no white space, absent instead of null."""
    try:
        spoken = _LANGUAGE_JSON.get(language) or _to_json(language)
        if remark is None:
            if ext:
                return (
                    b'{"code":%d,"extFields":%b,"flag":%d,"language":%b,"opaque":%d,'
                    b'"serializeTypeCurrentRPC":"JSON","version":%d}'
                ) % (code, _to_json(ext), flag, spoken, opaque, version)
            return (
                b'{"code":%d,"flag":%d,"language":%b,"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
            ) % (code, flag, spoken, opaque, version)
        fields = b'"extFields":%b,' % _to_json(ext) if ext else b""
        return (
            b'{"code":%d,%b"flag":%d,"language":%b,"opaque":%d,"remark":%b,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (code, fields, flag, spoken, opaque, _to_json(remark), version)
    except UnicodeEncodeError as error:
        raise WireError(f"header text is not valid Unicode: {error}; remove lone surrogates") from error


def _int32(tree: dict[Any, Any], key: str) -> int:
    value = tree.get(key)
    if value is None:
        return 0
    if isinstance(value, str) and (text := value.strip()) and _REAL(text):
        value = float(text)  # "1.0": Java takes it, and so does the decoder of plain sends
    if isinstance(value, str):
        number = fastjson.parse_int(value)
    elif isinstance(value, float):
        number = int(value) if value.is_integer() else None
    else:
        number = value if isinstance(value, int) else None
    if number is None or isinstance(value, bool) or not -_MAX_INT32 - 1 <= number <= _MAX_INT32:
        raise WireError(f"command header's {key} is not a 32-bit integer: {str(value)[:_SHOWN_BYTES]!r}")
    return number


def _text(value: Any) -> str:
    """An extFields value as Java's toString would give it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return fastjson.dumps(value).decode()


def _language(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(LANGUAGES):
        return LANGUAGES[value]
    return UNKNOWN_LANGUAGE


class SendV2Fields(msgspec.Struct, gc=False):
    """Letters of SendMessageRequestHeaderV2."""

    a: str
    b: str
    c: str
    d: Int32
    e: Int32
    f: Int32
    g: Int64
    h: Int32
    i: str = ""
    j: Int32 = 0
    k: bool = False
    l: Int32 | None = None  # noqa: E741 - the wire's name
    m: bool = False


class HotSendV2(msgspec.Struct, gc=False):
    """Header of SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and SEND_REPLY_MESSAGE_V2."""

    code: Int32
    extFields: SendV2Fields
    opaque: Int32
    flag: Int32 = 0
    version: Int32 = 0


class SendV1Fields(msgspec.Struct, gc=False, rename="camel"):
    """Fields of SendMessageRequestHeader."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False


class HotSendV1(msgspec.Struct, gc=False):
    """Header of SEND_MESSAGE and SEND_REPLY_MESSAGE."""

    code: Int32
    extFields: SendV1Fields
    opaque: Int32
    flag: Int32 = 0
    version: Int32 = 0


class PullFields(msgspec.Struct, gc=False, rename="camel"):
    """Fields of PullMessageRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    page_bytes: Int32 = 0
    page_parts: Int32 = PagePart.WHOLE


class HotPull(msgspec.Struct, gc=False):
    """Header of PULL_MESSAGE and LITE_PULL_MESSAGE."""

    code: Int32
    extFields: PullFields
    opaque: Int32
    flag: Int32 = 0
    version: Int32 = 0


class OffsetFields(msgspec.Struct, gc=False, rename="camel"):
    """Fields of UpdateConsumerOffsetRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class HotOffset(msgspec.Struct, gc=False):
    """Header of UPDATE_CONSUMER_OFFSET."""

    code: Int32
    extFields: OffsetFields
    opaque: Int32
    flag: Int32 = 0
    version: Int32 = 0


# Numbers travel as strings, so these decoders read "5" as 5. On anything unusual they raise
# one of HOT_ERRORS: the caller then takes the tolerant way.
HOT_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
SEND_V2: Final = msgspec.json.Decoder(HotSendV2, strict=False)
SEND_V1: Final = msgspec.json.Decoder(HotSendV1, strict=False)
PULL: Final = msgspec.json.Decoder(HotPull, strict=False)
OFFSET: Final = msgspec.json.Decoder(HotOffset, strict=False)
