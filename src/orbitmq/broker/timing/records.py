"""Waiting messages as records of the log: what they say, and the records made from them."""

from __future__ import annotations

from typing import Final, NamedTuple

from orbitmq.store.inner_message import InnerMessage
from orbitmq.wire import topics as names
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.java_hash import tag_code
from orbitmq.wire.message import Message, RecordProblem, decode_record
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES, Prop, encode_properties, without_property

_HOST_FLAGS: Final = int(SysFlag.BORN_V6 | SysFlag.STORE_V6)
_REAL_TOPIC: Final = Prop.REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = Prop.REAL_QUEUE_ID.encode()
_UNIQ_KEY: Final = Prop.UNIQ_KEY.encode()
_KEYS: Final = Prop.KEYS.encode()
_TAGS: Final = Prop.TAGS.encode()
_OUT_MS: Final = Prop.TIMER_OUT_MS.encode()
_DELIVER_MS: Final = Prop.TIMER_DELIVER_MS.encode()
_ROLL_TIMES: Final = Prop.TIMER_ROLL_TIMES.encode()
_CANCELS: Final = Prop.TIMER_DEL_UNIQKEY.encode()
# Ours. The place in the timer queue that a rolled timer was at before, so that a start knows it is not there
# any more.
_ROLL_FROM: Final = b"TIMER_ROLL_FROM"
# Ours. The log offset of the record that a cancelling one is about; others are looked up by their key.
_CANCELS_AT: Final = b"TIMER_DEL_OFFSET"
CANCEL_TAG: Final = "_RECALL_TAG_"
# 5.x rounds delivery times down to its precision, of a second at most.
_PRECISION_MS: Final = 1_000

# Delivering to one of these would forge a half message, or send a message round in circles.
_NEVER_REAL: Final = frozenset({names.HALF_TOPIC, names.SCHEDULE_TOPIC, names.TIMER_TOPIC})


class Waiting(NamedTuple):
    """A record of the schedule or timer topic, its properties taken apart."""

    message: Message
    properties: dict[bytes, bytes]

    @property
    def real_topic(self) -> str:
        return self.properties.get(_REAL_TOPIC, b"").decode("utf-8", "replace")

    @property
    def real_queue_id(self) -> int:
        text = self.properties.get(_REAL_QUEUE_ID, b"")
        return int(text) if text.isdigit() else -1

    @property
    def unique_key(self) -> str:
        return self.properties.get(_UNIQ_KEY, b"").decode("utf-8", "replace")

    @property
    def due_ms(self) -> int | None:
        """Of a timer: its delivery time."""
        out_ms = _number(self.properties.get(_OUT_MS))
        exact_ms = _number(self.properties.get(_DELIVER_MS))
        if out_ms is not None and exact_ms is not None and out_ms <= exact_ms <= out_ms + _PRECISION_MS:
            return exact_ms
        return out_ms

    @property
    def cancels(self) -> str | None:
        """The unique key of the message that this record cancels."""
        key = self.properties.get(_CANCELS)
        return None if key is None else key.decode("utf-8", "replace")

    @property
    def cancels_at(self) -> int | None:
        return _number(self.properties.get(_CANCELS_AT))

    @property
    def rolled_from(self) -> int | None:
        return _number(self.properties.get(_ROLL_FROM))

    @property
    def roll_times(self) -> int:
        return _number(self.properties.get(_ROLL_TIMES)) or 0


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else None


def read_waiting(record: bytes) -> Waiting:
    """RecordProblem when the bytes are not a sound record."""
    message = decode_record(record)
    properties: dict[bytes, bytes] = {}
    for pair in message.properties_raw.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if value:
            properties[name] = value
    return Waiting(message, properties)


def real_queue(topic: bytes, queue_id: bytes) -> tuple[str, int]:
    """Where a message is delivered to. RecordProblem when that is no place for messages."""
    name = topic.decode("utf-8", "replace")
    problem = names.validate_topic(name)
    if problem or not queue_id.isdigit() or len(queue_id) > 9:
        raise RecordProblem(
            f"it names no topic and queue to be delivered to: {problem or 'REAL_QID is no number'}"
        )
    if name in _NEVER_REAL:
        raise RecordProblem(f"its real topic is the internal {name}")
    return name, int(queue_id)


def delivered(waiting: Waiting, now_ms: int) -> InnerMessage:
    """The record for the real topic. RecordProblem when it cannot be delivered anywhere."""
    properties = waiting.properties
    topic, queue_id = real_queue(properties.get(_REAL_TOPIC, b""), properties.get(_REAL_QUEUE_ID, b""))
    message = waiting.message
    text = message.properties_raw
    if message.topic == names.TIMER_TOPIC:
        text = without_property(text, _ROLL_FROM)
        text = _with(text, f"TIMER_ENQUEUE_MS\x01{message.store_ms}\x02TIMER_DEQUEUE_MS\x01{now_ms}".encode())
    return _again(waiting, topic, queue_id, text)


def rolled(waiting: Waiting) -> InnerMessage:
    """The same timer, as a new record further on in the log."""
    text = without_property(without_property(waiting.message.properties_raw, _ROLL_TIMES), _ROLL_FROM)
    more = b"%b\x01%d\x02%b\x01%d" % (
        _ROLL_TIMES,
        waiting.roll_times + 1,
        _ROLL_FROM,
        waiting.message.queue_offset,
    )
    return _again(waiting, names.TIMER_TOPIC, 0, _with(text, more))


def as_timer(waiting: Waiting, due_ms: int) -> InnerMessage:
    """A message delayed by a level, as a timer for the same moment."""
    text = _with(without_property(waiting.message.properties_raw, _OUT_MS), b"%b\x01%d" % (_OUT_MS, due_ms))
    return _again(waiting, names.TIMER_TOPIC, 0, text)


def cancelling(waiting: Waiting, due_ms: int, now_ms: int, host: bytes) -> InnerMessage:
    """The record that cancels a waiting message; RocketMQ 5 understands it too."""
    message = waiting.message
    properties = {
        Prop.TAGS: CANCEL_TAG,
        Prop.TIMER_DEL_UNIQKEY: waiting.unique_key,
        Prop.UNIQ_KEY: waiting.unique_key,
        Prop.TIMER_DELIVER_MS: str(due_ms),
        Prop.TIMER_OUT_MS: str(due_ms),
        Prop.REAL_TOPIC: waiting.real_topic,
        Prop.REAL_QUEUE_ID: str(waiting.real_queue_id),
        _CANCELS_AT.decode(): str(message.physical_offset),
    }
    text = encode_properties(properties)
    return InnerMessage(names.TIMER_TOPIC, 0, b"0", text, born_ms=now_ms, born_host=host).index_properties()


def _again(waiting: Waiting, topic: str, queue_id: int, text: bytes) -> InnerMessage:
    message, properties = waiting
    tags = properties.get(_TAGS)
    return InnerMessage(
        topic,
        queue_id,
        message.body,
        text,
        tag_code(tags) if tags else 0,
        properties.get(_UNIQ_KEY),
        properties.get(_KEYS),
        message.sys_flag & ~_HOST_FLAGS,
        message.flag,
        message.born_ms,
        message.born_host_bytes,
        message.reconsume_times,
    )


def _with(text: bytes, more: bytes) -> bytes:
    """Adds properties; a text that has no room left for them goes without."""
    between = b"" if not text or text.endswith(b"\x02") else b"\x02"
    added = text + between + more
    return added if len(added) <= MAX_PROPERTIES_BYTES else text
