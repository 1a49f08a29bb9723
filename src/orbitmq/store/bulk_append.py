"""Packing many records in one loop: what the append path does when messages come by the hundred.

Both functions do what `CommitLog.stage` does for each message, with everything in locals; tests compare their records
with the plain encoder's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from orbitmq.store.commit_log import BORN_V6, CommitLog
from orbitmq.store.consume_queue import UNIT, ConsumeQueue
from orbitmq.store.property_shapes import PropertyShapes
from orbitmq.wire.checksum import raw_crc32
from orbitmq.wire.errors import WireError
from orbitmq.wire.message import BLANK_BYTES, MESSAGE_MAGIC, V6_EXTRA_BYTES
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES

_BATCH_ITEM = Struct(">iiiii")
_BATCH_ITEM_BYTES = _BATCH_ITEM.size
_SMALLEST_ITEM_BYTES = _BATCH_ITEM_BYTES + 2
_unpack_item = _BATCH_ITEM.unpack_from
_pack_unit = UNIT.pack
_UNIQUE = b"UNIQ_KEY\x01"
_UNIQUE_BYTES = len(_UNIQUE)

Item = tuple[ConsumeQueue, bytes, bytes, int, int, int, int, bytes, list[bytes] | None]
"""(queue, body, properties, sysFlag, flag, born ms, tag hash, unique key or empty, further keys)"""

Pack = Callable[..., bytes]


def stage_many(log: CommitLog, items: Sequence[Item], born_host: bytes) -> tuple[list[int], list[int]]:
    """Stages checked messages in order; returns their log offsets and their queue offsets."""
    store_ms = log.begin()
    pack, fixed, v6_flag = _form(log, born_host)
    store_flag, store_host = log.store_flag | v6_flag, log.store_host
    staged = log.staged
    units_of = staged.units
    index = staged.keys()
    prefixes, keys, key_offsets = index.prefixes, index.keys, index.offsets
    offsets: list[int] = []
    queue_offsets: list[int] = []
    parts: list[bytes] = []
    position = log.position
    room = log.records_end
    for queue, body, properties, sys_flag, flag, born_ms, tags_code, unique_key, more_keys in items:
        topic_part = queue.topic_part
        body_bytes = len(body)
        properties_bytes = len(properties)
        size = fixed + body_bytes + len(topic_part) + properties_bytes
        if position + size > room:
            log.extend(parts, position)
            parts = []
            position = log.room_for(size)
            room = log.records_end
        queue_offset = queue.next_offset
        parts += (
            pack(
                size,
                MESSAGE_MAGIC,
                raw_crc32(body) & 0x7FFFFFFF,
                queue.queue_id,
                flag,
                queue_offset,
                position,
                sys_flag | store_flag,
                born_ms,
                born_host,
                store_ms,
                store_host,
                0,
                0,
                body_bytes,
            ),
            body,
            topic_part,
            properties_bytes.to_bytes(2, "big"),
            properties,
        )
        queue.next_offset = queue_offset + 1
        unit = _pack_unit(position, size, tags_code)
        units = units_of.get(queue)
        if units is None:
            units_of[queue] = [unit]
        else:
            units.append(unit)
        if unique_key:
            prefixes.append(queue.prefix)
            keys.append(unique_key)
            key_offsets.append(position)
        if more_keys:
            for key in more_keys:
                staged.add_key(queue.prefix, key, position)
        offsets.append(position)
        queue_offsets.append(queue_offset)
        position += size
    log.extend(parts, position)
    return offsets, queue_offsets


def stage_batch(
    log: CommitLog,
    queue: ConsumeQueue,
    batch: bytes,
    shapes: PropertyShapes,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    prepared_offset: int = 0,
) -> list[int]:
    """Stages every message of a batch body as a record of its own; returns their log offsets.

    Nothing is staged when the batch is malformed or does not fit into one file (WireError).
    """
    pack, fixed, v6_flag = _form(log, born_host)
    topic_part, prefix, queue_id = queue.topic_part, queue.prefix, queue.queue_id
    fixed += len(topic_part)
    room = log.records_end - log.position
    # An upper bound first, since it is cheap; only near the end of a file the batch is measured exactly.
    most = len(batch) + (len(batch) // _SMALLEST_ITEM_BYTES + 1) * (fixed + shapes.added_bytes)
    if most > room and (stored := _stored_bytes(batch, fixed, shapes)) > room:
        if stored + BLANK_BYTES > log.series.segment_bytes:
            raise WireError(f"the batch takes {stored} bytes in the log, more than one file of it holds")
        log.begin()
        log.room_for(room + 1)
    store_ms, store_host, position = log.begin(), log.store_host, log.position
    sys_flag |= log.store_flag | v6_flag
    queue_offset = queue.next_offset
    shape_of, learn = shapes.known.get, shapes.learn
    parts: list[bytes] = []
    units: list[bytes] = []
    keys: list[bytes] = []
    key_offsets: list[int] = []
    offsets: list[int] = []
    at, end = 0, len(batch)
    while at < end:
        body_at = at + _BATCH_ITEM_BYTES
        if body_at > end:
            raise WireError(f"batch item at byte {at} is cut off")
        total, _, _, flag, body_bytes = _unpack_item(batch, at)
        properties_at = body_at + body_bytes + 2
        if body_bytes < 0 or properties_at > end:
            raise WireError(f"batch item at byte {at} announces a body of {body_bytes} bytes")
        body = batch[body_at : properties_at - 2]
        next_at = properties_at + (batch[properties_at - 2] << 8 | batch[properties_at - 1])
        if next_at > end or next_at - at != total:
            raise WireError(f"batch item at byte {at} announces {total} bytes and has {next_at - at}")
        # Texts of one producer differ in their unique id only: what is around it is looked up, not parsed.
        found = batch.find(_UNIQUE, properties_at, next_at)
        key_at = found + _UNIQUE_BYTES
        key_end = key_at + 32
        before = batch[properties_at:key_at]
        behind = batch[key_end:next_at]
        # A shorter id at the end of its text would otherwise be filled up with bytes of the next message.
        shape = shape_of((before, behind)) if found >= 0 and key_end <= next_at else None
        if shape is not None:
            key = batch[key_at:key_end]
            if b"\x02" in key:
                shape = None
        if shape is not None:
            properties = before + key + shape.behind
            tags_code = shape.tags_code
            keys.append(key)
            key_offsets.append(position)
        else:
            parsed = learn(batch[properties_at:next_at])
            properties, tags_code = parsed.properties, parsed.tags_code
            for key in parsed.keys:
                keys.append(key)
                key_offsets.append(position)
        properties_bytes = len(properties)
        if properties_bytes > MAX_PROPERTIES_BYTES:
            raise WireError(
                f"batch item at byte {at} has {properties_bytes} bytes of properties, 32767 are allowed"
            )
        size = fixed + body_bytes + properties_bytes
        parts += (
            pack(
                size,
                MESSAGE_MAGIC,
                raw_crc32(body) & 0x7FFFFFFF,
                queue_id,
                flag,
                queue_offset,
                position,
                sys_flag,
                born_ms,
                born_host,
                store_ms,
                store_host,
                0,
                prepared_offset,
                body_bytes,
            ),
            body,
            topic_part,
            properties_bytes.to_bytes(2, "big"),
            properties,
        )
        offsets.append(position)
        units.append(_pack_unit(position, size, tags_code))
        queue_offset += 1
        position += size
        at = next_at
    queue.next_offset = queue_offset
    log.extend(parts, position)
    staged = log.staged
    staged.units.setdefault(queue, []).extend(units)
    columns = staged.keys()
    columns.prefixes.extend([prefix] * len(keys))
    columns.keys.extend(keys)
    columns.offsets.extend(key_offsets)
    return offsets


def _form(log: CommitLog, born_host: bytes) -> tuple[Pack, int, int]:
    if len(born_host) == 8:
        return log.pack_v4, log.fixed_bytes, 0
    return log.pack_v6, log.fixed_bytes + V6_EXTRA_BYTES, BORN_V6


def _stored_bytes(batch: bytes, fixed: int, shapes: PropertyShapes) -> int:
    """At least what the records of a batch take in the log."""
    total = at = 0
    while 0 <= at <= len(batch) - _BATCH_ITEM_BYTES:
        size = _unpack_item(batch, at)[0]
        if size <= 0:
            break
        total += fixed + size + shapes.added_bytes
        at += size
    return total
