"""Names with a meaning: system topics and groups, retry and dead-letter topics, and what a name may be."""

from __future__ import annotations

import re
from typing import Final

DEFAULT_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"

RETRY_PREFIX: Final = "%RETRY%"
DEAD_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"

SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        TRACE_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

# A client that could write here would forge delayed, prepared or event messages.
SEND_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
FILTERSRV_GROUP: Final = "FILTERSRV_CONSUMER"
SELF_TEST_GROUP: Final = "SELF_TEST_C_GROUP"
ONS_HTTP_PROXY_GROUP: Final = "CID_ONS-HTTP-PROXY"
ONSAPI_PULL_GROUP: Final = "CID_ONSAPI_PULL"
ONSAPI_PERMISSION_GROUP: Final = "CID_ONSAPI_PERMISSION"
ONSAPI_OWNER_GROUP: Final = "CID_ONSAPI_OWNER"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"

# Groups every broker has in its group table from the start.
BUILT_IN_GROUPS: Final = (
    TOOLS_GROUP,
    FILTERSRV_GROUP,
    SELF_TEST_GROUP,
    ONS_HTTP_PROXY_GROUP,
    ONSAPI_PULL_GROUP,
    ONSAPI_PERMISSION_GROUP,
    ONSAPI_OWNER_GROUP,
)

TOPIC_MAX_CHARS: Final = 127
GROUP_MAX_CHARS: Final = 255

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch
_ALLOWED = "^[%|a-zA-Z0-9_-]+$"


def retry_topic(group: str) -> str:
    """The topic that holds messages a group wants to see again."""
    return RETRY_PREFIX + group


def dead_topic(group: str) -> str:
    """The topic that holds messages a group has given up on."""
    return DEAD_PREFIX + group


def reply_topic(cluster: str) -> str:
    """The topic that holds replies of the request-reply pattern in a cluster."""
    return cluster + REPLY_TOPIC_SUFFIX


def is_system_topic(name: str) -> bool:
    """Whether the name belongs to the broker itself (a broker adds its cluster and broker name to these)."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    """Whether the group belongs to the broker or to the tools rather than to a user."""
    return name in BUILT_IN_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def is_send_forbidden(name: str) -> bool:
    """Whether a client's send to this topic must be refused with NO_PERMISSION."""
    return name in SEND_FORBIDDEN_TOPICS


def validate_topic(name: str) -> str | None:
    """The reason why a name cannot be a topic, or None if it can."""
    if not name.strip():
        return "The specified topic is blank."
    if _NAME(name) is None:
        return f"The specified topic contains illegal characters, allowing only {_ALLOWED}"
    if len(name) > TOPIC_MAX_CHARS:
        return f"The specified topic is longer than topic max length {TOPIC_MAX_CHARS}."
    return None


def validate_group(name: str) -> str | None:
    """The reason why a name cannot be a producer or consumer group, or None if it can."""
    if not name.strip():
        return "The specified group is blank."
    if _NAME(name) is None:
        return f"The specified group contains illegal characters, allowing only {_ALLOWED}"
    if len(name) > GROUP_MAX_CHARS:
        return f"The specified group is longer than group max length {GROUP_MAX_CHARS}."
    return None
