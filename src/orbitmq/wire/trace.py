"""Message traces: what clients report about sending, receiving and committing, as lines of text.

One message body carries many contexts, each ended by 0x02, its fields separated by 0x01. A Java null is
written as the text "null"; here it is None on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import ClassVar

from orbitmq.wire.errors import WireError

FIELD_END = "\x01"
CONTEXT_END = "\x02"
_NULL = "null"


class TraceMessageType:
    """Ordinals of msgType."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3


class ConsumeResult:
    """Ordinals of contextCode in SubAfter."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


@dataclass(slots=True)
class PubTrace:
    """One message sent."""

    kind: ClassVar[str] = "Pub"

    timestamp_ms: int
    region_id: str | None
    group: str | None
    topic: str | None
    msg_id: str | None
    tags: str | None
    keys: str | None
    store_host: str | None
    body_bytes: int
    cost_ms: int
    msg_type: int
    offset_msg_id: str | None
    success: bool
    client_host: str | None = None


@dataclass(slots=True)
class SubBeforeTrace:
    """One message about to be given to a listener."""

    kind: ClassVar[str] = "SubBefore"

    timestamp_ms: int
    region_id: str | None
    group: str | None
    request_id: str | None
    msg_id: str | None
    retry_times: int
    keys: str | None


@dataclass(slots=True)
class SubAfterTrace:
    """The listener's result; belongs to the SubBefore with the same request_id."""

    kind: ClassVar[str] = "SubAfter"

    request_id: str | None
    msg_id: str | None
    cost_ms: int
    success: bool
    keys: str | None
    context_code: int = ConsumeResult.SUCCESS
    timestamp_ms: int = 0
    group: str | None = None


@dataclass(slots=True)
class EndTransactionTrace:
    """A transaction's outcome as the producer reported it."""

    kind: ClassVar[str] = "EndTransaction"

    timestamp_ms: int
    region_id: str | None
    group: str | None
    topic: str | None
    msg_id: str | None
    tags: str | None
    keys: str | None
    store_host: str | None
    msg_type: int
    transaction_id: str | None
    state: str | None
    from_check: bool


Trace = PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace


def _field_text(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _text(field: str) -> str | None:
    return None if field == _NULL else field


def _flag(field: str) -> bool:
    return field.lower() == "true"


@dataclass(slots=True, frozen=True)
class _Shape:
    """How one kind of context lies in text: its fields in the order of the class, each with its reader."""

    make: Callable[..., Trace]
    names: tuple[str, ...]
    readers: tuple[Callable[[str], object], ...]
    required: int


_TEXT_FIELD = "str | None"


def _shape(make: type[Trace], required: int) -> _Shape:
    parsers: dict[object, Callable[[str], object]] = {"int": int, "bool": _flag, _TEXT_FIELD: _text}
    columns = fields(make)
    return _Shape(
        make=make,
        names=tuple(column.name for column in columns),
        readers=tuple(parsers[column.type] for column in columns),
        required=required,
    )


_SHAPES: dict[str, _Shape] = {
    PubTrace.kind: _shape(PubTrace, required=13),
    SubBeforeTrace.kind: _shape(SubBeforeTrace, required=7),
    SubAfterTrace.kind: _shape(SubAfterTrace, required=5),
    EndTransactionTrace.kind: _shape(EndTransactionTrace, required=12),
}
# The oldest writers have no offset id, so their success flag comes one place earlier.
_OLD_PUB_FIELDS = 12
_OFFSET_ID_AT = 11


def encode_traces(traces: Iterable[Trace]) -> bytes:
    lines: list[str] = []
    for trace in traces:
        shape = _SHAPES[trace.kind]
        texts = [trace.kind, *(_field_text(getattr(trace, name)) for name in shape.names)]
        if isinstance(trace, PubTrace) and trace.client_host is None:
            texts.pop()
        for text in texts:
            if FIELD_END in text or CONTEXT_END in text:
                raise WireError(
                    f"trace field {text[:80]!r} holds a separator character (0x01 or 0x02); "
                    "remove it from the message's key, tag or group"
                )
        lines += (FIELD_END.join(texts), CONTEXT_END)
    return "".join(lines).encode("utf-8", "replace")


def trace_keys(traces: Iterable[Trace]) -> str:
    """The KEYS of the trace message, by which the traces of a message id or user key are found again."""
    keys = dict.fromkeys(key for trace in traces for key in (trace.msg_id, trace.keys) if key)
    return " ".join(keys)


def decode_traces(body: bytes) -> list[Trace]:
    """The contexts of a trace message. Kinds this version does not know are left out."""
    traces: list[Trace] = []
    for number, context in enumerate(body.decode("utf-8", "replace").split(CONTEXT_END)):
        kind, *texts = context.split(FIELD_END)
        shape = _SHAPES.get(kind)
        if shape is None:
            continue
        if kind == PubTrace.kind and len(texts) == _OLD_PUB_FIELDS:
            texts.insert(_OFFSET_ID_AT, _NULL)
        # The cloud form of SubAfter leaves a separator with nothing behind it.
        while len(texts) > shape.required and not texts[-1]:
            texts.pop()
        if len(texts) < shape.required:
            raise _unreadable(number, kind, f"it has {len(texts)} fields, {shape.required} are needed")
        try:
            values = [read(text) for read, text in zip(shape.readers, texts, strict=False)]
        except ValueError as error:
            raise _unreadable(number, kind, str(error)) from error
        traces.append(shape.make(*values))
    return traces


def _unreadable(number: int, kind: str, reason: str) -> WireError:
    return WireError(
        f"trace context {number} ({kind}) cannot be read: {reason}; the client that wrote it is broken"
    )
