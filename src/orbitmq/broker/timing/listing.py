"""LIST_SCHEDULED, a request of our own: the messages that wait, in the order of their delivery, a page at a
time.

Fields: `topic`, `msgId` (both optional), `after` (empty, or `next` of the page before), `maxNum`. The answer
is JSON: `messages`, `next` (absent on the last page), and how many wait in all. A page may be short, even
empty, and still have a next one: a request looks at a bounded number of messages, whether they match or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker.timing.lookup import Found, Spot, State
from orbitmq.net.errors import RequestError
from orbitmq.wire import fastjson
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.header_fields import Header, Int32
from orbitmq.wire.headers import parse
from orbitmq.wire.recall import RecallHandle
from orbitmq.wire.topics import RETRY_PREFIX

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.timing.engine import Engine

MOST_LISTED: Final = 500
MOST_LOOKED_AT: Final = 2_000
_START: Final = Spot(-1, 0, -1)


class ListScheduledHeader(Header, kw_only=True):
    topic: str | None = None
    msg_id: str | None = None
    after: str | None = None
    max_num: Int32 = 100


def list_scheduled(broker: Broker, engine: Engine, command: Command) -> Command:
    header = parse(ListScheduledHeader, command.ext, command.code)
    if header.msg_id and broker.store.index is not None:
        if not header.topic:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                "a message is looked up by its id and topic; give the topic as well",
            )
        found = engine.lookup.by_id(header.topic, header.msg_id)
        rows = [row(broker, one) for one in found if one.state is State.WAITING]
        return _answer(command, engine, rows, None)
    most = max(1, min(header.max_num, MOST_LISTED))
    rows = []
    after = _spot(header.after)
    places = engine.lookup.page(after, MOST_LOOKED_AT)
    for spot, position, _ in places:
        if len(rows) == most:
            return _answer(command, engine, rows, after)
        after = spot
        one = _wanted(engine, header, spot, position)
        if one is not None:
            rows.append(row(broker, one))
    return _answer(command, engine, rows, after if len(places) == MOST_LOOKED_AT else None)


def _wanted(engine: Engine, header: ListScheduledHeader, spot: Spot, position: int) -> Found | None:
    if position in engine.cancelled:
        return None
    waiting = engine.lookup.read(position)
    if waiting is None or (header.topic and waiting.real_topic != header.topic):
        return None
    if header.msg_id and waiting.unique_key != header.msg_id:
        return None
    return Found(spot, position, waiting, State.WAITING)


def _answer(command: Command, engine: Engine, rows: list[dict[str, object]], after: Spot | None) -> Command:
    by_level = 0
    for level in engine.levels:
        queue = engine.level_queue(level)
        if queue is not None:
            by_level += queue.max_offset - max(level.offset, queue.min_offset)
    body = {
        "messages": rows,
        "next": None if after is None else ":".join(map(str, after)),
        "waitingByLevel": by_level,
        "waitingByTime": engine.agenda.pending,
        "cancelled": len(engine.cancelled),
    }
    return command.reply(body=fastjson.dumps(body))


def row(broker: Broker, one: Found) -> dict[str, object]:
    waiting, message = one.waiting, one.waiting.message
    handle = RecallHandle(waiting.real_topic, broker.config.broker_name, one.spot.due_ms, waiting.unique_key)
    return {
        "topic": waiting.real_topic,
        "queueId": waiting.real_queue_id,
        "msgId": waiting.unique_key or message.offset_msg_id,
        "offsetMsgId": message.offset_msg_id,
        "deliverTimestamp": one.spot.due_ms,
        "storeTimestamp": message.store_ms,
        "bornTimestamp": message.born_ms,
        "delayLevel": one.spot.source,
        "retry": waiting.real_topic.startswith(RETRY_PREFIX),
        "reconsumeTimes": message.reconsume_times,
        "rollTimes": waiting.roll_times,
        "tags": message.tags,
        "keys": message.keys,
        "bodySize": len(message.body),
        "recallHandle": handle.encode() if waiting.unique_key else None,
    }


def _spot(text: str | None) -> Spot:
    if not text:
        return _START
    words = text.split(":")
    if len(words) != 3 or not all(word.removeprefix("-").isdigit() and len(word) < 20 for word in words):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"after='{text[:60]}' is no place in the list; give `next` of the page before",
        )
    return Spot(*map(int, words))
