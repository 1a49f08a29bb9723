from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire import fastjson
from orbitmq.wire.errors import BadBody
from orbitmq.wire.fastjson import MessageQueue, as_queue, loads, loads_tolerant, parse_int

QUEUE = MessageQueue("TopicA", "broker-a", 0)
QUEUE_TEXT = '{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}'

# As a 4.9.7 broker wrote it: entries of a bare-key map stay on the opening line.
CONSUMER_OFFSETS = """{
	"offsetTable":{
		"%RETRY%golden_consumer@golden_consumer":{0:15
		},
		"GoldenRetry@golden_consumer":{0:4,1:4,2:4,3:3
		}
	}
}"""
DELAY_OFFSETS = '{\n\t"offsetTable":{1:17,2:2,4:1\n\t}\n}'


def test_config_files_of_a_java_broker() -> None:
    assert loads(CONSUMER_OFFSETS) == {
        "offsetTable": {
            "%RETRY%golden_consumer@golden_consumer": {0: 15},
            "GoldenRetry@golden_consumer": {0: 4, 1: 4, 2: 4, 3: 3},
        }
    }
    assert loads(DELAY_OFFSETS.encode()) == {"offsetTable": {1: 17, 2: 2, 4: 1}}


def test_bare_integer_keys_in_a_route() -> None:
    text = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:11911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[]}'
    )
    (broker,) = loads(text)["brokerDatas"]
    assert broker["brokerAddrs"] == {0: "127.0.0.1:10911", 1: "127.0.0.1:11911"}


def test_queues_as_keys() -> None:
    text = f'{{"consumeTps":1.5,"offsetTable":{{{QUEUE_TEXT}:{{"brokerOffset":10,"consumerOffset":8}}}}}}'
    assert loads(text) == {
        "consumeTps": 1.5,
        "offsetTable": {QUEUE: {"brokerOffset": 10, "consumerOffset": 8}},
    }


def test_quoted_keys_stay_texts_and_as_queue_understands_them() -> None:
    table = loads(json.dumps({"offsetTable": {QUEUE_TEXT: 3}, "addrs": {"0": "a"}}))
    assert table["addrs"] == {"0": "a"}
    ((key, value),) = table["offsetTable"].items()
    assert as_queue(key) == QUEUE
    assert value == 3


@pytest.mark.parametrize(
    ("value", "queue"),
    [
        (QUEUE, QUEUE),
        (QUEUE_TEXT, QUEUE),
        ({"topic": "TopicA", "brokerName": "broker-a", "queueId": "0"}, QUEUE),
        ({"topic": "TopicA", "brokerName": "broker-a", "queueId": 0, "offset": 5}, QUEUE),
        ({"topic": "TopicA", "brokerName": "broker-a"}, None),
        ({"topic": "TopicA", "brokerName": "broker-a", "queueId": "x"}, None),
        ({"topic": "TopicA", "brokerName": None, "queueId": 0}, None),
        ({"topic": "TopicA", "brokerName": "broker-a", "queueId": True}, None),
        ("{", None),
        ("TopicA", None),
        (3, None),
    ],
)
def test_forms_of_a_queue(value: object, queue: MessageQueue | None) -> None:
    assert as_queue(value) == queue


def test_references_are_kept() -> None:
    assert loads('{"a":{"$ref":"$.b"},0:1}') == {"a": {"$ref": "$.b"}, 0: 1}
    assert loads('{{"$ref":"$.b"}:1}') == {'{"$ref":"$.b"}': 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a:1,$b:2,_c:3}", {"a": 1, "$b": 2, "_c": 3}),
        ("{'a':'it\\'s'}", {"a": "it's"}),
        ('{-1:"a"}', {-1: "a"}),
        ("{1.5:2}", {"1.5": 2}),
        ("{null:1,true:2}", {"null": 1, "true": 2}),
        (" {\n0 : [ 1 , 2 ] , 1 : { } } ", {0: [1, 2], 1: {}}),
        ('"a\x01\x02\t"', "a\x01\x02\t"),
        ('{0:"\\u0001\\x41\\v\\0\\/"}', {0: "\x01A\v\0/"}),
        ('{0:"\\ud83d\\ude00"}', {0: "😀"}),
        ("{0:NaN,1:null,2:true,3:false}", {0: None, 1: None, 2: True, 3: False}),
        ("{0:-1.5e3,1:0,2:-0.5}", {0: -1500.0, 1: 0, 2: -0.5}),
        ("\ufeff{0:1}", {0: 1}),
        ("{0:[]}", {0: []}),
        ("{0:1,0:2}", {0: 2}),
    ],
)
def test_liberties_of_the_dialect(text: str, value: object) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "{0",
        "{0:",
        "{0:1",
        "{0:1,",
        "{0:1,}",
        "{0:1}}",
        "{0:1} x",
        "{0 1}",
        "{:1}",
        "{[1]:2}",
        "[1,]",
        "[1",
        "[1 2]",
        "{0:word}",
        "{0:01}",
        "{0:'a}",
        '{0:"\\q"}',
        '{0:"\\u12"}',
        '{0:"\\u12x4"}',
        '{0:"\\ud800"}',
        '{0:"\\ud800x"}',
        "{0:" + "9" * 5000 + "}",
        "{0:" * 200,
        "[" * 200,
        "{" * 100000,
        "[" * 100000,
    ],
)
def test_what_is_no_json_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(BadBody, match="JSON"):
        loads(text)
    with pytest.raises(BadBody, match="JSON"):
        loads_tolerant(text)


def test_an_error_shows_where() -> None:
    with pytest.raises(BadBody, match="has 'x' at character 6 where the end of the text should be"):
        loads("{0:1} x")


def test_bytes_that_are_not_utf8() -> None:
    with pytest.raises(BadBody, match="UTF-8"):
        loads(b'{0:"\xff"}')


def test_depth_is_bounded() -> None:
    fine, deep = fastjson.MAX_DEPTH - 1, fastjson.MAX_DEPTH + 1
    assert loads("{0:" * fine + "1" + "}" * fine)
    with pytest.raises(BadBody, match="nested"):
        loads("{0:" * deep + "1" + "}" * deep)


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), (" -5\n", -5), ("+5", 5), ("007", 7), ("", None), ("5 6", None), ("1_0", None), ("٣", None)],
)
def test_parse_int(text: str, value: int | None) -> None:
    assert parse_int(text) == value


def test_parse_int_does_not_choke_on_a_huge_number() -> None:
    assert parse_int("9" * 100000) is None


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(TREES, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_the_tolerant_reader_reads_strict_json_the_same(tree: Any, ascii_only: bool, indent: Any) -> None:
    text = json.dumps(tree, ensure_ascii=ascii_only, indent=indent)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    if "Infinity" in text:
        return
    assert loads_tolerant(data) == loads(data) == tree


@given(
    st.binary(max_size=60) | st.text("{}[]:,\"'\\0123456789.eE-+ \n\ttrufalsn$", max_size=60).map(str.encode)
)
def test_garbage_ends_in_a_bad_body(data: bytes) -> None:
    outcomes = []
    for reader in (loads, loads_tolerant):
        try:
            outcomes.append(repr(reader(data)))
        except BadBody as error:
            assert str(error)
            outcomes.append("bad")
    assert outcomes[0] == outcomes[1]
