from __future__ import annotations

import json

import pytest

from orbitmq.wire.bodies import (
    CheckClientBody,
    ConsumeDirectlyResult,
    ConsumerIdList,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    HeartbeatData,
    LockBatchBody,
    LockBatchResult,
    ProcessQueueInfo,
    SubscriptionData,
    decode,
    decode_reset_offsets,
    encode,
    encode_reset_offsets,
)
from orbitmq.wire.body_codec import Body
from orbitmq.wire.errors import BadBody
from orbitmq.wire.fastjson import MessageQueue

MQ = '{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}'
QUEUES = [MessageQueue("TopicA", "broker-a", 1), MessageQueue("TopicA", "broker-a", 0)]
SUBSCRIPTION = (
    '{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
    '"subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicA"}'
)

# Bodies as 4.9.7 classes write them.
SAMPLES: list[tuple[type[Body], str]] = [
    (
        HeartbeatData,
        '{"clientID":"10.0.0.1@123#456","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"cg","messageModel":"CLUSTERING",'
        f'"subscriptionDataSet":[{SUBSCRIPTION}],"unitMode":false}}],"producerDataSet":[{{"groupName":"pg"}}]}}',
    ),
    (ConsumerIdList, '{"consumerIdList":["10.0.0.1@123#456"]}'),
    (LockBatchBody, f'{{"clientId":"cid","consumerGroup":"cg","mqSet":[{MQ}]}}'),
    (LockBatchBody, f'{{"clientId":"cid","consumerGroup":"cg","mqSet":[{MQ}],"onlyThisBroker":false}}'),
    (LockBatchResult, f'{{"lockOKMQSet":[{MQ}]}}'),
    (CheckClientBody, f'{{"clientId":"cid","group":"cg","subscriptionData":{SUBSCRIPTION}}}'),
    (ConsumerStatusBody, f'{{"consumerTable":{{}},"messageQueueTable":{{{MQ}:3}}}}'),
    (ConsumerStatusBody, f'{{"consumerTable":{{"cid":{{{MQ}:3}}}},"messageQueueTable":{{}}}}'),
    (
        ConsumeDirectlyResult,
        '{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"remark":"fine","spentTimeMills":0}',
    ),
    (
        ConsumerRunningInfo,
        f'{{"mqTable":{{{MQ}:{{"cachedMsgCount":0,"cachedMsgMaxOffset":0,"cachedMsgMinOffset":0,'
        '"cachedMsgSizeInMiB":0,"commitOffset":0,"droped":false,"lastConsumeTimestamp":0,"lastLockTimestamp":0,'
        '"lastPullTimestamp":0,"locked":false,"transactionMsgCount":0,"transactionMsgMaxOffset":0,'
        '"transactionMsgMinOffset":0,"tryUnlockTimes":0}},"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},'
        '"statusTable":{"TopicA":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":0.0,"consumeRT":0.0,'
        f'"pullRT":0.0,"pullTPS":0.0}}}},"subscriptionSet":[{SUBSCRIPTION}]}}',
    ),
]


@pytest.mark.parametrize(("body_type", "text"), SAMPLES)
def test_javas_bodies_are_read_and_written(body_type: type[Body], text: str) -> None:
    assert encode(decode(body_type, text.encode())).decode() == text


def test_heartbeat_of_the_go_client() -> None:
    data = (
        b'{"clientID":"10.0.0.2@77","producerDataSet":[{"groupName":"pg"}],"consumerDataSet":[{"groupName":"cg",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        b'"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"classFilterMode":false,'
        b'"topic":"TopicA","subString":"TagA","tagsSet":["TagA"],"codeSet":["2598919"],'
        b'"subVersion":1700000000000000000,"expressionType":"TAG"}],"unitMode":false}]}'
    )
    (consumer,) = decode(HeartbeatData, data).consumer_data_set
    assert consumer.message_model == "CLUSTERING"
    assert consumer.subscription_data_set == [
        SubscriptionData(
            topic="TopicA",
            sub_string="TagA",
            tags_set={"TagA"},
            code_set={2598919},
            sub_version=1_700_000_000_000_000_000,
        )
    ]


