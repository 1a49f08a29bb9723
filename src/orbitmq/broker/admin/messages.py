"""Finding messages and places: by key, by offset, by queue entry, by time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from struct import Struct
from typing import Final

from orbitmq.broker.admin.common import json_reply, known_topic, queue_range, refused, stored_at_ms
from orbitmq.broker.admin.context import Broker, Handler, Store
from orbitmq.net.connection import Connection
from orbitmq.net.errors import RequestError
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.frame import MAX_FRAME_BYTES
from orbitmq.wire.headers import (
    OffsetResponse,
    QueryConsumeQueueHeader,
    QueryMessageHeader,
    QueryMessageResponse,
    SearchOffsetHeader,
    TimestampResponse,
    TopicQueueHeader,
    ViewMessageHeader,
    parse,
    to_ext,
)
from orbitmq.wire.message import Message, RecordProblem, decode_record
from orbitmq.wire.properties import Prop

log = logging.getLogger("orbitmq.broker")

_UNIT: Final = Struct(">qiq")
# The index keeps whole seconds, cut down, after its file's first message: a message may look a second older.
INDEX_GRAIN_MS: Final = 1000
# Hash clashes are rare; a query that meets more strangers than this gives up rather than hold the loop.
MAX_CANDIDATES: Final = 4096
MAX_BODY_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
DEFAULT_UNITS: Final = 10
MAX_UNITS: Final = 10_000


def query_message(broker: Broker, conn: Connection, cmd: Command) -> Command:
    wanted = parse(QueryMessageHeader, cmd.ext, cmd.code)
    if wanted.unique_key:
        wanted.max_num = broker.config.default_query_max_num
    wanted.max_num = min(wanted.max_num, broker.config.max_msgs_num_batch)
    records = list(_whole(find_by_key(broker.store, wanted)))
    if not records:
        why = "maybe time range not correct"
        if not broker.config.message_index_enable:
            why = "the key index is off (messageIndexEnable=false)"
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"can not find message, {why}")
    update_ms, offset = broker.store.index_last()
    header = QueryMessageResponse(index_last_update_timestamp=update_ms, index_last_update_phyoffset=offset)
    return cmd.reply(ext=to_ext(header), body=b"".join(records))


def find_by_key(store: Store, wanted: QueryMessageHeader) -> Iterator[bytes]:
    """Records newest first. The index only knows hashes, so each hit is compared with topic, key and time."""
    begin_ms = max(0, wanted.begin_timestamp - INDEX_GRAIN_MS)
    asked = wanted.max_num
    seen: set[int] = set()
    found = 0
    while found < wanted.max_num:
        hits = store.query_keys(wanted.topic, wanted.key, begin_ms, wanted.end_timestamp, asked)
        for offset in hits:
            # A key may be in the index twice for one message: as its id and as a key, or named twice.
            if offset in seen or found == wanted.max_num:
                continue
            seen.add(offset)
            record = _record_at(store, offset)
            if record is not None and _is_wanted(record[1], wanted):
                found += 1
                yield record[0]
        if len(hits) < asked or asked >= MAX_CANDIDATES:
            return
        asked *= 2


def _record_at(store: Store, offset: int) -> tuple[bytes, Message] | None:
    """The record that begins here and says so itself: bytes inside a body may look like one."""
    data = store.read_record(offset)
    if data is None:
        return None
    try:
        message = decode_record(data, check_crc=False)
    except RecordProblem as problem:
        log.warning("the record at log offset %d cannot be read: %s", offset, problem)
        return None
    return (data, message) if message.physical_offset == offset else None


def _is_wanted(message: Message, wanted: QueryMessageHeader) -> bool:
    in_time = wanted.begin_timestamp <= message.store_ms <= wanted.end_timestamp
    if message.topic != wanted.topic or not in_time:
        return False
    if message.properties.get(Prop.UNIQ_KEY) == wanted.key:
        return True
    return not wanted.unique_key and wanted.key in message.key_list


def _whole(records: Iterator[bytes]) -> Iterator[bytes]:
    """As many records as one frame takes."""
    room = MAX_BODY_BYTES
    for record in records:
        room -= len(record)
        if room < 0:
            return
        yield record


def view_message(broker: Broker, conn: Connection, cmd: Command) -> Command:
    offset = parse(ViewMessageHeader, cmd.ext, cmd.code).offset
    record = _record_at(broker.store, offset) if offset >= 0 else None
    if record is None:
        raise refused(
            f"can not find message by the offset, {offset}: no message begins there; the log holds "
            f"{broker.store.min_phys_offset} to {broker.store.max_phys_offset}"
        )
    return cmd.reply(body=record[0])


def query_consume_queue(broker: Broker, conn: Connection, cmd: Command) -> Command:
    header = parse(QueryConsumeQueueHeader, cmd.ext, cmd.code)
    queue = broker.store.find_queue(header.topic, header.queue_id)
    if queue is None:
        raise refused(
            f"{header.queue_id}@{header.topic} is not exist! Nothing was ever stored in this queue."
        )
    units = queue.read_units(header.index, min(header.count or DEFAULT_UNITS, MAX_UNITS))
    body: dict[str, object] = {
        "filterData": None,
        "maxQueueIndex": queue.max_offset,
        "minQueueIndex": queue.min_offset,
        "queueData": [
            {"eval": False, "physicOffset": offset, "physicSize": size, "tagsCode": tags_code}
            for offset, size, tags_code in _UNIT.iter_unpack(units)
        ],
    }
    if header.consumer_group:
        subscription = broker.clients.subscription(header.consumer_group, header.topic)
        if subscription is None:
            body["filterData"] = f"{header.consumer_group}@{header.topic} is not online!"
        body["subscriptionData"] = subscription
    return json_reply(cmd, body)


def _check_place(broker: Broker, topic: str, queue_id: int) -> None:
    """Broker topics such as that of operations have queues but no settings, new topics the reverse."""
    if broker.store.find_queue(topic, queue_id) is None:
        known_topic(broker, topic)


def max_offset(broker: Broker, conn: Connection, cmd: Command) -> Command:
    place = parse(TopicQueueHeader, cmd.ext, cmd.code)
    _check_place(broker, place.topic, place.queue_id)
    offset = queue_range(broker, place.topic, place.queue_id)[1]
    return cmd.reply(ext=to_ext(OffsetResponse(offset=offset)))


def min_offset(broker: Broker, conn: Connection, cmd: Command) -> Command:
    place = parse(TopicQueueHeader, cmd.ext, cmd.code)
    _check_place(broker, place.topic, place.queue_id)
    offset = queue_range(broker, place.topic, place.queue_id)[0]
    return cmd.reply(ext=to_ext(OffsetResponse(offset=offset)))


def earliest_store_time(broker: Broker, conn: Connection, cmd: Command) -> Command:
    place = parse(TopicQueueHeader, cmd.ext, cmd.code)
    _check_place(broker, place.topic, place.queue_id)
    low, _ = queue_range(broker, place.topic, place.queue_id)
    time_ms = stored_at_ms(broker, place.topic, place.queue_id, low)
    return cmd.reply(ext=to_ext(TimestampResponse(timestamp=time_ms)))


def search_offset(broker: Broker, conn: Connection, cmd: Command) -> Command:
    """The first message stored at or after a time; with the boundary "upper" the last one until then."""
    wanted = parse(SearchOffsetHeader, cmd.ext, cmd.code)
    _check_place(broker, wanted.topic, wanted.queue_id)
    low, _ = queue_range(broker, wanted.topic, wanted.queue_id)
    if (wanted.boundary_type or "").lower() == "upper":
        offset = broker.store.offset_by_time(wanted.topic, wanted.queue_id, wanted.timestamp + 1) - 1
    else:
        offset = broker.store.offset_by_time(wanted.topic, wanted.queue_id, wanted.timestamp)
    return cmd.reply(ext=to_ext(OffsetResponse(offset=max(offset, low))))


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.QUERY_MESSAGE: query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.QUERY_CONSUME_QUEUE: query_consume_queue,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.GET_MAX_OFFSET: max_offset,
    RequestCode.GET_MIN_OFFSET: min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: earliest_store_time,
}
