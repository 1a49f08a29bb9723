"""The answer to a send, read in one typed step: the common case of a producer that waits for thousands of them.

Only headers without a body and in the usual form are read here; anything else goes through `command.decode`, and
`from_command` makes the same of it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from orbitmq.wire.command import Command
from orbitmq.wire.fastjson import parse_int
from orbitmq.wire.header_fields import Int32, Int64


class AnswerFields(msgspec.Struct, gc=False):
    """SendMessageResponseHeader; -1 where the broker did not say."""

    msgId: str = ""
    queueId: Int32 = -1
    queueOffset: Int64 = -1
    recallHandle: str | None = None


class Answer(msgspec.Struct, gc=False):
    """A response header, as far as a producer looks at it."""

    code: Int32
    opaque: Int32
    flag: Int32
    extFields: AnswerFields = msgspec.field(default_factory=AnswerFields)
    remark: str | None = None


# Numbers travel as strings, so this reads "5" as 5. It raises one of header_json.HOT_ERRORS on anything unusual.
ANSWER: Final = msgspec.json.Decoder(Answer, strict=False)


def from_command(command: Command) -> Answer:
    """The plain twin of the decoder; a number that cannot be read counts as not said."""
    ext = command.ext
    fields = AnswerFields(
        msgId=ext.get("msgId", ""),
        queueId=_number(ext.get("queueId"), 32),
        queueOffset=_number(ext.get("queueOffset"), 64),
        recallHandle=ext.get("recallHandle"),
    )
    return Answer(command.code, command.opaque, command.flag, fields, command.remark)


def _number(text: str | None, bits: int) -> int:
    value = parse_int(text) if text else None
    return value if value is not None and -(1 << (bits - 1)) <= value < 1 << (bits - 1) else -1
