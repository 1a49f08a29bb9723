"""Many messages that become visible together: one half message whose body is that of a batch send.

A writer of tables ends thousands of transactions at once; one for each row costs more than everything else. The
property ORBITMQ_HALF_BATCH tells how many messages there are, and a commit stores each as a record of its own. No
official client sends it, and ours only to brokers that say that they know it (`listing.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orbitmq.broker.redraft import DELAYS
from orbitmq.broker.send import Draft
from orbitmq.broker.transaction import records
from orbitmq.net.errors import RequestError
from orbitmq.store.commit_log import LARGEST_HEAD_BYTES
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.property_shapes import PropertyShapes
from orbitmq.wire.batch import MAX_HALF_BATCH, iter_batch
from orbitmq.wire.codes import ResponseCode, SysFlag
from orbitmq.wire.errors import WireError
from orbitmq.wire.message import Message
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES, Prop, decode_properties, find_property

# What would make the commit store something else than plain messages, one behind the other, in the queue of the batch.
_NOT_OF_A_BATCH: Final = DELAYS | {Prop.INNER_MULTI_DISPATCH}
# The commit adds the cluster itself.
_NOT_OF_ITS_MESSAGES: Final = _NOT_OF_A_BATCH | {Prop.CLUSTER}
_PAIRS_NOT_OF_ITS_MESSAGES: Final = tuple(f"{name}\x01".encode() for name in sorted(_NOT_OF_ITS_MESSAGES))
_UNIQ_KEY: Final = Prop.UNIQ_KEY.encode()


def is_batch(properties: dict[str, str]) -> bool:
    return Prop.HALF_BATCH in properties


def check(draft: Draft, log_file_bytes: int) -> None:
    """Refuses what could not be committed later; whatever passes here can be."""
    if draft.sys_flag & SysFlag.COMPRESSED:
        raise _bad("it is compressed")
    if found := _NOT_OF_A_BATCH & draft.properties.keys():
        raise _bad(f"it has {', '.join(sorted(found))}")
    added_bytes = len(_added(draft.properties)) + 1
    longest = MAX_PROPERTIES_BYTES - added_bytes
    # One look at the whole body instead of one at the properties of each message; a hit may lie in a body, too.
    suspicious = any(pair in draft.body for pair in _PAIRS_NOT_OF_ITS_MESSAGES)
    unique: set[bytes] = set()
    stored_bytes = 0
    try:
        for number, (_, body, text) in enumerate(iter_batch(draft.body)):
            if number == MAX_HALF_BATCH:
                raise _bad(f"it holds more than {MAX_HALF_BATCH} messages")
            if not body:
                raise _bad(f"message {number} is empty")
            if suspicious and (found := _NOT_OF_ITS_MESSAGES & decode_properties(text).keys()):
                raise _bad(f"message {number} has {', '.join(sorted(found))}")
            if len(text) > longest:
                raise _bad(f"message {number} has {len(text)} bytes of properties")
            key = unique_key(text)
            if not key or key in unique:
                raise _bad(f"message {number} has no unique id (UNIQ_KEY) of its own")
            unique.add(key)
            stored_bytes += len(body) + len(text)
    except WireError as error:
        raise _bad(str(error)) from error
    if not unique or draft.properties[Prop.HALF_BATCH] != str(len(unique)):
        raise _bad(f"it holds {len(unique)} messages; at least one is needed, and as many as it tells")
    stored_bytes += len(unique) * (LARGEST_HEAD_BYTES + added_bytes)
    if stored_bytes > log_file_bytes:
        raise _bad(
            f"it takes up to {stored_bytes} bytes in the log, more than a file of it (mappedFileSizeCommitLog)"
        )


def _bad(why: str) -> RequestError:
    return RequestError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"a batch of transactional messages ({Prop.HALF_BATCH}) cannot be taken: {why}; send them one by one",
    )


def shapes_of(properties: dict[str, str]) -> PropertyShapes:
    """What a commit adds to the properties of each message: the same as a plain batch send."""
    return PropertyShapes(_added(properties))


def _added(properties: dict[str, str]) -> bytes:
    return f"{Prop.CLUSTER}\x01{properties.get(Prop.CLUSTER, '')}".encode()


def unique_key(text: bytes) -> bytes:
    """By which a message of a batch is known among the others; as bytes, since nobody promises that they are text."""
    return find_property(text, _UNIQ_KEY) or b""


def messages(half: Message, topic: str, queue_id: int, prepared_offset: int) -> list[InnerMessage]:
    """The messages as consumers get them; `prepared_offset` as in `records.real`."""
    return [message for _, message in _messages(half, topic, queue_id, prepared_offset)]


def rest(half: Message, stored: set[bytes]) -> list[InnerMessage]:
    """The messages of a batch whose unique keys are not among these; of a single message nothing is ever missing."""
    target = records.real_queue(half)
    if target is None or not is_batch(half.properties):
        return []
    found = _messages(half, *target, half.physical_offset)
    return [message for key, message in found if key not in stored]


def _messages(
    half: Message, topic: str, queue_id: int, prepared_offset: int
) -> Iterator[tuple[bytes, InnerMessage]]:
    shapes = shapes_of(half.properties)
    for flag, body, text in iter_batch(half.body):
        parsed = shapes.learn(text)
        yield (
            unique_key(text),
            InnerMessage(
                topic,
                queue_id,
                body,
                parsed.properties,
                parsed.tags_code,
                parsed.keys[0] if parsed.keys else None,
                b" ".join(parsed.keys[1:]) or None,
                SysFlag.TX_COMMIT,
                flag,
                half.born_ms,
                half.born_host_bytes,
                prepared_offset=prepared_offset,
            ),
        )
