"""The property text inside a stored record, found without decoding the rest."""

from __future__ import annotations

from orbitmq.wire.codes import SysFlag
from orbitmq.wire.message import HEAD, HEADS, MAGIC_AT, MESSAGE_MAGIC, SYS_FLAG_AT

_V6_FLAGS = SysFlag.BORN_V6 | SysFlag.STORE_V6
_V6_SHIFT = 4
_LAST_OF_MAGIC, _LAST_OF_FLAG = MAGIC_AT + 3, SYS_FLAG_AT + 3
_ONE_BYTE_TOPIC = MESSAGE_MAGIC & 0xFF
_HEAD_BYTES = HEAD.size
_BODY_LENGTH_AT = _HEAD_BYTES - 4


def properties_at(record: bytes) -> int:
    """Where the text begins; it ends with the record. Records come from the log, where lengths were checked."""
    if record[_LAST_OF_FLAG] & _V6_FLAGS or record[_LAST_OF_MAGIC] != _ONE_BYTE_TOPIC:
        return _in_other_form(record)
    topic_at = _HEAD_BYTES + int.from_bytes(record[_BODY_LENGTH_AT:_HEAD_BYTES], "big")
    return topic_at + 3 + record[topic_at]


def _in_other_form(record: bytes) -> int:
    """With IPv6 hosts, or with two bytes for the topic's length."""
    head_bytes = HEADS[(record[_LAST_OF_FLAG] & _V6_FLAGS) >> _V6_SHIFT].size
    topic_at = head_bytes + int.from_bytes(record[head_bytes - 4 : head_bytes], "big")
    if record[_LAST_OF_MAGIC] == _ONE_BYTE_TOPIC:
        return topic_at + 3 + record[topic_at]
    return topic_at + 4 + int.from_bytes(record[topic_at : topic_at + 2], "big")


def property_text(record: bytes) -> bytes:
    return record[properties_at(record) :]
