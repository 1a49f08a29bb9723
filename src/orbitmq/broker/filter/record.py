"""The property text inside a stored record, found without decoding the rest."""

from __future__ import annotations

from orbitmq.wire.codes import SysFlag
from orbitmq.wire.message import HEAD, HEADS, MESSAGE_MAGIC, SYS_FLAG_AT

_V6_FLAGS = SysFlag.BORN_V6 | SysFlag.STORE_V6
_V6_SHIFT = 4
_MAGIC = MESSAGE_MAGIC.to_bytes(4, "big")


def property_text(record: bytes) -> bytes:
    """Records come from the log, where their lengths were checked."""
    head_bytes = HEAD.size
    v6 = record[SYS_FLAG_AT + 3] & _V6_FLAGS
    if v6:
        head_bytes = HEADS[v6 >> _V6_SHIFT].size
    topic_at = head_bytes + int.from_bytes(record[head_bytes - 4 : head_bytes], "big")
    if record[4:8] == _MAGIC:
        return record[topic_at + 3 + record[topic_at] :]
    return record[topic_at + 4 + int.from_bytes(record[topic_at : topic_at + 2], "big") :]
