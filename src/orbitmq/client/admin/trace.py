"""What happened to a message: the reports of producers and consumers, joined with what the brokers store.

Clients report into a trace topic, each report under the message's id and keys. A time line puts together who
sent the message, where and when it was stored, who got it how often and with what result, and how its
transaction ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from orbitmq.client.admin.messages import message_by_offset_id, messages_by_id, messages_by_key
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound, OrbitMQError
from orbitmq.wire.errors import WireError
from orbitmq.wire.message import Message
from orbitmq.wire.message_id import parse_offset_msg_id
from orbitmq.wire.topics import TRACE_TOPIC, dead_topic, retry_topic
from orbitmq.wire.trace import (
    ConsumeResult,
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TraceMessageType,
    decode_traces,
)

PAGE: Final = 64
MAX_PAGES: Final = 16

_SENT: Final = {
    TraceMessageType.NORMAL: "sent",
    TraceMessageType.TRANSACTION_HALF: "prepared",
    TraceMessageType.TRANSACTION_COMMIT: "sent (committed)",
    TraceMessageType.DELAY: "sent (delayed)",
}
_RESULTS: Final = {
    ConsumeResult.SUCCESS: "consumed",
    ConsumeResult.TIME_OUT: "timed out",
    ConsumeResult.EXCEPTION: "failed with an exception",
    ConsumeResult.RETURN_NULL: "failed: the listener returned nothing",
    ConsumeResult.FAILED: "failed",
}
_ENDS: Final = {
    "COMMIT_MESSAGE": "transaction committed",
    "ROLLBACK_MESSAGE": "transaction rolled back",
    "UNKNOW": "transaction undecided",
}


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a message's life. `cost_ms` is how long the step took, if that was reported."""

    at_ms: int
    what: str
    group: str | None = None
    place: str | None = None
    """Address of the client, or of the broker with topic, queue and offset."""
    cost_ms: int | None = None
    success: bool = True
    attempt: int | None = None
    """0 is the first delivery to a group, 1 the first retry."""


class TimeLine(msgspec.Struct, frozen=True, kw_only=True):
    msg_id: str
    topic: str | None
    tag: str | None
    keys: list[str]
    events: list[TraceEvent]


class Report(NamedTuple):
    """A trace record and the address of the client that sent it."""

    trace: Trace
    client: str


async def trace_message(
    cluster: Cluster, key: str, *, topic: str | None = None, trace_topic: str = TRACE_TOPIC
) -> list[TimeLine]:
    """The time lines of the messages with an id (of either kind) or a key, oldest first."""
    reports = await _reports(cluster, trace_topic, key)
    if not reports and (unique := await _unique_id(cluster, key)):
        reports = await _reports(cluster, trace_topic, unique)
        key = unique
    lines = [await _complete(cluster, line, topic) for line in time_lines(reports, key)]
    if not lines and topic is not None:
        lines = await _only_stored(cluster, topic, key)
    if not lines:
        raise NotFound(
            f"no client reported anything about '{key}' in '{trace_topic}'",
            hint="switch tracing on in producer and consumer (enableMsgTrace); pass --topic to see what is stored",
        )
    return sorted(lines, key=lambda line: line.events[0].at_ms)


def time_lines(reports: Iterable[Report], key: str) -> list[TimeLine]:
    """Reports sorted into one line per message; those about other messages with no such id or key are left
    out.
    """
    by_id: dict[str, list[Report]] = {}
    for report in reports:
        trace = report.trace
        if trace.msg_id and (key == trace.msg_id or key in (trace.keys or "").split()):
            by_id.setdefault(trace.msg_id, []).append(report)
    return [_line(msg_id, found) for msg_id, found in by_id.items()]


def _line(msg_id: str, reports: list[Report]) -> TimeLine:
    starts = {
        trace.request_id: trace
        for trace, _ in reports
        if isinstance(trace, SubBeforeTrace) and trace.request_id
    }
    events = [event for report in reports for event in _events(report, starts)]
    topic = tag = None
    keys: list[str] = []
    for trace, _ in reports:
        keys = keys or (trace.keys or "").split()
        if isinstance(trace, PubTrace | EndTransactionTrace):
            topic, tag = topic or trace.topic, tag or trace.tags
    return TimeLine(msg_id=msg_id, topic=topic, tag=tag, keys=keys, events=in_order(events))


