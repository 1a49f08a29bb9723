"""Topics: create, change, list, delete, and what lies in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from orbitmq.broker.admin.common import (
    json_reply,
    known_topic,
    queue_key,
    queue_range,
    refuse_on_slave,
    refused,
    stored_at_ms,
)
from orbitmq.broker.admin.context import Broker, Handler
from orbitmq.broker.topic_config import TopicConfig
from orbitmq.net.connection import Connection
from orbitmq.wire import fastjson
from orbitmq.wire import topics as names
from orbitmq.wire.codes import Perm, RequestCode
from orbitmq.wire.command import Command
from orbitmq.wire.headers import CreateTopicHeader, TopicHeader, parse

FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
ALL_PERMS: Final = Perm.PRIORITY | Perm.READ | Perm.WRITE | Perm.INHERIT
# Every queue has a row in the status of its topic, and such an answer must fit into one frame.
MAX_QUEUES: Final = 65_536


def update_topic(broker: Broker, conn: Connection, cmd: Command) -> Command:
    refuse_on_slave(broker)
    header = parse(CreateTopicHeader, cmd.ext, cmd.code)
    topic = TopicConfig(
        header.topic,
        header.read_queue_nums,
        header.write_queue_nums,
        header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag or 0,
        order=header.order,
        attributes=_changed_attributes(broker.topics.get(header.topic), header.attributes),
    )
    _put_topics(broker, [topic])
    return cmd.reply()


def update_topic_list(broker: Broker, conn: Connection, cmd: Command) -> Command:
    """All of the list or nothing: a list that is half done would have to be picked apart by hand."""
    refuse_on_slave(broker)
    data = fastjson.loads(cmd.body)
    entries = data.get("topicConfigList") if isinstance(data, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise refused("the body holds no topicConfigList; send a JSON list of topics under that name")
    try:
        topics = [TopicConfig.from_json(entry) for entry in entries]
    except (TypeError, ValueError) as error:
        raise refused(f"a topic of the list cannot be read: {error}; nothing was changed") from error
    _put_topics(broker, topics)
    return cmd.reply()


def _put_topics(broker: Broker, topics: list[TopicConfig]) -> None:
    for topic in topics:
        _check_name(broker, topic.name)
        _check_settings(topic)
    for topic in topics:
        broker.topics.put(topic, broker.clock())
    # One topic travels alone; the table as a whole may be large.
    broker.register_soon(topics[0].name if len(topics) == 1 else None)


def _check_name(broker: Broker, name: str) -> None:
    reason = names.validate_topic(name)
    if reason is not None:
        raise refused(reason)
    if broker.topics.is_system(name):
        raise refused(f"The topic[{name}] is conflict with system topic.")


def _check_settings(topic: TopicConfig) -> None:
    reason = None
    if not 0 <= topic.perm <= ALL_PERMS:
        reason = f"perm is {topic.perm}; use 2 to write, 4 to read, 6 for both"
    elif not 0 <= topic.write_queue_nums <= MAX_QUEUES or not 0 <= topic.read_queue_nums <= MAX_QUEUES:
        reason = (
            f"the queue numbers are {topic.read_queue_nums} (read) and {topic.write_queue_nums} (write); "
            f"possible are 0 to {MAX_QUEUES}"
        )
    elif topic.topic_filter_type not in FILTER_TYPES:
        reason = f"topicFilterType is {topic.topic_filter_type!r}; use {' or '.join(FILTER_TYPES)}"
    if reason is not None:
        raise refused(f"topic {topic.name} was not changed: {reason}")


def _changed_attributes(before: TopicConfig | None, changes: str | None) -> dict[str, str]:
    """Attributes after changes such as "+message.type=FIFO,-queue.type"."""
    attributes = dict(before.attributes) if before is not None else {}
    for change in (changes or "").split(","):
        sign, (name, equals, value) = change.strip()[:1], change.strip()[1:].partition("=")
        if sign == "+" and name and equals:
            attributes[name] = value
        elif sign == "-" and name and not equals:
            attributes.pop(name, None)
        elif sign:
            raise refused(
                f"attribute change {change.strip()!r} cannot be read; write +name=value or -name to remove it"
            )
    return attributes


def delete_topic(broker: Broker, conn: Connection, cmd: Command) -> Command:
    refuse_on_slave(broker)
    name = parse(TopicHeader, cmd.ext, cmd.code).topic
    _check_name(broker, name)
    broker.topics.delete(name, broker.clock())
    broker.store.delete_topic(name)
    # A topic made again under this name counts from 0; old offsets would make its groups skip what is new.
    broker.offsets.remove_topic(name)
    broker.stats.forget_topic(name)
    broker.register_soon()
    return cmd.reply()


def all_topic_config(broker: Broker, conn: Connection, cmd: Command) -> Command:
    # 5.x clients page through the table; the whole of it in one answer ends their loop at once.
    return json_reply(cmd, broker.topics.to_json(), {"totalTopicNum": str(len(broker.topics.table))})


def topic_config(broker: Broker, conn: Connection, cmd: Command) -> Command:
    topic = known_topic(broker, parse(TopicHeader, cmd.ext, cmd.code).topic)
    return json_reply(cmd, {"attributes": topic.attributes, **topic.to_json()})


def topic_stats(broker: Broker, conn: Connection, cmd: Command) -> Command:
    topic = known_topic(broker, parse(TopicHeader, cmd.ext, cmd.code).topic)
    table = {}
    # Not only the queues still written to: while a topic shrinks, what waits in the others must be seen.
    for queue_id in range(topic.queue_count):
        low, high = queue_range(broker, topic.name, queue_id)
        table[queue_key(broker, topic.name, queue_id)] = {
            "lastUpdateTimestamp": max(0, stored_at_ms(broker, topic.name, queue_id, high - 1)),
            "maxOffset": high,
            "minOffset": low,
        }
    return json_reply(cmd, {"offsetTable": table})


def groups_of_topic(broker: Broker, conn: Connection, cmd: Command) -> Command:
    topic = parse(TopicHeader, cmd.ext, cmd.code).topic
    groups = {*broker.clients.groups_of_topic(topic), *broker.offsets.groups_of(topic)}
    return json_reply(cmd, {"groupList": groups})


def system_topics(broker: Broker, conn: Connection, cmd: Command) -> Command:
    return json_reply(cmd, {"topicList": broker.topics.system_names})


def clean_unused_topics(broker: Broker, conn: Connection, cmd: Command) -> Command:
    # Some queues belong to the broker itself and have no row in the topic table, such as those of operations.
    stored = broker.store.topics()
    own = [name for name in stored if broker.topics.is_system(name) or name.startswith(names.LMQ_PREFIX)]
    broker.store.clean_unused_topics({*own, *broker.topics.names()})
    return cmd.reply()


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: update_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: update_topic_list,
    RequestCode.GET_ALL_TOPIC_CONFIG: all_topic_config,
    RequestCode.GET_TOPIC_CONFIG: topic_config,
    RequestCode.GET_TOPIC_STATS_INFO: topic_stats,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups_of_topic,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: system_topics,
    RequestCode.CLEAN_UNUSED_TOPIC: clean_unused_topics,
}
