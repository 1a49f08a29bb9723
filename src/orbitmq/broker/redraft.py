"""A stored message on its way into the store once more: prepared, retried or dead, under another topic.

Body, flags and birth stay as they are; the room that asked changes the rest of the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker.send import Draft
from orbitmq.net.errors import RequestError
from orbitmq.store.commit_log import LARGEST_HEAD_BYTES
from orbitmq.wire.codes import ResponseCode, SysFlag
from orbitmq.wire.message import Message, RecordProblem, decode_record
from orbitmq.wire.properties import Prop

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.store.inner_message import InnerMessage
    from orbitmq.store.message_store import MessageStore

# The log sets these from the addresses of the record it writes.
_HOST_FLAGS: Final = SysFlag.BORN_V6 | SysFlag.STORE_V6
DELAYS: Final = frozenset({Prop.DELAY, Prop.TIMER_DELIVER_MS, Prop.TIMER_DELAY_MS, Prop.TIMER_DELAY_SEC})
"""With any of these a message waits for its time."""


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
    """Lets the draft wait if it says so. The other rooms have judged this message before: not asked."""
    for room in broker.rooms:
        divert_delay = getattr(room, "divert_delay", None)
        if divert_delay is not None:
            divert_delay(draft)


def asks_for_delay(properties: dict[str, str]) -> bool:
    return not DELAYS.isdisjoint(properties)


def check_delay(broker: Broker, draft: Draft) -> None:
    """Refuses now what `delay` would refuse later; the draft stays as it is."""
    if asks_for_delay(draft.properties):
        delay(
            broker, replace(draft, properties=dict(draft.properties), sys_flag=0, answer={}, after_store=[])
        )


class Place(NamedTuple):
    log_offset: int
    queue_offset: int


def check_size(store: MessageStore, variable_bytes: int) -> None:
    """What is added to a stored message may make it longer than a log file, in which it must be in one piece."""
    if LARGEST_HEAD_BYTES + variable_bytes > store.settings.commit_log_file_bytes:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, "the message does not fit into a log file (mappedFileSizeCommitLog)"
        )


def stored(draft: Draft, place: Place) -> None:
    """Tells whoever diverted the draft that it is in the log."""
    for action in draft.after_store:
        action(place.log_offset, place.queue_offset)


def put_all(store: MessageStore, messages: Sequence[InnerMessage]) -> tuple[list[Place], int]:
    """Stores several messages with one commit, in this order; where they are, and where the last one ends.

    OSError, or RequestError for one that is longer than a log file: none of them is stored.
    """
    for message in messages:
        check_size(store, len(message.body) + len(message.properties))
    places: list[Place] = []
    try:
        for message in messages:
            queue = store.queue(message.topic, message.queue_id)
            queue_offset = queue.next_offset
            places.append(Place(store.stage_inner(message), queue_offset))
    except OSError as error:
        store.abandon_staged(error)
        raise
    except Exception:
        store.log.roll_back()
        raise
    return places, store.commit_staged()
