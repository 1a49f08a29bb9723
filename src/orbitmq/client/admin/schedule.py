"""Messages that wait for their delivery time: list and cancel them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from orbitmq.client.admin.targets import Missing, answered, ask_each, body_object, masters_of
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError
from orbitmq.wire.codes import OrbitCode, RequestCode
from orbitmq.wire.command import request
from orbitmq.wire.errors import WireError
from orbitmq.wire.recall import RecallHandle, decode_handle

PAGE: Final = 500


class ScheduledMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits at a broker."""

    broker: str
    topic: str
    queue_id: int
    msg_id: str
    offset_msg_id: str
    deliver_ms: int
    store_ms: int
    delay_level: int
    """0: it was sent with a time of its own."""
    retry: bool
    """It is not new: a consumer group gets it once more."""
    tag: str | None
    keys: str | None
    body_bytes: int
    recall_handle: str | None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The next messages to be delivered, in order. `waiting` is None when a broker did not answer."""

    messages: list[ScheduledMessage]
    waiting: int | None
    missing: list[Missing]


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    broker: str
    topic: str
    msg_id: str
    already: bool
    """It had been cancelled before."""


async def list_scheduled(
    cluster: Cluster,
    *,
    topic: str | None = None,
    max_num: int = 100,
    cluster_name: str | None = None,
    broker: str | None = None,
) -> Schedule:
    """What is delivered next on all masters, one cluster or one broker."""

    async def ask(name: str, addr: str) -> tuple[list[ScheduledMessage], int]:
        found: list[ScheduledMessage] = []
        waiting = 0
        async for page in _pages(cluster, name, addr, topic, None, min(PAGE, max_num)):
            found += page.messages
            waiting = page.waiting
            if len(found) >= max_num:
                break
        return found[:max_num], waiting

    masters = await masters_of(cluster, cluster_name=cluster_name, broker=broker)
    answers, missing, errors = await ask_each(masters, ask)
    answered(answers, errors)
    messages = sorted(
        (message for found, _ in answers.values() for message in found),
        key=lambda message: (message.deliver_ms, message.store_ms),
    )
    waiting = None if missing else sum(count for _, count in answers.values())
    return Schedule(messages=messages[:max_num], waiting=waiting, missing=missing)


async def cancel_scheduled(cluster: Cluster, topic: str, msg_id: str) -> Cancelled:
    """Cancels by message id, or by the recall handle that the producer got; the broker that has it is found."""
    handle = _as_handle(msg_id)
    if handle is not None:
        if handle.topic != topic:
            raise BadRequest(
                f"the handle is for topic '{handle.topic}', not '{topic}'",
                hint=f"pass {handle.topic} instead",
            )
        addr = await cluster.broker_addr(handle.broker_name)
        return await _recall(cluster, handle.broker_name, addr, topic, handle.msg_id, msg_id)

    async def find(name: str, addr: str) -> ScheduledMessage | None:
        async for page in _pages(cluster, name, addr, topic, msg_id, PAGE):
            if page.messages:
                return page.messages[0]
        return None

    masters = await masters_of(cluster)
    answers, _, errors = await ask_each(masters, find)
    for name, found in answers.items():
        if found is not None and found.recall_handle is not None:
            return await _recall(cluster, name, masters[name], topic, msg_id, found.recall_handle)
    if errors:  # half an answer to "is it there?" would be a false no
        raise errors[0]
    raise NotFound(
        f"no message {msg_id} of topic '{topic}' waits for delivery",
        hint="it was delivered or cancelled, or its id or topic is another one; see `orbitmq schedule list`",
    )


async def _recall(cluster: Cluster, name: str, addr: str, topic: str, msg_id: str, handle: str) -> Cancelled:
    response = await cluster.request(
        addr, request(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})
    )
    return Cancelled(broker=name, topic=topic, msg_id=msg_id, already=bool(response.remark))


def _as_handle(text: str) -> RecallHandle | None:
    try:
        return decode_handle(text)
    except WireError:
        return None


class _Page(msgspec.Struct):
    messages: list[ScheduledMessage]
    waiting: int


async def _pages(
    cluster: Cluster, name: str, addr: str, topic: str | None, msg_id: str | None, size: int
) -> AsyncGenerator[_Page, None]:
    after = ""
    while True:
        fields = {"maxNum": str(size), "after": after, "topic": topic or "", "msgId": msg_id or ""}
        command = request(OrbitCode.LIST_SCHEDULED, {key: value for key, value in fields.items() if value})
        response = await cluster.request(addr, command)
        data = body_object(response.body, f"the schedule of {name}")
        try:
            waiting = int(data["waitingByLevel"]) + int(data["waitingByTime"]) - int(data["cancelled"])
            yield _Page([_message(name, row) for row in data["messages"]], waiting)
        except (KeyError, TypeError, ValueError) as error:
            raise OrbitMQError(
                f"the schedule of {name} is not understood: {error!r}", hint="check the version of the server"
            ) from error
        after = data.get("next") or ""
        if not after:
            return


def _message(broker: str, row: dict[str, Any]) -> ScheduledMessage:
    return ScheduledMessage(
        broker=broker,
        topic=row["topic"],
        queue_id=row["queueId"],
        msg_id=row["msgId"],
        offset_msg_id=row["offsetMsgId"],
        deliver_ms=row["deliverTimestamp"],
        store_ms=row["storeTimestamp"],
        delay_level=row["delayLevel"],
        retry=row["retry"],
        tag=row.get("tags"),
        keys=row.get("keys"),
        body_bytes=row["bodySize"],
        recall_handle=row.get("recallHandle"),
    )
