"""Messages the broker writes about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.store.inner_message import InnerMessage
from orbitmq.wire import fastjson
from orbitmq.wire import topics as names
from orbitmq.wire.properties import Prop, encode_properties

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker


def offset_moved_event(
    broker: Broker, group: str, topic: str, queue_id: int, asked: int, now: int
) -> InnerMessage:
    queue = {"brokerName": broker.config.broker_name, "queueId": queue_id, "topic": topic}
    body = fastjson.dumps(
        {"consumerGroup": group, "messageQueue": queue, "offsetNew": now, "offsetRequest": asked}
    )
    return InnerMessage(
        names.OFFSET_MOVED_TOPIC,
        0,
        body,
        encode_properties({Prop.TAGS: group, Prop.KEYS: group}),
        born_ms=broker.clock(),
        born_host=broker.store.settings.store_host,
    ).index_properties()
