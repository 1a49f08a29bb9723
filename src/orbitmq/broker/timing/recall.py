"""RECALL_MESSAGE: a waiting message is not to be delivered after all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker.redraft import put_all
from orbitmq.broker.timing.lookup import Found, State
from orbitmq.broker.timing.records import cancelling
from orbitmq.net.errors import RequestError
from orbitmq.store.durability import Durable
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.command import Command, encode
from orbitmq.wire.errors import WireError
from orbitmq.wire.header_fields import Header
from orbitmq.wire.headers import parse
from orbitmq.wire.recall import RecallHandle, decode_handle

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.timing.engine import Engine
    from orbitmq.net.connection import Connection

ALREADY: Final = "it was cancelled already"


class RecallHeader(Header, kw_only=True):
    """RECALL_MESSAGE; the handle came with the answer to the send."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


def recall(broker: Broker, engine: Engine, conn: Connection, command: Command) -> Command | None:
    header = parse(RecallHeader, command.ext, command.code)
    handle = _handle(broker, header)
    if broker.config.is_slave:
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave: recall at its master")
    if broker.store.refusal:
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, broker.store.refusal)
    found = engine.lookup.by_id(handle.topic, handle.msg_id, handle.deliver_ms)
    waiting = [one for one in found if one.state is State.WAITING]
    reply = command.reply(ext={"MSG_REGION": broker.config.region_id, "msgId": handle.msg_id})
    if not waiting:
        if any(one.state is State.CANCELLED for one in found):
            reply.remark = ALREADY
            return reply
        raise _not_waiting(broker, handle, found)
    if engine.cancelled.full:
        raise RequestError(
            ResponseCode.SYSTEM_BUSY,
            f"{len(engine.cancelled)} cancelled messages are waiting for their time to pass, no more fit; "
            "try again when some of them would have been delivered",
        )
    end = _cancel(broker, engine, waiting)

    def durable(outcome: Durable) -> None:
        if outcome is Durable.FAILED:
            reply.code = ResponseCode.SERVICE_NOT_AVAILABLE
            reply.remark = "flushing the log failed; the broker is read-only"
        conn.send(encode(reply))

    if not command.is_oneway:
        broker.store.when_durable(end, durable)
    return None


def _handle(broker: Broker, header: RecallHeader) -> RecallHandle:
    try:
        handle = decode_handle(header.recall_handle)
    except WireError as error:
        raise RequestError(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
    if handle.topic != header.topic:
        raise RequestError(
            ResponseCode.ILLEGAL_OPERATION,
            f"recall failed: the handle is for topic {handle.topic}, the request for {header.topic}",
        )
    if handle.broker_name != broker.config.broker_name:
        raise RequestError(
            ResponseCode.ILLEGAL_OPERATION,
            f"recall failed: the message waits at broker {handle.broker_name}, not here",
        )
    return handle


def _not_waiting(broker: Broker, handle: RecallHandle, found: list[Found]) -> RequestError:
    if found:
        return RequestError(
            ResponseCode.ILLEGAL_OPERATION,
            f"recall failed: message {handle.msg_id} of topic {handle.topic} was delivered already",
        )
    hint = "it was delivered, never scheduled, or its topic is another one"
    if broker.store.index is None:
        hint += "; the key index is off (messageIndexEnable=false), so only the handle's time was searched"
    return RequestError(
        ResponseCode.QUERY_NOT_FOUND,
        f"recall failed: no message {handle.msg_id} of topic {handle.topic} waits here: {hint}",
    )


def _cancel(broker: Broker, engine: Engine, waiting: list[Found]) -> int:
    """From now on these are not delivered, also after a crash once the returned end of the log is on the
    device.
    """
    now_ms = broker.clock()
    host = broker.store.settings.store_host
    messages = [cancelling(one.waiting, one.spot.due_ms, now_ms, host) for one in waiting]
    try:
        _, end = put_all(broker.store, messages)
    except OSError as error:
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"the store cannot write: {error}") from error
    for one in waiting:
        engine.cancelled.add(one.position, one.spot.due_ms)
    return end
