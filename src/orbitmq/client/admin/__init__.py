"""Looking at a cluster and changing it: one async function per wish, typed results.

In:   a `Cluster` and plain values.
Out:  frozen structs that a program can use and `msgspec` can write as JSON, or an `OrbitMQError`.

Invariants: a question that some brokers did not answer says so in its result (`missing`), and a sum over them
is then None; a change reports exactly which brokers took it.

Imports `client`, `wire` and `net` only.
"""

from __future__ import annotations

from orbitmq.client.admin.brokers import (
    BrokerCleaned,
    BrokerStatus,
    broker_config,
    broker_runtime,
    broker_statuses,
    clean_brokers,
    set_broker_writable,
    update_broker_config,
)
from orbitmq.client.admin.groups import (
    Connection,
    GroupConfig,
    GroupConnections,
    GroupProgress,
    GroupSummary,
    QueueProgress,
    create_group,
    delete_group,
    group_connections,
    group_progress,
    list_groups,
)
from orbitmq.client.admin.messages import (
    FOREVER_MS,
    message_at_offset,
    message_by_offset_id,
    messages_by_id,
    messages_by_key,
    messages_by_time,
)
from orbitmq.client.admin.reset import QueueReset, ResetPlan, apply_reset, plan_reset
from orbitmq.client.admin.targets import Missing, masters_of
from orbitmq.client.admin.topics import (
    QueueStatus,
    TopicStatus,
    TopicSummary,
    create_topic,
    delete_topic,
    list_topics,
    topic_groups,
    topic_status,
    update_topic,
)

__all__ = [
    "FOREVER_MS",
    "BrokerCleaned",
    "BrokerStatus",
    "Connection",
    "GroupConfig",
    "GroupConnections",
    "GroupProgress",
    "GroupSummary",
    "Missing",
    "QueueProgress",
    "QueueReset",
    "QueueStatus",
    "ResetPlan",
    "TopicStatus",
    "TopicSummary",
    "apply_reset",
    "broker_config",
    "broker_runtime",
    "broker_statuses",
    "clean_brokers",
    "create_group",
    "create_topic",
    "delete_group",
    "delete_topic",
    "group_connections",
    "group_progress",
    "list_groups",
    "list_topics",
    "masters_of",
    "message_at_offset",
    "message_by_offset_id",
    "messages_by_id",
    "messages_by_key",
    "messages_by_time",
    "plan_reset",
    "set_broker_writable",
    "topic_groups",
    "topic_status",
    "update_broker_config",
    "update_topic",
]
