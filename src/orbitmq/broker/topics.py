"""The topics of a broker: system topics made at start, auto-creation on first send, changes by tools."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from orbitmq.broker.data_version import DataVersion
from orbitmq.broker.topic_config import TopicConfig
from orbitmq.wire import topics as names
from orbitmq.wire.codes import Perm, TopicFlag

if TYPE_CHECKING:
    from orbitmq.config import BrokerConfig

__all__ = ["TopicConfig", "TopicListener", "TopicTable"]

TopicListener = Callable[[str, "TopicConfig | None"], None]

READ_WRITE: Final = Perm.READ | Perm.WRITE
INHERITABLE: Final = READ_WRITE | Perm.INHERIT
MIN_SCHEDULE_QUEUES: Final = 18
CLUSTER_TOPIC_QUEUES: Final = 16
BENCHMARK_QUEUES: Final = 1024


class TopicTable:
    """All topics by name. `on_change` listeners hear (name, config), or (name, None) after a deletion."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.data_version = DataVersion()
        self.changes = 0
        self.on_change: list[TopicListener] = []
        self.on_made_by_send: list[Callable[[TopicConfig], None]] = []
        """Who wants to hear of topics that a first send made."""
        self._system = {topic.name: topic for topic in system_topics(config)}
        self.system_names = names.SYSTEM_TOPICS | self._system.keys()
        self.table: dict[str, TopicConfig] = {name: topic.copy() for name, topic in self._system.items()}

    def get(self, name: str) -> TopicConfig | None:
        return self.table.get(name)

    def names(self) -> list[str]:
        return list(self.table)

    def is_system(self, name: str) -> bool:
        return name in self.system_names or names.is_system_topic(name)

    def put(self, topic: TopicConfig, now_ms: int) -> None:
        """Create the topic or replace its settings."""
        self.table[topic.name] = topic
        self._changed(now_ms)
        self._tell(topic.name, topic)

    def delete(self, name: str, now_ms: int) -> bool:
        if self.table.pop(name, None) is None:
            return False
        self._changed(now_ms)
        self._tell(name, None)
        return True

    def create_on_send(
        self, topic: str, default_topic: str, client_queue_nums: int, now_ms: int, *, topic_sys_flag: int = 0
    ) -> TopicConfig | None:
        """The topic of a send, made after its default topic if that may be inherited; None if not."""
        existing = self.table.get(topic)
        if existing is not None:
            return existing
        pattern = self.table.get(default_topic)
        if pattern is None or not pattern.inheritable:
            return None
        if default_topic == names.DEFAULT_TOPIC and not self._config.auto_create_topic_enable:
            # The file still holds the inheritable topic of a time when auto-creation was on.
            return None
        queues = max(1, min(client_queue_nums, pattern.write_queue_nums))
        created = TopicConfig(
            topic,
            queues,
            queues,
            pattern.perm & ~Perm.INHERIT,
            topic_filter_type=pattern.topic_filter_type,
            topic_sys_flag=topic_sys_flag,
        )
        self.put(created, now_ms)
        for listener in self.on_made_by_send:
            listener(created)
        return created

    def create_internal(
        self, name: str, queue_nums: int, now_ms: int, *, perm: int = READ_WRITE, topic_sys_flag: int = 0
    ) -> TopicConfig:
        """A topic the broker needs for itself; an existing one keeps its settings."""
        existing = self.table.get(name)
        if existing is not None:
            return existing
        created = TopicConfig(name, queue_nums, queue_nums, perm, topic_sys_flag=topic_sys_flag)
        self.put(created, now_ms)
        return created

    def create_retry_topic(
        self, group: str, queue_nums: int, now_ms: int, *, unit_mode: bool = False
    ) -> TopicConfig:
        """Tools find a group's brokers by the route of this topic, so it exists from the first heartbeat."""
        flag = TopicFlag.UNIT_SUB if unit_mode else 0
        return self.create_internal(names.retry_topic(group), queue_nums, now_ms, topic_sys_flag=flag)

    def create_dead_topic(self, group: str, now_ms: int) -> TopicConfig:
        return self.create_internal(names.dead_topic(group), 1, now_ms)

    def set_order_topics(self, ordered: Collection[str], now_ms: int) -> None:
        """Take over which topics are ordered from the name servers; others stay as they are."""
        turned = [
            topic for name in ordered if (topic := self.table.get(name)) is not None and not topic.order
        ]
        for topic in turned:
            topic.order = True
        if turned:
            self._changed(now_ms)
            for topic in turned:
                self._tell(topic.name, topic)

    def wrapper(self, only: Iterable[str] | None = None, broker_perm: int = READ_WRITE) -> dict[str, object]:
        """The TopicConfigSerializeWrapper for registrations and tools, of all topics or the given ones."""
        chosen = self.table.values() if only is None else [self.table[n] for n in only if n in self.table]
        table = {topic.name: topic.to_json() for topic in chosen}
        if broker_perm & READ_WRITE != READ_WRITE:
            for entry in table.values():
                entry["perm"] = int(str(entry["perm"])) & broker_perm
        return {"dataVersion": self.data_version.to_json(), "topicConfigTable": table}

    def to_json(self) -> dict[str, object]:
        return self.wrapper()

    def from_json(self, data: object) -> None:
        """Load a saved table. The file's settings win; system topics it does not have are added."""
        version, loaded = _parse(data)
        self.data_version = version
        for name, topic in self._system.items():
            loaded.setdefault(name, topic.copy())
        self.table = loaded

    def replace(self, data: object) -> None:
        """Become exactly this table, as a slave does with its master's."""
        version, loaded = _parse(data)
        before = self.table
        self.table = loaded
        self.data_version = version
        self.changes += 1
        for name in before.keys() - loaded.keys():
            self._tell(name, None)
        for name, topic in loaded.items():
            if before.get(name) != topic:
                self._tell(name, topic)

    def _changed(self, now_ms: int) -> None:
        self.data_version.bump(now_ms)
        self.changes += 1

    def _tell(self, name: str, topic: TopicConfig | None) -> None:
        for listener in self.on_change:
            listener(name, topic)


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """The topics every broker has, by its configuration."""
    levels = max(MIN_SCHEDULE_QUEUES, len(config.delay_levels_ms()))
    topics = [
        TopicConfig(names.SELF_TEST_TOPIC, 1, 1),
        TopicConfig(names.BENCHMARK_TOPIC, BENCHMARK_QUEUES, BENCHMARK_QUEUES),
        TopicConfig(names.OFFSET_MOVED_TOPIC, 1, 1),
        TopicConfig(names.SCHEDULE_TOPIC, levels, levels),
        TopicConfig(names.reply_topic(config.broker_cluster_name), 1, 1),
    ]
    if config.auto_create_topic_enable:
        queues = config.default_topic_queue_nums
        topics.append(TopicConfig(names.DEFAULT_TOPIC, queues, queues, INHERITABLE))
    # Topics named like the cluster and the broker let tools find a route without knowing any topic.
    cluster_perm = INHERITABLE if config.cluster_topic_enable else Perm.INHERIT
    topics.append(
        TopicConfig(config.broker_cluster_name, CLUSTER_TOPIC_QUEUES, CLUSTER_TOPIC_QUEUES, cluster_perm)
    )
    broker_perm = INHERITABLE if config.broker_topic_enable else Perm.INHERIT
    topics.append(TopicConfig(config.broker_name, 1, 1, broker_perm))
    if config.trace_topic_enable:
        topics.append(TopicConfig(config.msg_trace_topic_name, 1, 1))
    return topics


def _parse(data: object) -> tuple[DataVersion, dict[str, TopicConfig]]:
    if not isinstance(data, Mapping):
        raise ValueError("the topic table is not a JSON object; expected dataVersion and topicConfigTable")
    entries: Any = data.get("topicConfigTable") or {}
    if not isinstance(entries, Mapping):
        raise ValueError("topicConfigTable is not a JSON object of topics by name")
    table = {str(name): TopicConfig.from_json(entry, str(name)) for name, entry in entries.items()}
    return DataVersion.from_json(data.get("dataVersion")), table
