"""What the pulls of one consumer group at one queue have in common, checked once and remembered.

A lane holds as long as everything it was checked against is still the same object: tables replace settings and
subscriptions, they do not change them. So there is nothing to tell a lane when something changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.broker.groups import GroupConfig
from orbitmq.broker.topic_config import TopicConfig
from orbitmq.config import BrokerRole
from orbitmq.store.consume_queue import ConsumeQueue
from orbitmq.wire.bodies import SubscriptionData
from orbitmq.wire.codes import Perm, PullFlag

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

MOST_LANES = 20_000
"""A peer may invent groups and expressions: with more than these all are forgotten."""


class Lane:
    """A group that reads everything from a queue."""

    __slots__ = (
        "_group",
        "_model",
        "_removals",
        "_subscription",
        "_topic",
        "group",
        "queue",
        "queue_id",
        "topic",
    )

    def __init__(
        self,
        queue: ConsumeQueue,
        topic: TopicConfig,
        group: GroupConfig,
        subscription: SubscriptionData | None,
        model: str,
        removals: int,
    ) -> None:
        """Without a subscription for pulls that bring their own."""
        self.queue = queue
        self.queue_id = queue.queue_id
        self.topic = topic.name
        self.group = group.name
        self._topic = topic
        self._group = group
        self._subscription = subscription
        self._model = model
        self._removals = removals
        """Of queues from the store: since then none was taken away, and so this one is still there."""

    def holds(self, broker: Broker, flags: int, sub_version: int) -> bool:
        """Whether the checks of this lane would end as they did, for a pull with these flags and this version."""
        config = broker.config
        # Spelled out, without properties and finders: each call counts where every pull comes along.
        if (
            config.broker_role is BrokerRole.SLAVE
            or config.slave_read_enable
            or not config.broker_permission & Perm.READ
            or broker.store.removals != self._removals
        ):
            return False
        if broker.topics.table.get(self.topic) is not self._topic:
            return False
        if broker.groups.table.get(self.group) is not self._group:
            return False
        subscription = self._subscription
        if subscription is None:
            return flags & PullFlag.SUBSCRIPTION != 0
        if flags & PullFlag.SUBSCRIPTION or sub_version > subscription.sub_version:
            return False
        consumers = broker.clients.groups.get(self.group)
        return (
            consumers is not None
            and consumers.message_model == self._model
            and consumers.subscriptions.get(self.topic) is subscription
        )


class Lanes:
    """By the key that the accelerator reads from a pull."""

    __slots__ = ("_broker", "known")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.known: dict[bytes, Lane] = {}

    def remember(self, key: bytes, group: str, topic: str, queue_id: int, flags: int) -> None:
        """A pull of everything has just been found good."""
        broker = self._broker
        queue = broker.store.find_queue(topic, queue_id)
        topic_config, group_config = broker.topics.get(topic), broker.groups.get(group)
        if queue is None or topic_config is None or group_config is None:
            return
        subscription, model = None, ""
        if not flags & PullFlag.SUBSCRIPTION:
            consumers = broker.clients.consumer_group(group)
            subscription = consumers.subscriptions.get(topic) if consumers is not None else None
            if consumers is None or subscription is None:
                return
            model = consumers.message_model
        if len(self.known) >= MOST_LANES:
            self.known.clear()
        self.known[key] = Lane(queue, topic_config, group_config, subscription, model, broker.store.removals)
