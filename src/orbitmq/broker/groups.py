"""The consumer groups a broker knows, with what they may do and how they retry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from orbitmq.broker.data_version import DataVersion
from orbitmq.wire import topics as names

if TYPE_CHECKING:
    from orbitmq.config import BrokerConfig

GroupListener = Callable[[str, "GroupConfig | None"], None]

# Java name, attribute, default: in the order in which Java writes them.
_FIELDS: Final[tuple[tuple[str, str, int], ...]] = (
    ("brokerId", "broker_id", 0),
    ("consumeBroadcastEnable", "consume_broadcast_enable", True),
    ("consumeEnable", "consume_enable", True),
    ("consumeFromMinEnable", "consume_from_min_enable", True),
    ("notifyConsumerIdsChangedEnable", "notify_consumer_ids_changed_enable", True),
    ("retryMaxTimes", "retry_max_times", 16),
    ("retryQueueNums", "retry_queue_nums", 1),
    ("whichBrokerWhenConsumeSlowly", "which_broker_when_consume_slowly", 1),
)
_KNOWN: Final = frozenset(java for java, _, _ in _FIELDS) | {"groupName"}


class GroupConfig:
    """Settings of one consumer group. `extra` keeps what newer brokers wrote, so that saving keeps it too."""

    __slots__ = (
        "broker_id",
        "consume_broadcast_enable",
        "consume_enable",
        "consume_from_min_enable",
        "extra",
        "name",
        "notify_consumer_ids_changed_enable",
        "retry_max_times",
        "retry_queue_nums",
        "which_broker_when_consume_slowly",
    )

    def __init__(
        self,
        name: str,
        *,
        consume_enable: bool = True,
        consume_from_min_enable: bool = True,
        consume_broadcast_enable: bool = True,
        retry_queue_nums: int = 1,
        retry_max_times: int = 16,
        broker_id: int = 0,
        which_broker_when_consume_slowly: int = 1,
        notify_consumer_ids_changed_enable: bool = True,
        extra: dict[str, object] | None = None,
    ) -> None:
        self.name = name
        self.consume_enable = consume_enable
        self.consume_from_min_enable = consume_from_min_enable
        self.consume_broadcast_enable = consume_broadcast_enable
        self.retry_queue_nums = retry_queue_nums
        self.retry_max_times = retry_max_times
        self.broker_id = broker_id
        self.which_broker_when_consume_slowly = which_broker_when_consume_slowly
        self.notify_consumer_ids_changed_enable = notify_consumer_ids_changed_enable
        self.extra = extra if extra is not None else {}

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {java: getattr(self, attribute) for java, attribute, _ in _FIELDS}
        data["groupName"] = self.name
        data.update(self.extra)
        return dict(sorted(data.items()))

    @classmethod
    def from_json(cls, data: Mapping[str, Any], name: str | None = None) -> GroupConfig:
        group = name if name is not None else data.get("groupName")
        if not isinstance(group, str) or not group:
            raise ValueError(f"a subscription group without groupName: {dict(data)!r}")
        config = cls(group, extra={str(k): v for k, v in data.items() if k not in _KNOWN})
        for java, attribute, default in _FIELDS:
            value = data.get(java)
            setattr(config, attribute, default if value is None else type(default)(value))
        return config

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GroupConfig):
            return NotImplemented
        return self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"GroupConfig({self.name!r}, enabled={self.consume_enable}, retries={self.retry_max_times})"


class GroupTable:
    """All consumer groups by name."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.data_version = DataVersion()
        self.changes = 0
        self.on_change: list[GroupListener] = []
        self._extra: dict[str, object] = {}
        self.table: dict[str, GroupConfig] = {name: GroupConfig(name) for name in names.BUILT_IN_GROUPS}

    def get(self, name: str) -> GroupConfig | None:
        return self.table.get(name)

    def find(self, name: str, now_ms: int) -> GroupConfig | None:
        """The group, made now if it may be; None when auto-creation is off or the name is bad."""
        group = self.table.get(name)
        if group is not None:
            return group
        if not self._config.auto_create_subscription_group and not names.is_system_group(name):
            return None
        if names.validate_group(name) is not None:
            return None
        group = GroupConfig(name)
        self.put(group, now_ms)
        return group

    def put(self, group: GroupConfig, now_ms: int) -> None:
        self.table[group.name] = group
        self._changed(now_ms)
        self._tell(group.name, group)

    def delete(self, name: str, now_ms: int) -> bool:
        if self.table.pop(name, None) is None:
            return False
        self._changed(now_ms)
        self._tell(name, None)
        return True

    def names(self) -> list[str]:
        return list(self.table)

    def is_builtin(self, name: str) -> bool:
        return names.is_system_group(name)

    def to_json(self) -> dict[str, object]:
        return {
            "dataVersion": self.data_version.to_json(),
            **self._extra,
            "subscriptionGroupTable": {name: group.to_json() for name, group in self.table.items()},
        }

    def from_json(self, data: object) -> None:
        """Load a saved table; built-in groups it does not have are added."""
        self._take(data)
        for name in names.BUILT_IN_GROUPS:
            if name not in self.table:
                self.table[name] = GroupConfig(name)

    def replace(self, data: object) -> None:
        """Become exactly this table, as a slave does with its master's."""
        before = self.table
        self._take(data)
        self.changes += 1
        for name in before.keys() - self.table.keys():
            self._tell(name, None)
        for name, group in self.table.items():
            if before.get(name) != group:
                self._tell(name, group)

    def _take(self, data: object) -> None:
        if not isinstance(data, Mapping):
            raise ValueError("the group table is not a JSON object with a subscriptionGroupTable")
        entries: Any = data.get("subscriptionGroupTable") or {}
        if not isinstance(entries, Mapping):
            raise ValueError("subscriptionGroupTable is not a JSON object of groups by name")
        self.table = {str(name): GroupConfig.from_json(entry, str(name)) for name, entry in entries.items()}
        self.data_version = DataVersion.from_json(data.get("dataVersion"))
        known = ("dataVersion", "subscriptionGroupTable")
        self._extra = {str(key): value for key, value in data.items() if key not in known and value}

    def _changed(self, now_ms: int) -> None:
        self.data_version.bump(now_ms)
        self.changes += 1

    def _tell(self, name: str, group: GroupConfig | None) -> None:
        for listener in self.on_change:
            listener(name, group)
