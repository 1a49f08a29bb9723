"""The body of a batch send: small messages back to back, each without topic, ids and times.

totalSize 4 | magic 4 (0) | crc 4 (0) | flag 4 | bodyLength 4, body | propertiesLength 2, properties
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as StructError

from orbitmq.wire.errors import WireError
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES

_HEAD = Struct(">iiiii")
_SHORT = Struct(">h")

FIXED_BYTES = _HEAD.size + _SHORT.size
MAX_HALF_BATCH = 1000
"""Messages in one transactional message (`broker/transaction/half_batch.py`)."""
MAX_BODY_BYTES = 0x7FFFFFFF - FIXED_BYTES - MAX_PROPERTIES_BYTES


def encode_batch(messages: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """The batch body of (flag, body, properties text) entries."""
    parts: list[bytes] = []
    for number, (flag, body, properties) in enumerate(messages):
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise WireError(
                f"the properties of message {number} of the batch take {len(properties)} bytes; "
                f"the limit is {MAX_PROPERTIES_BYTES}, shorten them"
            )
        total = FIXED_BYTES + len(body) + len(properties)
        try:
            parts.append(_HEAD.pack(total, 0, 0, flag, len(body)))
        except StructError as error:
            raise WireError(f"message {number} of the batch cannot be encoded: {error}") from error
        parts += (body, _SHORT.pack(len(properties)), properties)
    return b"".join(parts)


def iter_batch(body: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(flag, body, properties text) of each message.

    A broken entry is only met when the iteration reaches it: collect all entries before storing the first.
    """
    position = 0
    end = len(body)
    number = 0
    unpack_head = _HEAD.unpack_from
    while position < end:
        if end - position < FIXED_BYTES:
            raise _cut(number, position, f"only {end - position} bytes are left")
        total, _, _, flag, body_length = unpack_head(body, position)
        # Everything is compared with what is really there before anything is sliced, so no length can
        # reach outside its own entry.
        if not FIXED_BYTES <= total <= end - position:
            raise _cut(number, position, f"its size is given as {total}, {end - position} bytes are left")
        if not 0 <= body_length <= total - FIXED_BYTES:
            raise _cut(number, position, f"its body length is given as {body_length} within {total} bytes")
        body_at = position + _HEAD.size
        body_end = body_at + body_length
        properties_length = _SHORT.unpack_from(body, body_end)[0]
        if properties_length != total - FIXED_BYTES - body_length:
            raise _cut(
                number,
                position,
                f"body {body_length} and properties {properties_length} do not add up to its size {total}",
            )
        properties_at = body_end + _SHORT.size
        position += total
        yield flag, body[body_at:body_end], body[properties_at:position]
        number += 1


def _cut(number: int, position: int, reason: str) -> WireError:
    return WireError(
        f"message {number} of the batch, at byte {position}, is broken: {reason}; nothing of the batch "
        "can be trusted, the client has to send it again"
    )
