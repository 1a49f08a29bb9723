from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.bodies import (
    CONSUME_FROM_WHERE,
    CONSUME_TYPES,
    MESSAGE_MODELS,
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    ProducerData,
    SubscriptionData,
    decode,
    encode,
)
from orbitmq.wire.body_codec import Body, decode_tolerant
from orbitmq.wire.errors import BadBody
from orbitmq.wire.fastjson import MessageQueue

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(max_size=12)
SUBSCRIPTIONS = st.builds(
    SubscriptionData,
    class_filter_mode=st.booleans(),
    code_set=st.sets(st.integers(-(2**31), 2**31 - 1), max_size=4),
    expression_type=st.sampled_from(["TAG", "SQL92"]),
    sub_string=NAMES,
    sub_version=INT64,
    tags_set=st.sets(NAMES, max_size=4),
    topic=NAMES,
)
BEATS = st.builds(
    HeartbeatData,
    client_id=NAMES,
    consumer_data_set=st.lists(
        st.builds(
            ConsumerData,
            consume_from_where=st.sampled_from(CONSUME_FROM_WHERE),
            consume_type=st.sampled_from(CONSUME_TYPES),
            group_name=NAMES,
            message_model=st.sampled_from(MESSAGE_MODELS),
            subscription_data_set=st.lists(SUBSCRIPTIONS, max_size=3),
            unit_mode=st.booleans(),
        ),
        max_size=3,
    ),
    producer_data_set=st.lists(st.builds(ProducerData, group_name=NAMES), max_size=3),
)


@given(BEATS)
def test_fast_and_tolerant_reading_agree(beat: HeartbeatData) -> None:
    data = encode(beat)
    assert decode(HeartbeatData, data) == beat
    assert decode_tolerant(HeartbeatData, data) == beat


@given(st.binary(max_size=80))
def test_garbage_ends_in_a_bad_body(data: bytes) -> None:
    with pytest.raises(BadBody):
        decode(LockBatchBody, b"?" + data)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"3", b'{"clientID":5}', b'{"producerDataSet":{}}', b"[" * 100000]
)
def test_a_body_of_another_shape_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(BadBody, match="body|JSON"):
        decode(HeartbeatData, data)


@pytest.mark.parametrize(
    "queue",
    [
        {"topic": "T", "brokerName": "b", "queueId": 1},
        {"topic": "T", "brokerName": "b", "queueId": "1"},
    ],
)
def test_queues_in_lists(queue: dict[str, Any]) -> None:
    data = json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": [queue]}).encode()
    assert decode(LockBatchBody, data).mq_set == [MessageQueue("T", "b", 1)]


class Table(Body, kw_only=True):
    offsets: dict[MessageQueue, int] = msgspec.field(default_factory=dict)
    addrs: dict[int, str] = msgspec.field(default_factory=dict)


def test_keys_bare_and_quoted_are_the_same() -> None:
    bare = b'{"offsets":{{"brokerName":"b","queueId":1,"topic":"T"}:4},"addrs":{0:"x"}}'
    quoted = (
        b'{"offsets":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":4},"addrs":{"0":"x"}}'
    )
    expected = Table(offsets={MessageQueue("T", "b", 1): 4}, addrs={0: "x"})
    assert decode(Table, bare) == expected
    assert decode(Table, quoted) == expected
    assert encode(expected) == bare


def test_nulls_and_unknown_fields_are_as_if_absent() -> None:
    data = b'{"clientId":null,"consumerGroup":"g","mqSet":null,"later":{"x":[1]}}'
    assert decode(LockBatchBody, data) == LockBatchBody(consumer_group="g")
