"""CONSUMER_SEND_MSG_BACK, and sends to retry topics that come once too often."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from orbitmq.broker import redraft
from orbitmq.broker.retry import policy
from orbitmq.broker.room import Room
from orbitmq.net.errors import RequestError
from orbitmq.store.durability import Durable
from orbitmq.wire import topics as names
from orbitmq.wire.codes import Perm, RequestCode, ResponseCode
from orbitmq.wire.command import Command, encode
from orbitmq.wire.headers import SendBackHeader, parse
from orbitmq.wire.properties import Prop

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.groups import GroupConfig
    from orbitmq.broker.send import Draft
    from orbitmq.net.connection import Connection
    from orbitmq.net.service import Handler
    from orbitmq.store.inner_message import InnerMessage
    from orbitmq.wire.message import Message

log = logging.getLogger("orbitmq.retry")

REASON: Final = "DLQ_REASON"
ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
REASON_FIELD: Final = "failureReason"
# Records that stand for something else than a message for consumers.
_NOT_FOR_CONSUMERS: Final = frozenset({names.HALF_TOPIC, names.OP_TOPIC, names.SCHEDULE_TOPIC})


class Retries(Room):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def divert(self, draft: Draft) -> None:
        """A consumer that could not send back sends a copy itself; the limit is the same."""
        if not draft.topic.startswith(names.RETRY_PREFIX):
            return
        group = self._group(draft.topic[len(names.RETRY_PREFIX) :])
        draft.reconsume_times = max(0, draft.reconsume_times)
        limit = policy.limit_of(group.retry_max_times, draft.max_reconsume_times, draft.client_version)
        if draft.reconsume_times < limit:
            return
        self._bury(draft, group.name)

    def send_back(self, conn: Connection, command: Command) -> Command | None:
        header = parse(SendBackHeader, command.ext)
        broker = self._broker
        if broker.config.is_slave:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave: send back to its master"
            )
        group = self._group(header.group)
        if not broker.config.broker_permission & Perm.WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{broker.config.broker_ip1}] sending message is forbidden",
            )
        if group.retry_queue_nums <= 0:
            # The group does not want any message twice: saying yes makes the consumer go on.
            return command.reply()
        if broker.store.refusal:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, broker.store.refusal)
        self._need_retry_topic(group, header.unit_mode or False)
        message = redraft.message_at(broker.store, header.offset)
        if message is None or message.topic in _NOT_FOR_CONSUMERS:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"look message by offset failed, {header.offset}: no message of a consumer is there; "
                "it may have been cleaned by age",
            )
        reason = policy.clean_reason(command.ext.get(REASON_FIELD) or command.remark)
        draft = self._copy(message, group, header, command.version, reason)
        try:
            places, end = redraft.put_all(broker.store, [_finish(draft)])
        except OSError as error:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the store cannot write: {error}"
            ) from error
        redraft.stored(draft, places[0])
        broker.stats.send_back(draft.properties[Prop.RETRY_TOPIC], group.name)
        reply = command.reply()

        def durable(outcome: Durable) -> None:
            if outcome is Durable.FAILED:
                reply.code = ResponseCode.SERVICE_NOT_AVAILABLE
                reply.remark = "flushing the log failed; the broker is read-only"
            conn.send(encode(reply))

        if not command.is_oneway:
            broker.store.when_durable(end, durable)
        return None

    def _copy(
        self, message: Message, group: GroupConfig, header: SendBackHeader, client_version: int, reason: str
    ) -> Draft:
        broker = self._broker
        draft = redraft.redraft(message, names.retry_topic(group.name), 0)
        properties = draft.properties
        properties.setdefault(Prop.RETRY_TOPIC, message.topic)
        if not properties.get(Prop.ORIGIN_MESSAGE_ID):
            properties[Prop.ORIGIN_MESSAGE_ID] = message.offset_msg_id
        properties[Prop.WAIT] = "false"
        if reason:
            properties[REASON] = reason
        limit = policy.limit_of(group.retry_max_times, header.max_reconsume_times, client_version)
        level = policy.next_level(
            message.reconsume_times, limit, header.delay_level, len(broker.config.delay_levels_ms())
        )
        draft.reconsume_times = policy.next_times(message.reconsume_times)
        if level == policy.DEAD:
            properties[Prop.DELAY] = "0"
            self._bury(draft, group.name)
        else:
            draft.queue_id = broker.random.randrange(group.retry_queue_nums)
            properties[Prop.DELAY] = str(level)
            redraft.delay(broker, draft)
        return draft

    def _bury(self, draft: Draft, group: str) -> None:
        broker = self._broker
        draft.topic = names.dead_topic(group)
        draft.queue_id = 0
        if broker.topics.get(draft.topic) is None:
            broker.topics.create_dead_topic(group, broker.clock())
            broker.register_soon(draft.topic)
        properties = draft.properties
        message_id = properties.get(Prop.UNIQ_KEY) or properties.get(Prop.ORIGIN_MESSAGE_ID)
        if Prop.DELAY in properties:
            properties[Prop.DELAY] = "0"
        for timer in (Prop.TIMER_DELIVER_MS, Prop.TIMER_DELAY_MS, Prop.TIMER_DELAY_SEC):
            properties.pop(timer, None)
        if properties.get(REASON):
            properties[ORIGIN_TOPIC] = properties.get(Prop.RETRY_TOPIC, "")
            properties[ORIGIN_MESSAGE_ID] = message_id or ""
        log.info(
            "message %s of topic %s is dead for group %s after %d tries%s",
            message_id,
            properties.get(Prop.RETRY_TOPIC),
            group,
            draft.reconsume_times,
            f": {properties[REASON]}" if properties.get(REASON) else "",
        )

    def _group(self, name: str) -> GroupConfig:
        group = self._broker.groups.find(name, self._broker.clock())
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}; create it (orbitmq group create) or switch "
                "autoCreateSubscriptionGroup on",
            )
        return group

    def _need_retry_topic(self, group: GroupConfig, unit_mode: bool) -> None:
        broker = self._broker
        name = names.retry_topic(group.name)
        problem = names.validate_topic(name)
        if problem:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"group {group.name} cannot have a retry topic: {problem}"
            )
        topic = broker.topics.get(name)
        if topic is None:
            topic = broker.topics.create_retry_topic(
                group.name, group.retry_queue_nums, broker.clock(), unit_mode=unit_mode
            )
            broker.register_soon(name)
        if not topic.perm & Perm.WRITE:
            raise RequestError(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")


def _finish(draft: Draft) -> InnerMessage:
    """A message is worth more than the reason of its failure: what does not fit is left out."""
    try:
        return draft.finish()
    except RequestError:
        if REASON not in draft.properties:
            raise
        for name in (REASON, ORIGIN_TOPIC, ORIGIN_MESSAGE_ID):
            draft.properties.pop(name, None)
        return draft.finish()
