"""A message as people and programs see it: every field by name, the body as text where it is text."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from orbitmq.cli.output import print_fields, print_line, time_text

if TYPE_CHECKING:
    from orbitmq.wire.message import Message

SHOWN_BODY_CHARS: Final = 200
# What the system sets itself; people look for their own properties.
_INTERNAL: Final = frozenset({"KEYS", "TAGS", "UNIQ_KEY", "WAIT", "CLUSTER"})


def as_document(message: Message) -> dict[str, Any]:
    """Every field; a body that is not UTF-8 text is given as base64 under `body_base64`."""
    document: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "tag": message.tags,
        "keys": message.key_list,
        "born_ms": message.born_ms,
        "born_host": message.born_host,
        "store_ms": message.store_ms,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "sys_flag": message.sys_flag,
        "flag": message.flag,
        "size": message.size,
        "properties": message.properties,
    }
    body, problem = _body(message)
    text = _text(body)
    if text is not None:
        document["body"] = text
    else:
        document["body_base64"] = base64.b64encode(body).decode()
    if problem:
        document["body_problem"] = problem
    return document


def print_message(message: Message) -> None:
    """All of one message, below each other."""
    body, problem = _body(message)
    fields: dict[str, object] = {
        "topic": message.topic,
        "queue": str(message.queue_id),
        "offset": str(message.queue_offset),
        "message id": message.msg_id,
        "offset id": message.offset_msg_id,
        "tag": message.tags or "none",
        "keys": message.key_list or "none",
        "born": f"{time_text(message.born_ms)} at {message.born_host}",
        "stored": f"{time_text(message.store_ms)} at {message.store_host}",
        "tried again": f"{message.reconsume_times} times",
        "size": f"{message.size:,} bytes stored, body {len(body):,} bytes",
    }
    for name, value in sorted(message.properties.items()):
        if name not in _INTERNAL:
            fields[f"property {name}"] = value
    if problem:
        fields["body problem"] = problem
    print_fields(fields)
    text = _text(body)
    print_line("" if text is not None else f"body, {len(body)} bytes in hexadecimal:")
    print_line(text if text is not None else body.hex(" ", 4))


def one_line(message: Message) -> str:
    """Where and when, then tag, keys and the beginning of the body: a line of `tail`."""
    body, problem = _body(message)
    text = _text(body)
    shown = text if text is not None else body[: SHOWN_BODY_CHARS // 2].hex()
    shown = " ".join(shown.split())
    if len(shown) > SHOWN_BODY_CHARS:
        shown = shown[:SHOWN_BODY_CHARS] + "…"
    marks = [f"[{message.tags}]"] if message.tags else []
    marks += [f"#{key}" for key in message.key_list]
    if problem:
        marks.append(f"({problem})")
    place = f"{message.queue_id}@{message.queue_offset}"
    return "  ".join([time_text(message.store_ms), place, *marks, shown])


def _body(message: Message) -> tuple[bytes, str | None]:
    """The decompressed body; the stored bytes and the reason when that is impossible."""
    from orbitmq.wire.errors import WireError

    try:
        return message.decoded_body(), None
    except WireError as error:
        return message.body, str(error)


def _text(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    # Control characters other than line breaks and tabs could take over a terminal.
    return text if all(char >= " " or char in "\n\r\t" for char in text) else None
