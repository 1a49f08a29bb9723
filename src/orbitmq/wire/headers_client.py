"""Request headers between clients and brokers: sending, pulling, offsets, transactions, calls to clients."""

from __future__ import annotations

import msgspec

from orbitmq.wire.codes import PagePart
from orbitmq.wire.header_fields import Header, Int32, Int64


class SendHeader(Header, kw_only=True):
    """SEND_MESSAGE and SEND_REPLY_MESSAGE; queue_id below 0 lets the broker choose."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)

    def to_v2(self) -> SendHeaderV2:
        return SendHeaderV2(
            a=self.producer_group,
            b=self.topic,
            c=self.default_topic,
            d=self.default_topic_queue_nums,
            e=self.queue_id,
            f=self.sys_flag,
            g=self.born_timestamp,
            h=self.flag,
            i=self.properties,
            j=self.reconsume_times,
            k=self.unit_mode,
            l=self.max_reconsume_times,
            m=self.batch,
            n=self.broker_name,
        )


class SendHeaderV2(Header, kw_only=True):
    """SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and SEND_REPLY_MESSAGE_V2: the same fields, one letter each."""

    a: str
    b: str
    c: str
    d: Int32
    e: Int32
    f: Int32
    g: Int64
    h: Int32
    i: str | None = None
    j: Int32 | None = None
    k: bool | None = None
    l: Int32 | None = None  # noqa: E741 - the wire's name
    m: bool | None = None
    n: str | None = None

    def to_v1(self) -> SendHeader:
        return SendHeader(
            producer_group=self.a,
            topic=self.b,
            default_topic=self.c,
            default_topic_queue_nums=self.d,
            queue_id=self.e,
            sys_flag=self.f,
            born_timestamp=self.g,
            flag=self.h,
            properties=self.i,
            reconsume_times=self.j,
            unit_mode=self.k,
            max_reconsume_times=self.l,
            batch=self.m,
            broker_name=self.n,
        )


class PullHeader(Header, kw_only=True):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    page_bytes: Int32 = 0
    """Ours: the reader takes up to this many bytes at once, and as many messages as it asks for."""
    page_parts: Int32 = PagePart.WHOLE
    """Ours: of a page, the reader takes these parts of the messages alone."""


class QueryMessageHeader(Header, kw_only=True):
    """QUERY_MESSAGE; with unique_key the key is a client message id and the broker sets its own limit."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key: bool | None = msgspec.field(name="_UNIQUE_KEY_QUERY", default=None)


class QueryOffsetHeader(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateOffsetHeader(Header, kw_only=True):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffsetHeader(Header, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP; boundary_type is "lower" or "upper"."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class TopicQueueHeader(Header, kw_only=True):
    """GET_MAX_OFFSET, GET_MIN_OFFSET and GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int32
    committed: bool | None = None


class ViewMessageHeader(Header, kw_only=True):
    """VIEW_MESSAGE_BY_ID; offset is a position in the commit log."""

    offset: Int64
    topic: str | None = None


class UnregisterClientHeader(Header, kw_only=True):
    """UNREGISTER_CLIENT."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class SendBackHeader(Header, kw_only=True):
    """CONSUMER_SEND_MSG_BACK; offset is a position in the commit log."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None


class EndTransactionHeader(Header, kw_only=True):
    """END_TRANSACTION; commit_or_rollback is 0 unknown, 8 commit, 12 rollback."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool | None = None
    transaction_id: str | None = None
    topic: str | None = None


class ConsumerGroupHeader(Header, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP, NOTIFY_CONSUMER_IDS_CHANGED and GET_CONSUMER_CONNECTION_LIST."""

    consumer_group: str


class CheckTransactionHeader(Header, kw_only=True):
    """CHECK_TRANSACTION_STATE, from broker to producer."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


class ResetOffsetHeader(Header, kw_only=True):
    """RESET_CONSUMER_CLIENT_OFFSET and INVOKE_BROKER_TO_RESET_OFFSET; timestamp -1 means the end."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class ConsumerStatusHeader(Header, kw_only=True):
    """GET_CONSUMER_STATUS_FROM_CLIENT and INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    topic: str
    group: str
    client_addr: str | None = None


class RunningInfoHeader(Header, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeDirectlyHeader(Header, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None


class PushReplyHeader(Header, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT; hosts are written "ip:port"."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
