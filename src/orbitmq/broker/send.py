"""Taking a message from a producer: every check, every kind, one request at a time.

This is the plain path and the reference; `send_hot` handles the common case of it in bulk. What makes a message special
(delayed, prepared, retried once too often) is decided by *diverters*, which may send the draft to another topic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from orbitmq.net.connection import Connection
from orbitmq.net.errors import RequestError
from orbitmq.store.commit_log import LARGEST_HEAD_BYTES
from orbitmq.store.durability import Durable
from orbitmq.store.inner_message import InnerMessage
from orbitmq.wire import topics as names
from orbitmq.wire.batch import iter_batch
from orbitmq.wire.codes import Perm, RequestCode, ResponseCode, SysFlag
from orbitmq.wire.command import Command, encode
from orbitmq.wire.errors import WireError
from orbitmq.wire.headers import SendHeader, SendHeaderV2, parse
from orbitmq.wire.message_id import offset_msg_id
from orbitmq.wire.properties import (
    MAX_PROPERTIES_BYTES,
    Prop,
    decode_properties,
    encode_properties,
    find_property,
)

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.topic_config import TopicConfig

_V2_CODES = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
)


@dataclass(slots=True)
class Draft:
    """A message on its way into the store, still open to be diverted."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    sys_flag: int
    flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    client_version: int = 0
    prepared_offset: int = 0
    tags_code: int | None = None
    """Given when the queue unit carries something else than the tag's hash."""
    delay_ms: int | None = None
    """Given when the queue unit carries a delivery time: so long after the message is stored."""
    answer: dict[str, str] = field(default_factory=dict)
    """What the answer to the producer carries besides the usual fields."""
    after_store: list[Callable[[int, int], None]] = field(default_factory=list)
    """Called with (log offset, queue offset) once the message is in the log."""

    def finish(self) -> InnerMessage:
        text = encode_properties(self.properties)
        if len(text) > MAX_PROPERTIES_BYTES:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message's properties take {len(text)} bytes, {MAX_PROPERTIES_BYTES} are allowed; "
                "move large values into the body",
            )
        message = InnerMessage(
            self.topic,
            self.queue_id,
            self.body,
            text,
            sys_flag=self.sys_flag,
            flag=self.flag,
            born_ms=self.born_ms,
            born_host=self.born_host,
            reconsume_times=self.reconsume_times,
            prepared_offset=self.prepared_offset,
        ).index_properties()
        if self.tags_code is not None:
            message.tags_code = self.tags_code
        message.delay_ms = self.delay_ms
        return message


Diverter = Callable[[Draft], None]


