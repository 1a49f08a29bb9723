"""Requests by which clients join, leave, find each other, keep their progress and lock queues.

Each handler takes the broker, the connection and the request, and returns the answer. What a table says has
to happen (tell the other members, register a new topic) is done here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from orbitmq.broker.clients import Channel, ClientManager, GroupChange, Mismatch
from orbitmq.broker.groups import GroupTable
from orbitmq.broker.locks import QueueLocks
from orbitmq.broker.offsets import OffsetTable
from orbitmq.broker.topics import TopicTable
from orbitmq.config import BrokerConfig
from orbitmq.config import Mismatch as OnMismatch
from orbitmq.net.errors import RequestError
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.headers import (
    ConsumerGroupHeader,
    QueryOffsetHeader,
    UnregisterClientHeader,
    UpdateOffsetHeader,
    parse,
)
from orbitmq.wire.topics import retry_topic

log = logging.getLogger("orbitmq.broker")

MAX_MISMATCHES_TOLD: Final = 5


class Queue(Protocol):
    @property
    def min_offset(self) -> int: ...
    def unit(self, offset: int, /) -> tuple[int, int, int] | None: ...


class Store(Protocol):
    """What of the store decides where a new consumer starts."""

    def find_queue(self, topic: str, queue_id: int, /) -> Queue | None: ...
    def in_memory(self, position: int, /) -> bool: ...


class Host(Protocol):
    """The broker as these handlers see it."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def store(self) -> Store: ...
    @property
    def topics(self) -> TopicTable: ...
    @property
    def groups(self) -> GroupTable: ...
    @property
    def offsets(self) -> OffsetTable: ...
    @property
    def clients(self) -> ClientManager: ...
    @property
    def locks(self) -> QueueLocks: ...
    @property
    def clock(self) -> Callable[[], int]: ...
    @property
    def liveness(self) -> Callable[[], int]: ...

    def register_soon(self, topic: str | None = None, /) -> None: ...

    def check_filter(self, subscription: bodies.SubscriptionData, /) -> None:
        """Raises ValueError when the expression cannot be compiled."""


Handler = Callable[[Host, Channel, Command], Command]


def heartbeat(broker: Host, conn: Channel, cmd: Command) -> Command:
    now_ms = broker.clock()
    beat = bodies.decode(bodies.HeartbeatData, cmd.body)
    if not beat.client_id:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the heartbeat has no clientID; give the client a name")
    for consumer in beat.consumer_data_set:
        _prepare_group(broker, consumer, now_ms)
    result = broker.clients.heartbeat(
        conn,
        beat,
        cmd.language,
        cmd.version,
        broker.liveness(),
        refuse_mismatch=broker.config.subscription_mismatch is OnMismatch.REFUSE,
    )
    announce(broker, result.changes)
    for group, mismatches in result.mismatches.items():
        log.warning("%s", mismatch_text(group, mismatches))
    if result.refused:
        text = "; ".join(mismatch_text(group, found) for group, found in result.refused.items())
        log.warning("heartbeat of %s refused: %s", beat.client_id, text)
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"SUBSCRIPTION_MISMATCH: {text}. Give every member of the group the same topics and expressions, "
            "use another group, or set subscriptionMismatch=warn on the broker",
        )
    return cmd.reply(remark=_disagreements(broker, beat))


def _disagreements(broker: Host, beat: bodies.HeartbeatData) -> str | None:
    """What every member of a group hears as long as members disagree, odd or not: any of them may be wrong."""
    texts = [
        mismatch_text(consumer.group_name, found)
        for consumer in beat.consumer_data_set
        if (found := broker.clients.mismatches(consumer.group_name))
    ]
    return "SUBSCRIPTION_MISMATCH: " + "; ".join(texts) if texts else None


def _prepare_group(broker: Host, consumer: bodies.ConsumerData, now_ms: int) -> None:
    """Makes the group and its retry topic, by whose route tools find the brokers of a group."""
    group = broker.groups.find(consumer.group_name, now_ms)
    if group is None:
        return
    name = retry_topic(group.name)
    if broker.topics.get(name) is None:
        broker.topics.create_retry_topic(
            group.name, group.retry_queue_nums, now_ms, unit_mode=consumer.unit_mode
        )
        broker.register_soon(name)


def mismatch_text(group: str, mismatches: Sequence[Mismatch]) -> str:
    shown = "; ".join(map(str, mismatches[:MAX_MISMATCHES_TOLD]))
    more = len(mismatches) - MAX_MISMATCHES_TOLD
    rest = f"; and {more} more" if more > 0 else ""
    return f"members of consumer group {group} subscribe differently and will miss messages: {shown}{rest}"


def unregister(broker: Host, conn: Channel, cmd: Command) -> Command:
    header = parse(UnregisterClientHeader, cmd.ext)
    changes = broker.clients.unregister(conn, header.client_id, header.producer_group, header.consumer_group)
    for change in changes:
        # The client has stopped consuming before it unregisters; the next owner need not wait for the expiry.
        broker.locks.release(change.group, header.client_id)
    announce(broker, changes)
    return cmd.reply()


