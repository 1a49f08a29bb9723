from __future__ import annotations

import pytest

from orbitmq.wire.bodies import (
    DataVersion,
    KvTable,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigWrapper,
    TopicList,
    decode,
    encode,
)
from orbitmq.wire.body_codec import Body

VERSION = '{"counter":0,"timestamp":1700000000000}'
TOPIC = (
    '{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicA",'
    '"topicSysFlag":0,"writeQueueNums":4}'
)

# Bodies as 4.9.7 classes write them.
SAMPLES: list[tuple[type[Body], str]] = [
    (DataVersion, VERSION),
    (DataVersion, '{"counter":0,"stateVersion":0,"timestamp":1700000000000}'),
    (TopicConfigWrapper, f'{{"dataVersion":{VERSION},"topicConfigTable":{{"TopicA":{TOPIC}}}}}'),
    (
        SubscriptionGroupWrapper,
        f'{{"dataVersion":{VERSION},"subscriptionGroupTable":{{"cg":{{"brokerId":0,"consumeBroadcastEnable":true,'
        '"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"cg","notifyConsumerIdsChangedEnable":true,'
        '"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}}}',
    ),
    (KvTable, '{"table":{"k":"v"}}'),
    (TopicList, '{"topicList":["TopicA"]}'),
    (TopicList, '{"brokerAddr":"127.0.0.1:10911","topicList":[]}'),
]


@pytest.mark.parametrize(("body_type", "text"), SAMPLES)
def test_javas_bodies_are_read_and_written(body_type: type[Body], text: str) -> None:
    assert encode(decode(body_type, text.encode())).decode() == text


def test_filter_type_by_ordinal_and_in_any_case() -> None:
    assert decode(TopicConfig, b'{"topicFilterType":1}').topic_filter_type == "MULTI_TAG"
    assert decode(TopicConfig, b'{"topicFilterType":"multi_tag"}').topic_filter_type == "MULTI_TAG"


def test_attributes_of_5x_are_kept() -> None:
    topic = decode(TopicConfig, b'{"attributes":{"+message.type":"NORMAL"},"topicName":"T"}')
    assert topic.attributes == {"+message.type": "NORMAL"}
    assert encode(topic).startswith(b'{"attributes":{"+message.type":"NORMAL"},"order":false')
