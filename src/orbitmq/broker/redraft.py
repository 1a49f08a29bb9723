"""A stored message on its way into the store once more: prepared, retried or dead, under another topic.

Body, flags and birth stay as they are; the room that asked changes the rest of the draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.broker.send import Draft
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.message import Message, RecordProblem, decode_record

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.store.message_store import MessageStore

# The log sets these from the addresses of the record it writes.
_HOST_FLAGS = SysFlag.BORN_V6 | SysFlag.STORE_V6


def message_at(store: MessageStore, log_offset: int) -> Message | None:
    """The message that begins exactly here: a number from a client may point into the middle of a body."""
    record = store.read_record(log_offset)
    if record is None:
        return None
    try:
        message = decode_record(record)
    except RecordProblem:
        return None
    return message if message.physical_offset == log_offset else None


def redraft(message: Message, topic: str, queue_id: int) -> Draft:
    return Draft(
        topic,
        queue_id,
        message.body,
        dict(message.properties),
        message.sys_flag & ~_HOST_FLAGS,
        message.flag,
        message.born_ms,
        message.born_host_bytes,
        message.reconsume_times,
    )


def delay(broker: Broker, draft: Draft) -> None:
    """Lets the draft wait if it says so. The other rooms are not asked: they have already judged this message."""
    for room in broker.rooms:
        divert_delay = getattr(room, "divert_delay", None)
        if divert_delay is not None:
            divert_delay(draft)
