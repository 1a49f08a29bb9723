from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.errors import WireError
from orbitmq.wire.fastjson import MessageQueue, dumps, dumps_pretty, dumps_strict, loads

QUEUE = MessageQueue("TopicA", "broker-a", 1)

TOPICS = """{
	"dataVersion":{
		"counter":15,
		"timestamp":1794773286605
	},
	"topicConfigTable":{
		"GoldenOrder":{
			"order":false,
			"perm":6,
			"readQueueNums":4,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"GoldenOrder",
			"topicSysFlag":0,
			"writeQueueNums":4
		}
	}
}"""
CONSUMER_OFFSETS = """{
	"offsetTable":{
		"%RETRY%golden_consumer@golden_consumer":{0:15
		},
		"GoldenRetry@golden_consumer":{0:4,1:4,2:4,3:3
		}
	}
}"""
DELAY_OFFSETS = '{\n\t"offsetTable":{1:17,2:2,4:1\n\t}\n}'
EMPTY_FILTERS = '{\n\t"filterDataByTopic":{}\n}'

# Java keeps bit positions in an array, which it writes on one line.
FILTERS = '{\n\t"bloomFilterData":{\n\t\t"bitNum":112,\n\t\t"bitPos":[18,77,29]\n\t}\n}'


@pytest.mark.parametrize("text", [TOPICS, CONSUMER_OFFSETS, DELAY_OFFSETS, EMPTY_FILTERS, FILTERS])
def test_config_files_come_out_as_java_wrote_them(text: str) -> None:
    assert dumps_pretty(loads(text)).decode() == text


@pytest.mark.parametrize(
    "text",
    [
        '{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:11911"},"brokerName":"broker-a",'
        '"cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        '"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
        '{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"TopicA"}:4,'
        '{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:3}}',
        '{"consumerTable":{"cid":{{"brokerName":"b","queueId":0,"topic":"T"}:3}},"messageQueueTable":{}}',
        '{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.5},"ok":true,"list":[]}',
        '{"text":"\\"quoted\\" \\\\ \\n\\u0001\\u0002 ü 😀"}',
    ],
)
def test_bodies_come_out_as_java_wrote_them(text: str) -> None:
    assert dumps(loads(text)).decode() == text


def test_the_go_client_needs_texts_without_white_space() -> None:
    body = dumps({"brokerAddrs": {0: "127.0.0.1:10911", 1: "127.0.0.1:11911"}, "a": [1, 2], "b": {"c": 1}})
    assert not any(char.isspace() for char in body.decode())


class Inner(msgspec.Struct):
    queue: MessageQueue


class Sample(msgspec.Struct, rename="camel"):
    broker_name: str
    missing: str | None
    inner: Inner
    tags: set[str]


def test_structs_queues_sets_and_nulls() -> None:
    sample = Sample("b", None, Inner(QUEUE), {"z", "a"})
    assert dumps(sample) == (
        b'{"brokerName":"b","inner":{"queue":{"brokerName":"broker-a","queueId":1,"topic":"TopicA"}},"tags":["a","z"]}'
    )
    assert dumps({"a": None, "b": [None], "c": (1, 2)}) == b'{"b":[null],"c":[1,2]}'
    assert dumps({"a": None}) == b"{}"


def test_numbers_that_are_none() -> None:
    assert dumps([float("nan"), float("inf")]) == b"[null,null]"
    assert dumps_strict([float("nan"), float("inf")]) == b"[null,null]"


def test_pretty_lists_and_queue_keys() -> None:
    assert dumps_pretty({"a": ["x", {"b": 1}], "e": []}).decode() == (
        '{\n\t"a":[\n\t\t"x",\n\t\t{\n\t\t\t"b":1\n\t\t}\n\t],\n\t"e":[]\n}'
    )
    # A local offset store keeps its progress in this form.
    text = dumps_pretty({"offsetTable": {QUEUE: 5}})
    assert text.decode() == (
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n\t\t\t"topic":"TopicA"\n\t\t}:5\n\t}\n}'
    )
    assert loads(text) == {"offsetTable": {QUEUE: 5}}


def test_strict_text_is_sorted_quoted_ascii() -> None:
    value = {"b": {1: "ü", 0: None}, "a": {QUEUE: 3}}
    text = dumps_strict(value)
    assert text == (
        b'{"a":{"{\\"brokerName\\":\\"broker-a\\",\\"queueId\\":1,\\"topic\\":\\"TopicA\\"}":3},"b":{"1":"\\u00fc"}}'
    )
    assert json.loads(text)


@pytest.mark.parametrize("write", [dumps, dumps_pretty])
def test_text_that_is_not_unicode(write: Any) -> None:
    with pytest.raises(WireError, match="surrogate"):
        write({"a": "\ud800"})


@pytest.mark.parametrize("write", [dumps, dumps_pretty, dumps_strict])
def test_a_value_without_end(write: Any) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(WireError, match="nested too deeply"):
        write(endless)


def test_integers_of_any_size() -> None:
    assert dumps({"a": 2**70, 2**70: -1}) == b'{"a":1180591620717411303424,1180591620717411303424:-1}'


KEYS = (
    st.text(max_size=8)
    | st.integers(-(2**63), 2**63 - 1)
    | st.builds(MessageQueue, st.text(max_size=5), st.text(max_size=5), st.integers(0, 100))
)
TREES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(TREES)
def test_what_is_written_is_read_again(tree: Any) -> None:
    assert loads(dumps(tree)) == tree
    assert loads(dumps_pretty(tree)) == tree
    json.loads(dumps_strict(tree))