class SendHandler:
    def __init__(self, broker: Broker, random: Random) -> None:
        self._broker = broker
        self._random = random
        self.diverters: list[Diverter] = []

    def handle(self, conn: Connection, command: Command) -> Command | None:
        """SEND_MESSAGE, its V2 form and SEND_BATCH_MESSAGE. The answer goes out when the message is durable."""
        header = parse_send(command)
        topic = self.check(command, header, len(command.body))
        queue_id = self.pick_queue(topic, header.queue_id)
        if command.code == RequestCode.SEND_BATCH_MESSAGE or header.batch:
            drafts = self._batch_drafts(conn, command, header, queue_id)
        else:
            drafts = [self._draft(conn, command, header, queue_id)]
        return self.store(conn, command, drafts, queue_id)

    # --- checks -----------------------------------------------------------------------------------------------

    def check(self, command: Command, header: SendHeader, body_bytes: int) -> TopicConfig:
        """Everything that can be wrong with a send before it is stored; returns the topic, made now if need be."""
        if self._broker.store.refusal:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, self._broker.store.refusal)
        return self.check_request(command, header, body_bytes)

    def check_request(self, command: Command, header: SendHeader, body_bytes: int) -> TopicConfig:
        """What can be wrong with the request itself, whether or not the store takes messages now."""
        broker = self._broker
        config = broker.config
        if config.is_slave:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave: send to its master"
            )
        if not config.broker_permission & Perm.WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden"
            )
        problem = names.validate_topic(header.topic)
        if problem:
            raise RequestError(ResponseCode.SYSTEM_ERROR, problem)
        if names.is_send_forbidden(header.topic):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"Sending message to topic[{header.topic}] is forbidden: it is internal",
            )
        if body_bytes > config.max_message_size:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body has {body_bytes} bytes, the limit (maxMessageSize) is {config.max_message_size}; "
                "send less at once or raise the limit on broker and client",
            )
        topic = self._topic(command, header)
        if not topic.perm & Perm.WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] sending message is forbidden (perm {topic.perm})",
            )
        if header.queue_id >= topic.queue_count:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, topic {topic.name} has {topic.queue_count} queues "
                "on this broker; refresh the route",
            )
        return topic

    def _topic(self, command: Command, header: SendHeader) -> TopicConfig:
        broker = self._broker
        topic = broker.topics.get(header.topic)
        if topic is not None:
            return topic
        now = broker.clock()
        topic = broker.topics.create_on_send(
            header.topic, header.default_topic, header.default_topic_queue_nums, now
        )
        if topic is None and header.topic.startswith(names.RETRY_PREFIX):
            topic = broker.topics.create_retry_topic(header.topic[len(names.RETRY_PREFIX) :], 1, now)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please! Create it (orbitmq topic create "
                f"{header.topic}) or switch autoCreateTopicEnable on",
            )
        broker.register_soon(topic.name)
        return topic

    def pick_queue(self, topic: TopicConfig, queue_id: int) -> int:
        return queue_id if queue_id >= 0 else self._random.randrange(max(1, topic.write_queue_nums))

    # --- drafts -----------------------------------------------------------------------------------------------

    def _draft(self, conn: Connection, command: Command, header: SendHeader, queue_id: int) -> Draft:
        properties = decode_properties(header.properties or "")
        # Read by the broker itself; the stored text does not hold it.
        properties.pop(Prop.WAIT, None)
        properties[Prop.CLUSTER] = self._broker.config.broker_cluster_name
        draft = Draft(
            header.topic,
            queue_id,
            command.body,
            properties,
            header.sys_flag & ~(SysFlag.BORN_V6 | SysFlag.STORE_V6),
            header.flag,
            header.born_timestamp,
            conn.peer_bytes,
            header.reconsume_times or 0,
            header.max_reconsume_times,
            command.version,
        )
        for divert in self.diverters:
            divert(draft)
        return draft

    def _batch_drafts(
        self, conn: Connection, command: Command, header: SendHeader, queue_id: int
    ) -> list[Draft]:
        if header.topic.startswith(names.RETRY_PREFIX):
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support retry group")
        outer = decode_properties(header.properties or "")
        outer[Prop.CLUSTER] = self._broker.config.broker_cluster_name
        drafts = []
        try:
            for flag, body, text in iter_batch(command.body):
                properties = decode_properties(text)
                if Prop.DELAY in properties:
                    raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "messages of a batch cannot be delayed")
                properties.update(outer)
                drafts.append(
                    Draft(
                        header.topic,
                        queue_id,
                        body,
                        properties,
                        header.sys_flag & ~(SysFlag.BORN_V6 | SysFlag.STORE_V6 | SysFlag.TX_MASK),
                        flag,
                        header.born_timestamp,
                        conn.peer_bytes,
                    )
                )
        except WireError as error:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}") from error
        if not drafts:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the batch holds no message")
        return drafts

    # --- storing ----------------------------------------------------------------------------------------------

    def store(self, conn: Connection, command: Command, drafts: list[Draft], queue_id: int) -> Command | None:
        broker = self._broker
        store = broker.store
        messages = [draft.finish() for draft in drafts]
        for message in messages:
            size = LARGEST_HEAD_BYTES + len(message.body) + len(message.properties)
            if size > store.settings.commit_log_file_bytes:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    "the message does not fit into a log file (mappedFileSizeCommitLog)",
                )
        try:
            offsets = [store.stage_inner(message) for message in messages]
            first = store.queue(messages[0].topic, messages[0].queue_id).next_offset - len(messages)
            end = store.commit_staged()
        except OSError as error:
            store.abandon_staged(error)
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the store cannot write: {error}"
            ) from error
        for draft, offset in zip(drafts, offsets, strict=True):
            for action in draft.after_store:
                action(offset, first)
        broker.stats.put(drafts[0].topic, len(messages), sum(len(m.body) for m in messages))
        if command.is_oneway:
            return None
        host = store.settings.store_host
        reply = command.reply(
            ext={
                "MSG_REGION": broker.config.region_id,
                "TRACE_ON": "true" if broker.config.trace_on else "false",
                "msgId": ",".join(offset_msg_id(host, offset) for offset in offsets),
                "queueId": str(queue_id),
                "queueOffset": str(first),
                **drafts[0].answer,
            }
        )
        if waits_for_flush(command.ext.get("i") or command.ext.get("properties") or ""):
            store.when_durable(end, lambda outcome: conn.send(encode(durable_reply(command, reply, outcome))))
            return None
        return reply


def waits_for_flush(properties: str) -> bool:
    return "WAIT\x01false" not in properties or find_property(properties.encode(), b"WAIT") != b"false"


COPY_PROBLEMS: Final = {
    Durable.NO_COPY: (ResponseCode.SLAVE_NOT_AVAILABLE, "stored, but no slave is near enough to hold a copy"),
    Durable.COPY_TIMEOUT: (
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        "stored, but no slave confirmed it within slaveTimeout",
    ),
}


def durable_reply(command: Command, reply: Command, outcome: Durable) -> Command:
    if outcome is Durable.YES:
        return reply
    if outcome is Durable.TIMEOUT:
        reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
        reply.remark = "stored, but not flushed within syncFlushTimeout"
        return reply
    if outcome in COPY_PROBLEMS:
        reply.code, reply.remark = COPY_PROBLEMS[outcome]
        return reply
    return command.reply(
        ResponseCode.SERVICE_NOT_AVAILABLE, remark="flushing the log failed; the broker is read-only"
    )


def parse_send(command: Command) -> SendHeader:
    if command.code in _V2_CODES:
        return parse(SendHeaderV2, command.ext).to_v1()
    return parse(SendHeader, command.ext)
