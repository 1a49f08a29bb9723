"""How far groups have come: lag by queue and by time, corrections, and copies of a group's offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from orbitmq.broker.admin.common import (
    json_reply,
    known_topic,
    queue_key,
    queue_range,
    stored_at_ms,
    time_text,
)
from orbitmq.broker.admin.context import Broker, Handler
from orbitmq.broker.topic_config import TopicConfig
from orbitmq.net.connection import Connection
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import Command
from orbitmq.wire.headers import (
    BrokerConsumeStatsHeader,
    CloneOffsetHeader,
    ConsumeStatsHeader,
    CorrectionOffsetHeader,
    TimeSpanHeader,
    parse,
)

TOPIC_LIST_SEPARATOR: Final = ";"
# Java's Long.MAX_VALUE: "no correction for this queue".
NO_CORRECTION: Final = 2**63 - 1


def consume_stats(broker: Broker, conn: Connection, cmd: Command) -> Command:
    header = parse(ConsumeStatsHeader, cmd.ext, cmd.code)
    wanted = [header.topic or "", *(header.topic_list or "").split(TOPIC_LIST_SEPARATOR)]
    topics = [topic.strip() for topic in wanted if topic.strip()]
    stats = _stats(broker, header.consumer_group, topics or broker.offsets.topics_of(header.consumer_group))
    return json_reply(cmd, stats)


def _stats(broker: Broker, group: str, topics: Iterable[str]) -> dict[str, Any]:
    """A ConsumeStats over those of the topics that exist and that the group, if it is online, still reads."""
    table: dict[object, dict[str, object]] = {}
    tps = 0.0
    for name in topics:
        topic = broker.topics.get(name)
        if topic is None or not _reads(broker, group, name):
            continue
        for queue_id in range(topic.read_queue_nums):
            table[queue_key(broker, name, queue_id)] = _queue_progress(broker, group, name, queue_id)
        tps += broker.stats.tps("GROUP_GET_NUMS", f"{name}@{group}")
    return {"consumeTps": tps, "offsetTable": table}


def _reads(broker: Broker, group: str, topic: str) -> bool:
    """Whether a topic counts for a group: offsets of topics it has given up are kept, but lag no more."""
    online = broker.clients.consumer_group(group)
    return online is None or not online.subscriptions or topic in online.subscriptions


def _queue_progress(broker: Broker, group: str, topic: str, queue_id: int) -> dict[str, object]:
    offset = broker.offsets.query(group, topic, queue_id)
    progress: dict[str, object] = {
        "brokerOffset": queue_range(broker, topic, queue_id)[1],
        "consumerOffset": max(offset, 0),
        "lastTimestamp": max(0, stored_at_ms(broker, topic, queue_id, offset - 1)),
    }
    if offset < 0:
        # Java has only the number; a peer that knows this key can tell "never committed" from "at the start".
        progress["noOffset"] = True
    return progress


def broker_consume_stats(broker: Broker, conn: Connection, cmd: Command) -> Command:
    only_ordered = parse(BrokerConsumeStatsHeader, cmd.ext, cmd.code).is_order
    rows = []
    total = 0
    for group in broker.groups.names():
        listed = []
        for name in broker.offsets.topics_of(group):
            topic = broker.topics.get(name)
            if topic is None or (only_ordered and not topic.order):
                continue
            stats = _stats(broker, group, [name])
            if stats["offsetTable"]:
                listed.append(stats)
                total += _total_diff(stats)
        rows.append({group: listed})
    return json_reply(cmd, {"brokerAddr": broker.address, "consumeStatsList": rows, "totalDiff": total})


def _total_diff(stats: dict[str, Any]) -> int:
    return sum(row["brokerOffset"] - row["consumerOffset"] for row in stats["offsetTable"].values())


def time_span(broker: Broker, conn: Connection, cmd: Command) -> Command:
    header = parse(TimeSpanHeader, cmd.ext, cmd.code)
    topic = known_topic(broker, header.topic)
    spans = [_queue_span(broker, header.group, topic, queue_id) for queue_id in range(topic.queue_count)]
    return json_reply(cmd, {"consumeTimeSpanSet": spans})


def _queue_span(broker: Broker, group: str, topic: TopicConfig, queue_id: int) -> dict[str, object]:
    low, high = queue_range(broker, topic.name, queue_id)
    offset = broker.offsets.query(group, topic.name, queue_id)
    first_ms = stored_at_ms(broker, topic.name, queue_id, low)
    last_ms = stored_at_ms(broker, topic.name, queue_id, high - 1)
    consumed_ms = stored_at_ms(broker, topic.name, queue_id, offset - 1) if offset > 0 else first_ms
    # What waits longest is the next message to read; a position below the minimum is read from there.
    next_ms = stored_at_ms(broker, topic.name, queue_id, max(offset, low))
    return {
        "consumeTimeStamp": consumed_ms,
        "consumeTimeStampStr": time_text(consumed_ms),
        "delayTime": max(0, broker.clock() - next_ms) if next_ms >= 0 else 0,
        "maxTimeStamp": last_ms,
        "maxTimeStampStr": time_text(last_ms),
        "messageQueue": queue_key(broker, topic.name, queue_id),
        "minTimeStamp": first_ms,
        "minTimeStampStr": time_text(first_ms),
    }


def correction_offset(broker: Broker, conn: Connection, cmd: Command) -> Command:
    """Per queue, the slowest other group's offset; "no correction" where the compared group is behind it."""
    header = parse(CorrectionOffsetHeader, cmd.ext, cmd.code)
    left_out = {group.strip() for group in (header.filter_groups or "").split(",")}
    offsets = broker.offsets.smallest(
        header.topic, left_out, lambda queue_id: queue_range(broker, header.topic, queue_id)[0]
    )
    for queue_id, compared in (broker.offsets.queues(header.compare_group, header.topic) or {}).items():
        if offsets.get(queue_id, -1) > compared:
            offsets[queue_id] = NO_CORRECTION
    return json_reply(cmd, {"correctionOffsets": offsets})


def clone_offset(broker: Broker, conn: Connection, cmd: Command) -> Command:
    header = parse(CloneOffsetHeader, cmd.ext, cmd.code)
    topics = [header.topic] if header.topic else broker.offsets.topics_of(header.src_group)
    cloned = 0
    for name in topics:
        if broker.topics.get(name) is None or not (header.offline or _reads(broker, header.src_group, name)):
            continue
        cloned += broker.offsets.clone(header.src_group, header.dest_group, name)
    # Not an error: tools ask every broker of a topic, and the source need not have read from each of them.
    remark = None if cloned else f"group {header.src_group} has no offsets here; nothing was copied"
    return cmd.reply(remark=remark)


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: broker_consume_stats,
    RequestCode.QUERY_CONSUME_TIME_SPAN: time_span,
    RequestCode.QUERY_CORRECTION_OFFSET: correction_offset,
    RequestCode.CLONE_GROUP_OFFSET: clone_offset,
}