def test_heartbeat_with_nulls_ordinals_and_any_case() -> None:
    data = (
        b'{"clientID":"c","producerDataSet":null,"consumerDataSet":[{"groupName":"cg","consumeType":1,'
        b'"messageModel":"Broadcasting","consumeFromWhere":4,"subscriptionDataSet":[{"topic":"T","tagsSet":null,'
        b'"codeSet":null,"subString":null,"filterClassSource":null}]}]}'
    )
    beat = decode(HeartbeatData, data)
    (consumer,) = beat.consumer_data_set
    assert beat.producer_data_set == []
    assert consumer.consume_type == "CONSUME_PASSIVELY"
    assert consumer.message_model == "BROADCASTING"
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.subscription_data_set == [SubscriptionData(topic="T")]


def test_heartbeat_of_5x_keeps_its_extras() -> None:
    data = (
        b'{"clientID":"c","consumerDataSet":[],"heartbeatFingerprint":7,"producerDataSet":[],'
        b'"withoutSub":true}'
    )
    beat = decode(HeartbeatData, data)
    assert (beat.heartbeat_fingerprint, beat.without_sub) == (7, True)
    assert encode(beat) == data


def test_direct_consumption_result_by_ordinal() -> None:
    assert decode(ConsumeDirectlyResult, b'{"consumeResult":1}').consume_result == "CR_LATER"


def test_both_spellings_of_dropped() -> None:
    assert decode(ProcessQueueInfo, b'{"droped":true}').is_dropped
    assert decode(ProcessQueueInfo, b'{"dropped":true}').is_dropped
    assert not decode(ProcessQueueInfo, b"{}").is_dropped


OFFSETS = dict(zip(QUEUES, (4, 3), strict=True))
RESET_JAVA = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"TopicA"}:4,'
    b'{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:3}}'
)
RESET_CPP = (
    b'{"offsetTable":[{"brokerName":"broker-a","offset":4,"queueId":1,"topic":"TopicA"},'
    b'{"brokerName":"broker-a","offset":3,"queueId":0,"topic":"TopicA"}]}'
)
RESET_GSON = (
    b'{"offsetTable":[[{"topic":"TopicA","brokerName":"broker-a","queueId":1},4],'
    b'[{"topic":"TopicA","brokerName":"broker-a","queueId":0},3]]}'
)


def test_offsets_to_reset_are_written_for_java_and_cpp() -> None:
    assert encode_reset_offsets(OFFSETS) == RESET_JAVA
    assert encode_reset_offsets(OFFSETS, for_cpp=True) == RESET_CPP


def test_offsets_to_reset_are_read_in_every_form() -> None:
    quoted = json.dumps(
        {
            "offsetTable": {
                json.dumps({"topic": q.topic, "brokerName": q.broker_name, "queueId": q.queue_id}): str(
                    offset
                )
                for q, offset in OFFSETS.items()
            }
        }
    ).encode()
    for data in (RESET_JAVA, RESET_CPP, RESET_GSON, quoted):
        assert decode_reset_offsets(data) == OFFSETS
    for data in (b"", b"{}", b'{"offsetTable":null}', b'{"offsetTable":{}}'):
        assert decode_reset_offsets(data) == {}


@pytest.mark.parametrize(
    "table", ["3", '{"x":1}', "[3]", "[[1,2,3]]", '[{"topic":"T"}]', f"[[{MQ},null]]", "[[{},1]]"]
)
def test_offsets_that_are_none_are_refused(table: str) -> None:
    with pytest.raises(BadBody, match="offsetTable"):
        decode_reset_offsets(f'{{"offsetTable":{table}}}'.encode())