def in_order(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """By time. Clients may send a report twice; what is the same in everything happened once."""
    unique = {msgspec.json.encode(event): event for event in events}
    return sorted(unique.values(), key=lambda event: event.at_ms)


def _events(report: Report, starts: dict[str, SubBeforeTrace]) -> list[TraceEvent]:
    trace, client = report
    if isinstance(trace, PubTrace):
        what = _SENT.get(trace.msg_type, "sent")
        event = TraceEvent(
            at_ms=trace.timestamp_ms,
            what=what if trace.success else f"{what}, but it failed",
            group=trace.group,
            place=trace.client_host or client,
            cost_ms=trace.cost_ms,
            success=trace.success,
        )
    elif isinstance(trace, SubBeforeTrace):
        event = TraceEvent(
            at_ms=trace.timestamp_ms,
            what=f"delivered (retry {trace.retry_times})" if trace.retry_times else "delivered",
            group=trace.group,
            place=client,
            attempt=trace.retry_times,
        )
    elif isinstance(trace, SubAfterTrace):
        start = starts.get(trace.request_id or "")
        # Only newer clients report when they were done; the start and the cost tell the same.
        at_ms = trace.timestamp_ms or (start.timestamp_ms + trace.cost_ms if start else 0)
        if not at_ms:
            return []
        result = _RESULTS.get(trace.context_code, "failed") if not trace.success else "consumed"
        event = TraceEvent(
            at_ms=at_ms,
            what=result,
            group=trace.group or (start.group if start else None),
            place=client,
            cost_ms=trace.cost_ms,
            success=trace.success,
            attempt=start.retry_times if start else None,
        )
    else:
        end = _ENDS.get(trace.state or "", f"transaction ended: {trace.state}")
        event = TraceEvent(
            at_ms=trace.timestamp_ms,
            what=f"{end}, after the broker asked" if trace.from_check else end,
            group=trace.group,
            place=client,
            success=trace.state != "UNKNOW",
        )
    return [event]


async def _reports(cluster: Cluster, trace_topic: str, key: str) -> list[Report]:
    """Every report under a key. A broker gives a page at a time, newest first."""
    found: dict[str, Message] = {}
    end_ms = None
    for _ in range(MAX_PAGES):
        page = await _page(cluster, trace_topic, key, end_ms)
        new = [message for message in page if message.offset_msg_id not in found]
        found |= {message.offset_msg_id: message for message in new}
        if len(page) < PAGE or not new:
            break
        end_ms = page[0].store_ms
    reports: list[Report] = []
    for message in found.values():
        # A record that one client garbled does not hide what the others reported.
        with suppress(WireError):
            reports += [Report(trace, message.born_host) for trace in decode_traces(message.decoded_body())]
    return reports


async def _page(cluster: Cluster, trace_topic: str, key: str, end_ms: int | None) -> list[Message]:
    try:
        if end_ms is None:
            return await messages_by_key(cluster, trace_topic, key, max_num=PAGE)
        return await messages_by_key(cluster, trace_topic, key, end_ms=end_ms, max_num=PAGE)
    except NotFound as error:
        raise NotFound(
            f"there is no trace topic '{trace_topic}'",
            hint="start the broker with traceTopicEnable=true, or pass --trace-topic if clients use another one",
            code=error.code,
        ) from error


async def _unique_id(cluster: Cluster, key: str) -> str | None:
    """The producer's id of a message given by its offset id; reports only name the former."""
    try:
        ip, port, _ = parse_offset_msg_id(key)
    except WireError:
        return None
    known = {
        addr for broker in (await cluster.cluster_map()).brokers.values() for addr in broker.addrs.values()
    }
    if f"{ip}:{port}" not in known and f"[{ip}]:{port}" not in known:
        return None  # a producer's id looks the same, but names no broker
    try:
        return (await message_by_offset_id(cluster, key)).msg_id
    except OrbitMQError:
        return None


async def _complete(cluster: Cluster, line: TimeLine, topic: str | None) -> TimeLine:
    """Adds where brokers have it: in its topic, and in the retry and dead-letter topics of those who got
    it.
    """
    groups = sorted({event.group for event in line.events if event.group and event.attempt is not None})
    places = [(topic or line.topic, "stored")]
    places += [(retry_topic(group), f"stored to be retried by {group}") for group in groups]
    places += [(dead_topic(group), f"dead for {group}") for group in groups]
    events = list(line.events)
    for name, what in places:
        if name and await cluster.find_route(name) is not None:
            events += [_stored(message, what) for message in await _copies(cluster, name, line.msg_id)]
    return msgspec.structs.replace(line, events=in_order(events))


async def _only_stored(cluster: Cluster, topic: str, key: str) -> list[TimeLine]:
    copies = await _copies(cluster, topic, key) or await messages_by_key(cluster, topic, key)
    lines: dict[str, TimeLine] = {}
    for message in copies:
        born = TraceEvent(at_ms=message.born_ms, what="born", place=message.born_host)
        known = lines.get(message.msg_id)
        lines[message.msg_id] = TimeLine(
            msg_id=message.msg_id,
            topic=topic,
            tag=message.tags,
            keys=message.key_list,
            events=in_order([*(known.events if known else ()), born, _stored(message, "stored")]),
        )
    return list(lines.values())


async def _copies(cluster: Cluster, topic: str, msg_id: str) -> list[Message]:
    try:
        return await messages_by_id(cluster, topic, msg_id)
    except NotFound:
        return []


def _stored(message: Message, what: str) -> TraceEvent:
    return TraceEvent(
        at_ms=message.store_ms,
        what=what,
        place=f"{message.store_host} {message.topic} queue {message.queue_id} offset {message.queue_offset}",
    )
