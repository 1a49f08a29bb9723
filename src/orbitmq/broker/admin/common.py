"""What several families of handlers share: checks that refuse, and the forms of answers."""

from __future__ import annotations

import time

from orbitmq.broker.admin.context import Broker
from orbitmq.broker.topic_config import TopicConfig
from orbitmq.net.errors import RequestError
from orbitmq.wire import fastjson
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.fastjson import MessageQueue


def json_reply(cmd: Command, value: object, ext: dict[str, str] | None = None) -> Command:
    return cmd.reply(ext=ext, body=fastjson.dumps(value))


def refused(why: str) -> RequestError:
    """The error of everything that has no code of its own."""
    return RequestError(ResponseCode.SYSTEM_ERROR, why)


def refuse_on_slave(broker: Broker) -> None:
    """A slave's tables are copies of its master's: a change here would be overwritten within seconds."""
    if broker.config.is_slave:
        raise refused(
            "Can't modify topic or subscription group from slave broker, "
            "please execute it from master broker."
        )


def known_topic(broker: Broker, name: str) -> TopicConfig:
    topic = broker.topics.get(name)
    if topic is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{name}] not exist on broker {broker.config.broker_name}; check the name or create it",
        )
    return topic


def queue_key(broker: Broker, topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, broker.config.broker_name, queue_id)


def queue_range(broker: Broker, topic: str, queue_id: int) -> tuple[int, int]:
    """(minimum, end) of a queue; a queue nothing was ever written to is empty at 0."""
    queue = broker.store.find_queue(topic, queue_id)
    return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)


def stored_at_ms(broker: Broker, topic: str, queue_id: int, offset: int) -> int:
    """When the message at this place of a queue was stored, -1 if there is none."""
    queue = broker.store.find_queue(topic, queue_id)
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return -1
    return broker.store.store_time_of(queue, offset)


def time_text(epoch_ms: int) -> str:
    """Local time as tools print and read it: 2024-01-31#23:59:59:999."""
    moment = time.localtime(epoch_ms // 1000)
    return time.strftime("%Y-%m-%d#%H:%M:%S", moment) + f":{epoch_ms % 1000:03d}"
