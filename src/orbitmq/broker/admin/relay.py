"""Questions of tools that only a client can answer, passed on over the connection the client holds."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, cast

from orbitmq.broker.admin.common import json_reply, refused
from orbitmq.broker.admin.context import Broker, Handler
from orbitmq.broker.clients import Client, Member
from orbitmq.net.connection import Connection
from orbitmq.net.errors import RemotingError, RequestError, RequestTimeout
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.errors import BadBody, WireError
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.headers import (
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    RunningInfoHeader,
    parse,
    to_ext,
)
from orbitmq.wire.message_id import parse_offset_msg_id

log = logging.getLogger("orbitmq.broker")

RELAY_TIMEOUT_S: Final = 10.0
STATUS_TIMEOUT_S: Final = 5.0
# 3.1.8-SNAPSHOT and 3.0.7-SNAPSHOT: the first clients that answer these questions.
MIN_RELAY_VERSION: Final = 62
MIN_STATUS_VERSION: Final = 28


async def running_info(broker: Broker, conn: Connection, cmd: Command) -> Command:
    header = parse(RunningInfoHeader, cmd.ext, cmd.code)
    member = _member(broker, header.consumer_group, header.client_id)
    return await _relay(member, header.consumer_group, cmd, dict(cmd.ext), cmd.body)


async def consume_directly(broker: Broker, conn: Connection, cmd: Command) -> Command:
    """Lets one chosen consumer process one stored message now, outside its queue."""
    header = parse(ConsumeDirectlyHeader, cmd.ext, cmd.code)
    member = _member(broker, header.consumer_group, header.client_id or "")
    record = _record(broker, header.msg_id or "")
    ext = {**cmd.ext, "brokerName": broker.config.broker_name}
    return await _relay(member, header.consumer_group, cmd, ext, record)


def _member(broker: Broker, group: str, client_id: str) -> Member:
    member = broker.clients.find_consumer(group, client_id)
    if member is None:
        raise refused(f"The Consumer <{group}> <{client_id}> not online")
    if member.version < MIN_RELAY_VERSION:
        raise refused(
            f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it to "
            "V3_1_8_SNAPSHOT"
        )
    return member


def _record(broker: Broker, msg_id: str) -> bytes:
    try:
        _, _, offset = parse_offset_msg_id(msg_id)
    except WireError as error:
        raise refused(str(error)) from error
    record = broker.store.read_record(offset)
    if record is None:
        raise refused(
            f"can not find message by the offset, {offset}: it was cleaned, or the id is of another broker"
        )
    return record


async def _relay(member: Client, group: str, cmd: Command, ext: dict[str, str], body: bytes) -> Command:
    try:
        answer = await _connection(member).request(request(cmd.code, ext, body), RELAY_TIMEOUT_S)
    except RequestTimeout as error:
        raise RequestError(
            ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{member.client_id}> Timeout: {error}"
        ) from error
    except RemotingError as error:
        raise refused(f"invoke consumer <{group}> <{member.client_id}> Exception: {error}") from error
    return cmd.reply(answer.code, answer.remark, answer.ext, answer.body)


def _connection(client: Client) -> Connection:
    # Channels in the table are the connections the heartbeats came on.
    return cast(Connection, client.conn)


async def consumer_status(broker: Broker, conn: Connection, cmd: Command) -> Command:
    """The offsets that consumers hold in memory, of all members or of the one named by its client id."""
    header = parse(ConsumerStatusHeader, cmd.ext, cmd.code)
    group = broker.clients.consumer_group(header.group)
    if group is None:
        raise refused(f"No Any Consumer online in the consumer group: [{header.group}]")
    asked = header.client_addr
    chosen = [member for member in group.members.values() if asked in (None, "", member.client_id)]
    if not chosen:
        raise refused(f"The Consumer <{header.group}> <{asked}> not online")
    for member in chosen:
        if member.version < MIN_STATUS_VERSION:
            raise refused(
                f"the client does not support this feature. {member.client_id} has version {member.version}"
            )
    ext = to_ext(ConsumerStatusHeader(topic=header.topic, group=header.group))
    tables = await asyncio.gather(*(_offsets_held(member, ext) for member in chosen))
    answered = {
        member.client_id: table for member, table in zip(chosen, tables, strict=True) if table is not None
    }
    if not answered:
        raise RequestError(
            ResponseCode.CONSUME_MSG_TIMEOUT,
            f"none of {len(chosen)} consumers of group {header.group} told its status; see the broker's log",
        )
    return json_reply(cmd, {"consumerTable": answered, "messageQueueTable": {}})


async def _offsets_held(member: Client, ext: dict[str, str]) -> dict[MessageQueue, int] | None:
    """None when this member gave no answer: the others' are worth having without it."""
    question = request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, dict(ext))
    try:
        answer = await _connection(member).request(question, STATUS_TIMEOUT_S)
        if answer.code == ResponseCode.SUCCESS:
            return bodies.decode(bodies.ConsumerStatusBody, answer.body).message_queue_table
        problem: object = f"code {answer.code}, {answer.remark}"
    except (RemotingError, BadBody) as error:
        problem = error
    log.warning("consumer %s gave no status: %s", member.client_id, problem)
    return None


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_status,
}
