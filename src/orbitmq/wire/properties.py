"""The property text of a message: name 0x01 value 0x02 name 0x01 value, with or without a last 0x02.

Writers before 5.0 leave the last 0x02 out, later ones write it; every function here takes both. A pair counts
only if both sides are non-empty, the last of two equal names wins, and broken UTF-8 is replaced, not refused:
one bad character in a property must not make a whole queue unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping

from orbitmq.wire.errors import WireError

NAME_END = "\x01"
PAIR_END = "\x02"
_NAME_END = b"\x01"
_PAIR_END = b"\x02"

MAX_PROPERTIES_BYTES = 32767
KEY_SEPARATOR = " "
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."


class Prop:
    """Names of the properties the system itself reads or writes."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QUEUE_ID = "REAL_QID"
    TRANSACTION_PREPARED = "TRAN_MSG"
    PRODUCER_GROUP = "PGROUP"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    BUYER_ID = "BUYER_ID"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG = "TRANSFER_FLAG"
    CORRECTION_FLAG = "CORRECTION_FLAG"
    MQ2_FLAG = "MQ2_FLAG"
    RECONSUME_TIME = "RECONSUME_TIME"
    MSG_REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    UNIQ_KEY = "UNIQ_KEY"
    EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    INNER_NUM = "INNER_NUM"
    INNER_BASE = "INNER_BASE"
    DUP_INFO = "DUP_INFO"
    CHECK_IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
    TRANSACTION_ID = "__transactionId__"
    TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
    INSTANCE_ID = "INSTANCE_ID"
    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    TTL = "TTL"
    ARRIVE_TIME = "ARRIVE_TIME"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    CLUSTER = "CLUSTER"
    MSG_TYPE = "MSG_TYPE"
    POP_CK = "POP_CK"
    POP_CK_OFFSET = "POP_CK_OFFSET"
    FIRST_POP_TIME = "1ST_POP_TIME"
    SHARDING_KEY = "__SHARDINGKEY"
    INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
    TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
    TIMER_OUT_MS = "TIMER_OUT_MS"
    TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
    TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
    BORN_HOST = "__BORNHOST"
    BORN_TIMESTAMP = "BORN_TIMESTAMP"
    HALF_BATCH = "ORBITMQ_HALF_BATCH"


# Everything above except what users are meant to set by name themselves.
_USER_SETTABLE = {Prop.CHECK_IMMUNITY_SECONDS, Prop.SHARDING_KEY, Prop.INNER_MULTI_DISPATCH}
RESERVED_NAMES = frozenset(
    value for name, value in vars(Prop).items() if name.isupper() and value not in _USER_SETTABLE
)


def decode_properties(raw: bytes | str) -> dict[str, str]:
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    properties: dict[str, str] = {}
    for pair in text.split(PAIR_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def encode_properties(properties: Mapping[str, str | None]) -> bytes:
    """The text without a last 0x02, as 4.9 writes it. Pairs with an empty or absent value are left out."""
    pairs = [f"{name}{NAME_END}{value}" for name, value in properties.items() if name and value]
    text = PAIR_END.join(pairs)
    # One count over the whole text keeps the common path short; only a hit looks for the culprit. A value may
    # hold 0x01, since readers cut at the first one, and such values come back when a message is stored again.
    if text.count(PAIR_END) != max(len(pairs) - 1, 0) or any(NAME_END in name for name in properties):
        _refuse_separators(properties)
    return text.encode("utf-8", "replace")


def _refuse_separators(properties: Mapping[str, str | None]) -> None:
    for name, value in properties.items():
        if NAME_END in name or PAIR_END in name:
            raise WireError(
                f"property name {name!r} holds a separator character (0x01 or 0x02) that would break "
                "the property text; remove it from the name"
            )
        if value and PAIR_END in value:
            raise WireError(
                f"the value of property {name!r} holds the separator character 0x02 that would break "
                "the property text; remove it from the value"
            )


def find_property(props: bytes, name: bytes) -> bytes | None:
    """The value decode_properties would give for name, without decoding the rest."""
    if not name:
        return None
    pattern = name + _NAME_END
    end = len(props)
    while True:
        start = props.rfind(_PAIR_END + pattern, 0, end)
        if start >= 0:
            value_at = start + 1 + len(pattern)
        elif props.startswith(pattern):
            value_at = len(pattern)
        else:
            return None
        value_end = props.find(_PAIR_END, value_at)
        value = props[value_at:] if value_end < 0 else props[value_at:value_end]
        if value:
            return value
        if start < 0:
            return None
        # An empty value does not count; an earlier pair of the same name may. The 0x02 in front of this pair
        # may be the one behind the earlier pair, so the next search stops just before it.
        end = start


def append_properties(props: bytes, more: bytes) -> bytes:
    """Both texts as one; later names win when read."""
    if not props or not more or props.endswith(_PAIR_END):
        return props + more
    return props + _PAIR_END + more


def without_property(props: bytes, name: bytes) -> bytes:
    """The text without any pair of this name; the other pairs stay as they are."""
    pattern = name + _NAME_END
    if pattern not in props:
        return props
    return _PAIR_END.join(pair for pair in props.split(_PAIR_END) if not pair.startswith(pattern))


def split_keys(keys: str | None) -> list[str]:
    """The single keys of a KEYS value, each of which is indexed."""
    return [key for key in keys.split(KEY_SEPARATOR) if key] if keys else []
