"""Options: what they mean, and errors that name the option and what to do."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.spark.errors import BadOption, SourceError
from orbitmq.spark.offsets import Named, Place, Where, from_json, parse_numbers, resolve, to_json
from orbitmq.spark.options import ReadOptions, parse_read_options
from orbitmq.spark.schema import ALL_COLUMNS
from orbitmq.wire.fastjson import MessageQueue

A0, A1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
B0 = MessageQueue("orders", "broker-b", 0)


def parsed(streaming: bool = False, **given_options: str) -> ReadOptions:
    return parse_read_options({"subscribe": "orders", **given_options}, streaming=streaming)


def test_defaults_are_those_of_the_kafka_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    batch, stream = parsed(), parsed(streaming=True)
    assert (batch.start.where, batch.end.where) == (Where.EARLIEST, Where.LATEST)
    assert stream.start.where is Where.LATEST
    assert batch.fail_on_data_loss
    assert batch.columns == ALL_COLUMNS
    assert batch.namesrv == "127.0.0.1:9876"
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.9:9876")
    assert parsed().namesrv == "10.0.0.9:9876"


def test_names_of_options_are_compared_without_case() -> None:
    options = parse_read_options({"SUBSCRIBE": "a, b,a", "maxoffsetspertrigger": "7"}, streaming=True)
    assert options.topics == ("a", "b")
    assert options.max_rows_per_trigger == 7


def test_a_topic_can_be_given_to_load() -> None:
    assert parse_read_options({"path": "orders"}, streaming=False).topics == ("orders",)


def test_times_are_milliseconds_or_moments_with_a_zone() -> None:
    assert parsed(startingTimestamp="1700000000000").start.time_ms == 1_700_000_000_000
    assert parsed(endingTimestamp="2023-11-14T22:13:20+00:00").end.time_ms == 1_700_000_000_000
    assert parsed(startingTimestamp="2023-11-14T23:13:20.5+01:00").start.time_ms == 1_700_000_000_500


def test_a_time_for_all_comes_before_times_per_queue_and_those_before_offsets() -> None:
    times = '{"orders":{"0":5}}'
    everything = {
        "startingTimestamp": "9",
        "startingOffsetsByTimestamp": times,
        "startingOffsets": "earliest",
    }
    assert parsed(**everything).start.where is Where.TIME
    del everything["startingTimestamp"]
    assert parsed(**everything).start.where is Where.TIMES


def test_lengths_of_time_have_units() -> None:
    assert parsed(maxTriggerDelay="15m").max_trigger_delay_s == 900
    assert parsed(requestTimeoutMs="2500").request_timeout_s == 2.5


BAD: list[tuple[dict[str, str], str]] = [
    (
        {"startingOffset": "earliest"},
        "option 'startingoffset': there is no such option; did you mean startingOffsets",
    ),
    ({"subscribePattern": "o.*"}, "option 'subscribePattern': subscribe is given as well"),
    ({"startingOffsets": "{orders"}, "option 'startingOffsets': this is not JSON"),
    ({"startingOffsets": "[1]"}, "option 'startingOffsets': a JSON object of topics"),
    (
        {"startingOffsets": '{"orders":5}'},
        "option 'startingOffsets': topic 'orders' needs an object of queues",
    ),
    ({"startingOffsets": '{"orders":{"0":-3}}'}, "option 'startingOffsets': -3 for queue 0"),
    ({"startingOffsets": '{"orders":{"0":true}}'}, "option 'startingOffsets': True for queue 0"),
    ({"startingOffsets": '{"orders":{"x":1}}'}, "option 'startingOffsets': 'x' is no queue number"),
    ({"startingOffsets": "latest"}, "option 'startingOffsets': a batch that starts at the end"),
    ({"endingOffsets": "earliest"}, "option 'endingOffsets'"),
    ({"endingOffsets": '{"orders":{"0":-2}}'}, "option 'endingOffsets': -2"),
    ({"startingTimestamp": "yesterday"}, "option 'startingTimestamp': 'yesterday' is no moment"),
    ({"startingTimestamp": "2023-11-14T22:13:20"}, "option 'startingTimestamp'.*with a zone"),
    ({"startingOffsets": "committed"}, "option 'startingOffsets': committed needs a group"),
    ({"failOnDataLoss": "no"}, "option 'failOnDataLoss': 'no' is neither true nor false"),
    ({"minPartitions": "0"}, "option 'minPartitions': '0' is no whole number from 1 on"),
    ({"maxOffsetsPerTrigger": "x"}, "option 'maxOffsetsPerTrigger'"),
    ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "option 'minOffsetsPerTrigger': 9 is more"),
    ({"maxTriggerDelay": "soon"}, "option 'maxTriggerDelay'"),
    ({"columns": "topic,bodi"}, "option 'columns': there is no column 'bodi'; choose from topic"),
    ({"tags": "||"}, "option 'tags'"),
    ({"group": "a b"}, "option 'group'"),
    ({"namesrv": "host:port"}, "option 'namesrv'"),
    ({"startingOffsetsByTimestampStrategy": "best"}, "option 'startingOffsetsByTimestampStrategy'"),
    ({"pageBytes": "10"}, "option 'pageBytes'"),
    ({"requestTimeoutMs": "0"}, "option 'requestTimeoutMs': no answer comes in no time"),
    ({"cores": "0"}, "option 'cores'"),
    ({"startingTimestamp": "2000", "endingTimestamp": "1000"}, "option 'endingTimestamp': it lies before"),
]


@pytest.mark.parametrize(("given_options", "message"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_option_is_named(given_options: dict[str, str], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        parsed(**given_options)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(BadOption, match="option 'endingOffsets': a stream has no end"):
        parsed(streaming=True, endingOffsets="latest")


def test_something_must_say_what_to_read() -> None:
    with pytest.raises(BadOption, match="option 'subscribe': nothing says which topics"):
        parse_read_options({}, streaming=False)
    with pytest.raises(BadOption, match="option 'subscribePattern': .* no regular expression"):
        parse_read_options({"subscribePattern": "("}, streaming=False)


def test_assigned_queues_with_and_without_broker() -> None:
    text = '{"orders":{"broker-a":[1]},"trades":[0,2]}'
    options = parse_read_options({"assign": text}, streaming=False)
    assert options.assigned == (
        Named("orders", "broker-a", 1),
        Named("trades", None, 0),
        Named("trades", None, 2),
    )
    with pytest.raises(BadOption, match="option 'assign': topic 'orders' needs a list"):
        parse_read_options({"assign": '{"orders":3}'}, streaming=False)


def place(text: str) -> Place:
    return Place(Where.OFFSETS, parse_numbers("startingOffsets", text, -2), option="startingOffsets")


def test_numbers_find_their_queues() -> None:
    assert resolve(place('{"orders":{"broker-a":{"0":5,"1":-2}}}'), [A0, A1]) == {A0: 5, A1: -2}
    assert resolve(place('{"orders":{"0":5,"1":6}}'), [A0, A1]) == {A0: 5, A1: 6}


@pytest.mark.parametrize(
    ("text", "queues", "message"),
    [
        ('{"orders":{"0":5}}', [A0, A1], "no number is given for orders/broker-a/1"),
        ('{"orders":{"0":5,"7":5}}', [A0], "queue 7 of topic 'orders' is not among the queues"),
        ('{"other":{"0":5},"orders":{"0":5}}', [A0], "queue 0 of topic 'other' is not among"),
        ('{"orders":{"0":5}}', [A0, B0], "lives on several brokers (broker-a, broker-b)"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(text: str, queues: list[MessageQueue], message: str) -> None:
    with pytest.raises(BadOption, match=re.escape(message)):
        resolve(place(text), queues)


@given(
    st.dictionaries(
        st.builds(MessageQueue, st.text(max_size=5), st.text(max_size=5), st.integers(0, 1 << 30)),
        st.integers(0, 1 << 62),
    )
)
def test_offsets_survive_a_checkpoint(offsets: dict[MessageQueue, int]) -> None:
    table = to_json(offsets)
    assert from_json(json.loads(json.dumps(table))) == offsets
    shuffled = dict(reversed(list(offsets.items())))
    assert json.dumps(to_json(shuffled)) == json.dumps(table)


@pytest.mark.parametrize("table", [{"a": 5}, {"a": {"b": 5}}, {"a": {"b": {"x": 1}}}])
def test_a_foreign_checkpoint_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="a checkpoint directory that belongs to this query"):
        from_json(table)
