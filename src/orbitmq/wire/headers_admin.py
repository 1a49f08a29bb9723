"""Request headers that administration tools send to brokers."""

from __future__ import annotations

from orbitmq.wire.header_fields import Header, Int32, Int64


class CreateTopicHeader(Header, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC; attributes look like "+key=value,-key"."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int32 | None = None
    attributes: str | None = None
    force: bool | None = None


class TopicHeader(Header, kw_only=True):
    """Every request that names a topic and nothing else."""

    topic: str


class AllTopicConfigHeader(Header, kw_only=True):
    """GET_ALL_TOPIC_CONFIG; 5.x pages through the table, 4.9 sends nothing."""

    topic_seq: Int32 | None = None
    data_version: str | None = None
    max_topic_num: Int32 | None = None


class AllGroupConfigHeader(Header, kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG; 5.x pages through the table, 4.9 sends nothing."""

    group_seq: Int32 | None = None
    data_version: str | None = None
    max_group_num: Int32 | None = None


class UpdateAclHeader(Header, kw_only=True):
    """UPDATE_AND_CREATE_ACL_CONFIG; perms are comma lists of "name=PUB|SUB"."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAclHeader(Header, kw_only=True):
    """DELETE_ACL_CONFIG."""

    access_key: str


class GlobalWhiteAddrsHeader(Header, kw_only=True):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG; older tools do not name a file."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class ProducerGroupHeader(Header, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class DeleteGroupHeader(Header, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP; 4.9 and 5.x name the same wish differently."""

    group_name: str
    remove_offset: bool | None = None
    clean_offset: bool | None = None

    @property
    def drops_offsets(self) -> bool:
        return bool(self.remove_offset or self.clean_offset)


class ConsumeStatsHeader(Header, kw_only=True):
    """GET_CONSUME_STATS; without a topic all topics of the group."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GroupHeader(Header, kw_only=True):
    """QUERY_TOPICS_BY_CONSUMER and GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str


class GroupTopicHeader(Header, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str | None = None


class TimeSpanHeader(Header, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN."""

    topic: str
    group: str


class CorrectionOffsetHeader(Header, kw_only=True):
    """QUERY_CORRECTION_OFFSET; filter_groups is a comma list."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneOffsetHeader(Header, kw_only=True):
    """CLONE_GROUP_OFFSET."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


class StatsDataHeader(Header, kw_only=True):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


class BrokerConsumeStatsHeader(Header, kw_only=True):
    """GET_BROKER_CONSUME_STATS."""

    is_order: bool


class QueryConsumeQueueHeader(Header, kw_only=True):
    """QUERY_CONSUME_QUEUE; Java marks nothing required but cannot work without topic and queue."""

    topic: str
    queue_id: Int32
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class ResumeCheckHeader(Header, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE; msg_id is an offset message id."""

    msg_id: str | None = None
    topic: str | None = None


class GroupForbiddenHeader(Header, kw_only=True):
    """UPDATE_AND_GET_GROUP_FORBIDDEN."""

    group: str
    topic: str
    readable: bool | None = None


class ResetFlushOffsetHeader(Header, kw_only=True):
    """RESET_MASTER_FLUSH_OFFSET."""

    master_flush_offset: Int64


class AuthUserHeader(Header, kw_only=True):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER and AUTH_GET_USER."""

    username: str


class AuthListUsersHeader(Header, kw_only=True):
    """AUTH_LIST_USER."""

    filter: str | None = None


class AuthAclHeader(Header, kw_only=True):
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_DELETE_ACL and AUTH_GET_ACL."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


class AuthListAclsHeader(Header, kw_only=True):
    """AUTH_LIST_ACL."""

    subject_filter: str | None = None
    resource_filter: str | None = None
