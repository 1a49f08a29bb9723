"""Many messages that become visible together: one half message whose body is that of a batch send.

A writer of tables ends thousands of transactions at once; one for each row costs more than everything else. The
property ORBITMQ_HALF_BATCH tells how many messages there are, and a commit stores each as a record of its own. No
official client sends it, and ours only to brokers that are OrbitMQ.
"""

from __future__ import annotations

from typing import Final

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

# What a message cannot have that is stored at the commit, together with others, in the queue of the batch.
_NOT_IN_A_BATCH: Final = frozenset(
    {
        Prop.DELAY,
        Prop.TIMER_DELAY_SEC,
        Prop.TIMER_DELAY_MS,
        Prop.TIMER_DELIVER_MS,
        Prop.INNER_MULTI_DISPATCH,
        Prop.CLUSTER,
    }
)

_PAIRS_NOT_IN_A_BATCH: Final = tuple(f"{name}\x01".encode() for name in sorted(_NOT_IN_A_BATCH))
_UNIQ_KEY: Final = Prop.UNIQ_KEY.encode()


def is_batch(properties: dict[str, str]) -> bool:
    return Prop.HALF_BATCH in properties


def check(draft: Draft, log_file_bytes: int) -> None:
    """Refuses what could not be committed later; whatever passes here can be."""
    if draft.sys_flag & SysFlag.COMPRESSED or not _NOT_IN_A_BATCH.isdisjoint(
        draft.properties.keys() - {Prop.CLUSTER}
    ):
        raise _bad("it is compressed or delayed")
    added_bytes = len(_added(draft.properties)) + 1
    longest = MAX_PROPERTIES_BYTES - added_bytes
    # One look at the whole body instead of one at the properties of each message; a hit may lie in a body, too.
    suspicious = any(pair in draft.body for pair in _PAIRS_NOT_IN_A_BATCH)
    unique: set[bytes] = set()
    stored_bytes = 0
    try:
        for number, (_, body, text) in enumerate(iter_batch(draft.body)):
            if not body:
                raise _bad(f"message {number} is empty")
            if suspicious and (found := _NOT_IN_A_BATCH & decode_properties(text).keys()):
                raise _bad(f"message {number} has {', '.join(sorted(found))}")
            if len(text) > longest:
                raise _bad(f"message {number} has {len(text)} bytes of properties")
            key = find_property(text, _UNIQ_KEY)
            if key is None or key in unique:
                raise _bad(f"message {number} has no unique id (UNIQ_KEY) of its own")
            unique.add(key)
            stored_bytes += len(body) + len(text)
    except WireError as error:
        raise _bad(str(error)) from error
    if not 0 < len(unique) <= MAX_HALF_BATCH or draft.properties[Prop.HALF_BATCH] != str(len(unique)):
        raise _bad(
            f"it holds {len(unique)} messages; 1 to {MAX_HALF_BATCH} are allowed, and as many as it tells"
        )
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


def messages(half: Message, topic: str, queue_id: int) -> list[InnerMessage]:
    """The messages as consumers get them."""
    shapes = shapes_of(half.properties)
    return [
        InnerMessage(
            topic,
            queue_id,
            body,
            shapes.learn(text).properties,
            sys_flag=SysFlag.TX_COMMIT,
            flag=flag,
            born_ms=half.born_ms,
            born_host=half.born_host_bytes,
            prepared_offset=half.physical_offset,
        ).index_properties()
        for flag, body, text in iter_batch(half.body)
    ]


def rest(half: Message | None, unique_keys: set[str]) -> list[InnerMessage]:
    """The messages of a batch that are not among these."""
    target = records.real_queue(half) if half is not None and is_batch(half.properties) else None
    if half is None or target is None:
        return []
    return [
        message
        for message in messages(half, *target)
        if (message.unique_key or b"").decode("utf-8", "replace") not in unique_keys
    ]