def announce(broker: Host, changes: Iterable[GroupChange]) -> None:
    """Tells the members of changed groups to rebalance now, where broker and group want that."""
    if not broker.config.notify_consumer_ids_changed_enable:
        return
    for change in changes:
        group = broker.groups.get(change.group)
        if group is not None and not group.notify_consumer_ids_changed_enable:
            continue
        for conn in change.conns:
            if not conn.closed:
                ext = {"consumerGroup": change.group}
                conn.oneway(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext, oneway=True))


def connection_lost(broker: Host, conn: Channel) -> None:
    """To be called when a connection ended."""
    announce(broker, broker.clients.connection_lost(conn))


def expire(broker: Host, now_ms: int) -> None:
    """To be called every ten seconds or so: drops silent clients and locks that ran out."""
    expired = broker.clients.expire(now_ms)
    for conn in expired.conns:
        log.warning("closing %s: no heartbeat for %d s", conn.peer, broker.clients.expire_ms // 1000)
        conn.close()
    announce(broker, expired.changes)
    broker.locks.expire(now_ms)


def check_client_config(broker: Host, conn: Channel, cmd: Command) -> Command:
    subscription = bodies.decode(bodies.CheckClientBody, cmd.body).subscription_data
    if subscription is None or (subscription.expression_type or "TAG") == "TAG":
        return cmd.reply()
    if not broker.config.enable_property_filter:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {subscription.expression_type}; "
            "set enablePropertyFilter=true on the broker to allow it",
        )
    try:
        broker.check_filter(subscription)
    except ValueError as error:
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
    return cmd.reply()


def consumer_list(broker: Host, conn: Channel, cmd: Command) -> Command:
    group = parse(ConsumerGroupHeader, cmd.ext, cmd.code).consumer_group
    client_ids = broker.clients.consumer_ids(group)
    if not client_ids:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
    return cmd.reply(body=bodies.encode(bodies.ConsumerIdList(consumer_id_list=client_ids)))


def query_offset(broker: Host, conn: Channel, cmd: Command) -> Command:
    header = parse(QueryOffsetHeader, cmd.ext)
    group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
    if header.set_zero_if_not_found is False:
        committed = broker.offsets.query(group, topic, queue_id)
        offset = committed if committed >= 0 else None
    else:
        offset = broker.offsets.start_offset(
            group,
            topic,
            queue_id,
            min_offset=lambda t, q: _min_offset(broker, t, q),
            in_memory=lambda t, q: _starts_in_memory(broker, t, q),
        )
    if offset is None:
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND,
            f"Not found, group {group} has no offset on queue {queue_id} of topic {topic}: "
            "maybe it starts for the first time",
        )
    return cmd.reply(ext={"offset": str(offset)})


def _min_offset(broker: Host, topic: str, queue_id: int) -> int:
    queue = broker.store.find_queue(topic, queue_id)
    return 0 if queue is None else queue.min_offset


def _starts_in_memory(broker: Host, topic: str, queue_id: int) -> bool:
    """Whether the queue's first message is recent enough to be in memory; an empty queue counts as recent."""
    queue = broker.store.find_queue(topic, queue_id)
    first = None if queue is None else queue.unit(0)
    return first is None or broker.store.in_memory(first[0])


def update_offset(broker: Host, conn: Channel, cmd: Command) -> Command:
    header = parse(UpdateOffsetHeader, cmd.ext)
    if header.commit_offset < 0 or header.queue_id < 0:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"queueId and commitOffset must be 0 or more, got {header.queue_id} and {header.commit_offset}",
        )
    if broker.topics.get(header.topic) is None:
        # Also keeps the offset table from filling up with names that nobody can ever read.
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
    forward = broker.offsets.commit(
        header.consumer_group, header.topic, header.queue_id, header.commit_offset
    )
    if not forward:
        log.warning(
            "%s moved group %s backwards to offset %d on queue %d of topic %s",
            conn.peer,
            header.consumer_group,
            header.commit_offset,
            header.queue_id,
            header.topic,
        )
    return cmd.reply()


def lock_batch(broker: Host, conn: Channel, cmd: Command) -> Command:
    body = bodies.decode(bodies.LockBatchBody, cmd.body)
    owned = broker.locks.lock(body.consumer_group, body.client_id, body.mq_set, broker.liveness())
    return cmd.reply(body=bodies.encode(bodies.LockBatchResult(lock_ok_mq_set=owned)))


def unlock_batch(broker: Host, conn: Channel, cmd: Command) -> Command:
    body = bodies.decode(bodies.LockBatchBody, cmd.body)
    broker.locks.unlock(body.consumer_group, body.client_id, body.mq_set)
    return cmd.reply()


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.CHECK_CLIENT_CONFIG: check_client_config,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    RequestCode.LOCK_BATCH_MQ: lock_batch,
    RequestCode.UNLOCK_BATCH_MQ: unlock_batch,
}
