"""The common record, taken apart with as little work as possible; everything else is left to `records`.

Both functions give what `records` gives, or None; tests compare the two.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from orbitmq.wire.checksum import crc32
from orbitmq.wire.java_hash import tag_code
from orbitmq.wire.message import HEAD, MESSAGE_MAGIC
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES
from orbitmq.wire.topics import TIMER_TOPIC

_V6_FLAGS: Final = 0x30
_HEAD_BYTES: Final = HEAD.size
_TIMER: Final = bytes([len(TIMER_TOPIC)]) + TIMER_TOPIC.encode()
_unpack = HEAD.unpack_from
# With one of these there is more to a timer than its time.
_SPECIAL: Final = (b"TIMER_DEL_UNIQKEY", b"TIMER_ROLL_FROM")
_PRECISION_MS: Final = 1_000


class Delivery(NamedTuple):
    """What `CommitLog.stage` takes, with the queue's name in front."""

    target: tuple[bytes, bytes]
    """REAL_TOPIC and REAL_QID as they are in the text."""
    body: bytes
    properties: bytes
    sys_flag: int
    flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int
    tags_code: int
    unique_key: bytes | None
    keys: bytes | None


def due_of(record: bytes, queue_offset: int) -> int | None:
    """The delivery time of a plain timer at this place of the timer queue."""
    if len(record) < _HEAD_BYTES or record[39] & _V6_FLAGS:
        return None
    if int.from_bytes(record[20:28], "big") != queue_offset:
        return None
    body_end = _HEAD_BYTES + int.from_bytes(record[84:88], "big")
    properties_at = body_end + len(_TIMER) + 2
    if record[body_end : properties_at - 2] != _TIMER:
        return None
    properties = record[properties_at:]
    if int.from_bytes(record[properties_at - 2 : properties_at], "big") != len(properties):
        return None
    text = b"\x02" + properties + b"\x02"
    for special in _SPECIAL:
        if special in text:
            return None
    out_ms = _number(text, b"\x02TIMER_OUT_MS\x01")
    if out_ms is None:
        return None
    exact_ms = _number(text, b"\x02TIMER_DELIVER_MS\x01")
    return exact_ms if exact_ms is not None and out_ms <= exact_ms <= out_ms + _PRECISION_MS else out_ms


def _number(text: bytes, mark: bytes) -> int | None:
    value = _value(text, mark)
    return int(value) if value is not None and value.isdigit() and len(value) < 19 else None


def _value(text: bytes, mark: bytes) -> bytes | None:
    """Empty where an empty value hides what an earlier pair of that name says: not a common record."""
    found = text.rfind(mark)
    if found < 0:
        return None
    start = found + len(mark)
    return text[start : text.find(b"\x02", start)]


def delivery(record: bytes, now_ms: int) -> Delivery | None:
    if len(record) < _HEAD_BYTES:
        return None
    (
        *(size, magic, body_crc, _, flag, _, _, sys_flag, born_ms, born_host, store_ms, _),
        reconsume_times,
        _,
        body_bytes,
    ) = _unpack(record)
    body_end = _HEAD_BYTES + body_bytes
    if magic != MESSAGE_MAGIC or sys_flag & _V6_FLAGS or size != len(record) or not 0 < body_bytes < size:
        return None
    body = record[_HEAD_BYTES:body_end]
    topic_at = body_end + 1
    properties_at = topic_at + record[body_end] + 2 if body_end < size else size
    if properties_at > size or crc32(body) != body_crc:
        return None
    properties = record[properties_at:]
    if int.from_bytes(record[properties_at - 2 : properties_at], "big") != len(properties):
        return None
    text = b"\x02" + properties + b"\x02"
    real_topic = _value(text, b"\x02REAL_TOPIC\x01")
    real_queue = _value(text, b"\x02REAL_QID\x01")
    tags = _value(text, b"\x02TAGS\x01")
    unique_key = _value(text, b"\x02UNIQ_KEY\x01")
    keys = _value(text, b"\x02KEYS\x01")
    if not real_topic or not real_queue or b"" in (tags, unique_key, keys):
        return None
    if record[body_end : properties_at - 2] == _TIMER:
        if b"TIMER_ROLL_FROM" in text:
            return None
        times = b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d" % (store_ms, now_ms)
        properties = properties + times if properties[-1:] == b"\x02" else text[1:] + times
        if len(properties) > MAX_PROPERTIES_BYTES:
            return None
    return Delivery(
        (real_topic, real_queue),
        body,
        properties,
        sys_flag,
        flag,
        born_ms,
        born_host,
        reconsume_times,
        tag_code(tags) if tags is not None else 0,
        unique_key,
        keys,
    )
