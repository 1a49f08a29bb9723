"""Request headers that a name server answers."""

from __future__ import annotations

from orbitmq.wire.header_fields import Header, Int32, Int64


class PutKvHeader(Header, kw_only=True):
    """PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


class KvKeyHeader(Header, kw_only=True):
    """GET_KV_CONFIG and DELETE_KV_CONFIG."""

    namespace: str
    key: str


class KvNamespaceHeader(Header, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str


class RegisterBrokerHeader(Header, kw_only=True):
    """REGISTER_BROKER; body_crc32 0 means unchecked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool | None = None
    body_crc32: Int32 | None = None
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None


class BrokerIdentityHeader(Header, kw_only=True):
    """UNREGISTER_BROKER and QUERY_DATA_VERSION."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class RouteInfoHeader(Header, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool | None = None


class BrokerNameHeader(Header, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER and ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class DeleteTopicInNamesrvHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV; without a cluster the topic goes from all brokers."""

    topic: str
    cluster_name: str | None = None


class TopicsByClusterHeader(Header, kw_only=True):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class BrokerMemberGroupHeader(Header, kw_only=True):
    """GET_BROKER_MEMBER_GROUP."""

    cluster_name: str
    broker_name: str


class BrokerHeartbeatHeader(Header, kw_only=True):
    """BROKER_HEARTBEAT; the wire's field really is heartbeatTimeoutMills."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None
