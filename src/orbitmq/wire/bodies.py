"""Typed bodies of requests and responses, all in one place to import from.

    beat = decode(HeartbeatData, command.body)      # BadBody says what is wrong
    body = encode(LockBatchResult(lock_ok_mq_set=queues))

Bodies that are only ever shown, such as statistics, have no type: they are read and written with `fastjson`.
"""

from __future__ import annotations

from orbitmq.wire.bodies_admin import (
    DataVersion,
    KvTable,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigWrapper,
    TopicList,
)
from orbitmq.wire.bodies_client import (
    CheckClientBody,
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerIdList,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ConsumeStatus,
    HeartbeatData,
    LockBatchBody,
    LockBatchResult,
    ProcessQueueInfo,
    ProducerData,
    SubscriptionData,
    decode_reset_offsets,
    encode_reset_offsets,
)
from orbitmq.wire.body_codec import (
    CONSUME_FROM_WHERE,
    CONSUME_RESULTS,
    CONSUME_TYPES,
    FILTER_TYPES,
    MESSAGE_MODELS,
    Body,
    decode,
    encode,
)
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.register_body import RegisterBrokerBody

__all__ = [
    "CONSUME_FROM_WHERE",
    "CONSUME_RESULTS",
    "CONSUME_TYPES",
    "FILTER_TYPES",
    "MESSAGE_MODELS",
    "Body",
    "CheckClientBody",
    "ConsumeDirectlyResult",
    "ConsumeStatus",
    "ConsumerData",
    "ConsumerIdList",
    "ConsumerRunningInfo",
    "ConsumerStatusBody",
    "DataVersion",
    "HeartbeatData",
    "KvTable",
    "LockBatchBody",
    "LockBatchResult",
    "MessageQueue",
    "ProcessQueueInfo",
    "ProducerData",
    "RegisterBrokerBody",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "SubscriptionGroupWrapper",
    "TopicConfig",
    "TopicConfigWrapper",
    "TopicList",
    "decode",
    "decode_reset_offsets",
    "encode",
    "encode_reset_offsets",
]
