"""Bodies of tables that brokers hand to name servers, slaves and tools: topics, groups and their versions."""

from __future__ import annotations

import msgspec

from orbitmq.wire.body_codec import Body
from orbitmq.wire.codes import Perm
from orbitmq.wire.header_fields import Int32, Int64


class DataVersion(Body, kw_only=True):
    """Which state of a table this is: the time of its last change and how many there were."""

    counter: Int64 = 0
    state_version: Int64 | None = None
    timestamp: Int64 = 0


class TopicConfig(Body, kw_only=True):
    """A topic on one broker; attributes are 5.x only and absent in 4.9."""

    attributes: dict[str, str] | None = None
    order: bool = False
    perm: Int32 = Perm.READ | Perm.WRITE
    read_queue_nums: Int32 = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str = ""
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16

    def __post_init__(self) -> None:
        self.topic_filter_type = self.topic_filter_type.upper()


class TopicConfigWrapper(Body, kw_only=True):
    """Response of GET_ALL_TOPIC_CONFIG, and the heart of REGISTER_BROKER."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)


class SubscriptionGroupConfig(Body, kw_only=True):
    """A consumer group on one broker."""

    broker_id: Int64 = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    group_name: str = ""
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int32 = 16
    retry_queue_nums: Int32 = 1
    which_broker_when_consume_slowly: Int64 = 1


class SubscriptionGroupWrapper(Body, kw_only=True):
    """Response of GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = msgspec.field(default_factory=dict)


class KvTable(Body, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE, GET_BROKER_RUNTIME_INFO, and the answer to REGISTER_BROKER."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class TopicList(Body, kw_only=True):
    """Every request that lists topics; broker_addr only in that of system topics."""

    broker_addr: str | None = None
    topic_list: list[str] = msgspec.field(default_factory=list)
