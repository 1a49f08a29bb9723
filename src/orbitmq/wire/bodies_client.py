"""Bodies between clients and brokers: heartbeats, queue locks, offsets to reset, what a consumer tells."""

from __future__ import annotations

from typing import Any

import msgspec

from orbitmq.wire import fastjson
from orbitmq.wire.body_codec import Body
from orbitmq.wire.errors import BadBody
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.header_fields import Int32, Int64


class SubscriptionData(Body, kw_only=True):
    """What a consumer wants of a topic. code_set holds the hashes of the tags; the client computes them."""

    class_filter_mode: bool = False
    code_set: set[Int64] = msgspec.field(default_factory=set)
    expression_type: str = "TAG"
    sub_string: str = "*"
    # Java sends milliseconds, Go nanoseconds: only comparable among clients of one language.
    sub_version: Int64 = 0
    tags_set: set[str] = msgspec.field(default_factory=set)
    topic: str = ""


class ConsumerData(Body, kw_only=True):
    """One consumer group of a client."""

    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str = "CONSUME_PASSIVELY"
    group_name: str = ""
    message_model: str = "CLUSTERING"
    subscription_data_set: list[SubscriptionData] = msgspec.field(default_factory=list)
    unit_mode: bool = False

    def __post_init__(self) -> None:
        # Java reads enum names in any case; everyone after us compares the exact word.
        self.consume_from_where = self.consume_from_where.upper()
        self.consume_type = self.consume_type.upper()
        self.message_model = self.message_model.upper()


class ProducerData(Body, kw_only=True):
    """One producer group of a client."""

    group_name: str = ""


class HeartbeatData(Body, kw_only=True):
    """HEART_BEAT: everything a client does, so that a broker that forgot can learn it again."""

    client_id: str = msgspec.field(name="clientID", default="")
    consumer_data_set: list[ConsumerData] = msgspec.field(default_factory=list)
    heartbeat_fingerprint: Int32 | None = None
    producer_data_set: list[ProducerData] = msgspec.field(default_factory=list)
    without_sub: bool | None = msgspec.field(name="withoutSub", default=None)


class ConsumerIdList(Body, kw_only=True):
    """Response of GET_CONSUMER_LIST_BY_GROUP."""

    consumer_id_list: list[str] = msgspec.field(default_factory=list)


class LockBatchBody(Body, kw_only=True):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[MessageQueue] = msgspec.field(default_factory=list)
    only_this_broker: bool | None = None


class LockBatchResult(Body, kw_only=True):
    """Response of LOCK_BATCH_MQ: the queues that are now the client's."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(name="lockOKMQSet", default_factory=list)


class CheckClientBody(Body, kw_only=True):
    """CHECK_CLIENT_CONFIG: can this broker filter as the consumer wishes?"""

    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


class ConsumerStatusBody(Body, kw_only=True):
    """GET_CONSUMER_STATUS_FROM_CLIENT: from a client its own offsets, to an admin those of each client id."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = msgspec.field(default_factory=dict)
    message_queue_table: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)


class ConsumeDirectlyResult(Body, kw_only=True):
    """Response of CONSUME_MESSAGE_DIRECTLY."""

    auto_commit: bool = True
    consume_result: str = "CR_SUCCESS"
    order: bool = False
    remark: str | None = None
    spent_time_mills: Int64 = 0


class ProcessQueueInfo(Body, kw_only=True):
    """How far a consumer is with one queue. The wire's word really is "droped"; Go writes "dropped"."""

    cached_msg_count: Int32 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_size_in_mib: Int32 = msgspec.field(name="cachedMsgSizeInMiB", default=0)
    commit_offset: Int64 = 0
    droped: bool = False
    dropped: bool | None = None
    last_consume_timestamp: Int64 = 0
    last_lock_timestamp: Int64 = 0
    last_pull_timestamp: Int64 = 0
    locked: bool = False
    transaction_msg_count: Int32 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_min_offset: Int64 = 0
    try_unlock_times: Int64 = 0

    @property
    def is_dropped(self) -> bool:
        return self.droped or bool(self.dropped)


class ConsumeStatus(Body, kw_only=True):
    """Rates of one topic in a consumer."""

    consume_failed_msgs: Int64 = 0
    consume_failed_tps: float = msgspec.field(name="consumeFailedTPS", default=0.0)
    consume_ok_tps: float = msgspec.field(name="consumeOKTPS", default=0.0)
    consume_rt: float = msgspec.field(name="consumeRT", default=0.0)
    pull_rt: float = msgspec.field(name="pullRT", default=0.0)
    pull_tps: float = msgspec.field(name="pullTPS", default=0.0)


class ConsumerRunningInfo(Body, kw_only=True):
    """Response of GET_CONSUMER_RUNNING_INFO."""

    jstack: str | None = None
    mq_table: dict[MessageQueue, ProcessQueueInfo] = msgspec.field(default_factory=dict)
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = msgspec.field(default_factory=dict)
    subscription_set: list[SubscriptionData] = msgspec.field(default_factory=list)


def encode_reset_offsets(offsets: dict[MessageQueue, int], *, for_cpp: bool = False) -> bytes:
    """RESET_CONSUMER_CLIENT_OFFSET: Java and Go want queues as bare keys, C++ clients want a list."""
    if for_cpp:
        return fastjson.dumps(
            {
                "offsetTable": [
                    {
                        "brokerName": queue.brokerName,
                        "offset": offset,
                        "queueId": queue.queueId,
                        "topic": queue.topic,
                    }
                    for queue, offset in offsets.items()
                ]
            }
        )
    return fastjson.dumps({"offsetTable": offsets})


def decode_reset_offsets(data: bytes) -> dict[MessageQueue, int]:
    """All forms of the table: bare keys, text keys, a list with offsets (C++), a list of pairs (gson)."""
    tree = fastjson.loads(data) if data else {}
    table = tree.get("offsetTable") if isinstance(tree, dict) else None
    if isinstance(table, dict):
        pairs = list(table.items())
    elif isinstance(table, list):
        pairs = [_offset_pair(entry) for entry in table]
    elif table is None:
        pairs = []
    else:
        raise BadBody(f"offsetTable is {type(table).__name__}, neither an object nor a list")
    offsets: dict[MessageQueue, int] = {}
    for key, value in pairs:
        queue = fastjson.as_queue(key)
        offset = fastjson.parse_int(value) if isinstance(value, str) else value
        if queue is None or type(offset) is not int:
            raise BadBody(f"offsetTable has an entry that is no queue with an offset: {str(key)[:80]!r}")
        offsets[queue] = offset
    return offsets


def _offset_pair(entry: Any) -> tuple[Any, Any]:
    if isinstance(entry, list) and len(entry) == 2:
        return entry[0], entry[1]
    if isinstance(entry, dict):
        return entry, entry.get("offset")
    return entry, None
