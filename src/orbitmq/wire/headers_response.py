"""Response headers. Java clients throw when a required field is absent, so those have no default here."""

from __future__ import annotations

import msgspec

from orbitmq.wire.header_fields import Header, Int32, Int64


class SendResponse(Header, kw_only=True):
    """All sends; msg_id is the offset message id, a comma list for a batch."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    region: str | None = msgspec.field(name="MSG_REGION", default=None)
    trace_on: str | None = msgspec.field(name="TRACE_ON", default=None)


class PullResponse(Header, kw_only=True):
    """PULL_MESSAGE; also sent with the codes that say why nothing was found."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class QueryMessageResponse(Header, kw_only=True):
    """QUERY_MESSAGE."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class OffsetResponse(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP, GET_MAX_OFFSET and GET_MIN_OFFSET."""

    offset: Int64


class TimestampResponse(Header, kw_only=True):
    """GET_EARLIEST_MSG_STORETIME; -1 when the queue is empty."""

    timestamp: Int64


class KvResponse(Header, kw_only=True):
    """GET_KV_CONFIG."""

    value: str | None = None


class RegisterBrokerResponse(Header, kw_only=True):
    """REGISTER_BROKER; both are set for a slave whose master is alive."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class WipePermResponse(Header, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER."""

    wipe_topic_count: Int32


class AddPermResponse(Header, kw_only=True):
    """ADD_WRITE_PERM_OF_BROKER."""

    add_topic_count: Int32


class DataVersionResponse(Header, kw_only=True):
    """QUERY_DATA_VERSION."""

    changed: bool


class BrokerConfigResponse(Header, kw_only=True):
    """GET_BROKER_CONFIG; version is a DataVersion as JSON."""

    version: str


class AclInfoResponse(Header, kw_only=True):
    """GET_BROKER_CLUSTER_ACL_INFO; versions are DataVersions as JSON."""

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None
