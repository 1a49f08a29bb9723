"""A stream that is to end (`availableNow`) never ends as if it were whole while something could not be reached."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from orbitmq.spark.batch import SlicePartition
from orbitmq.spark.errors import BrokerLost, DataLost
from orbitmq.spark.offsets import Offsets, from_json, to_json
from orbitmq.spark.stream import OrbitStreamReader
from orbitmq.wire.fastjson import MessageQueue
from tests.spark.fake_broker import FakeBroker
from tests.spark.stream_readers import Make, a_hundred, stream_readers

HERE = MessageQueue("orders", "broker-a", 0)
AWAY = "127.0.0.1:1"
"""An address where nobody listens."""


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with a_hundred() as fake:
        yield fake


@pytest.fixture
def reader(broker: FakeBroker) -> Iterator[Make]:
    with stream_readers(broker.addr) as make:
        yield make


def latest(made: OrbitStreamReader, begin: Offsets) -> Offsets:
    return from_json(made.latestOffset(to_json(begin), ReadAllAvailable()))


def test_without_a_name_server_it_fails_instead_of_ending_with_nothing(reader: Make) -> None:
    with pytest.raises(BrokerLost, match="no name server answers"):
        reader(namesrv=AWAY).prepareForTriggerAvailableNow()


def test_a_broker_may_come_back_within_the_time_for_retries(broker: FakeBroker, reader: Make) -> None:
    broker.members = {0: AWAY}
    made = reader(retryTimeoutMs="20s")
    asked = made._connected().ask_namesrv

    def later(*args: object, **more: object) -> object:
        broker.members = None if len(broker.seen) > 2 else broker.members
        return asked(*args, **more)  # type: ignore[arg-type]

    made._connected().ask_namesrv = later  # type: ignore[method-assign, assignment]
    started = time.monotonic()
    made.prepareForTriggerAvailableNow()
    assert latest(made, {HERE: 60}) == {HERE: 100}
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("members", [{0: AWAY}, {}], ids=["dead", "not registered"])
def test_of_a_broker_that_stays_away_it_tells_at_the_end(
    broker: FakeBroker, reader: Make, members: dict[int, str]
) -> None:
    broker.members = members
    made = reader()
    made.prepareForTriggerAvailableNow()
    with pytest.raises(
        BrokerLost, match="everything else is read, but .*run it again when the broker is back"
    ):
        latest(made, {HERE: 60})
    going_on = reader(failOnDataLoss="false")
    going_on.prepareForTriggerAvailableNow()
    assert latest(going_on, {HERE: 60}) == {HERE: 60}


def test_what_can_be_reached_is_read_before_it_fails(reader: Make) -> None:
    other = MessageQueue("orders", "broker-b", 0)
    made = reader()
    made.prepareForTriggerAvailableNow()
    assert latest(made, {HERE: 60, other: 7}) == {HERE: 100, other: 7}
    with pytest.raises(BrokerLost, match="'broker-b' of topic 'orders' is not registered"):
        latest(made, {HERE: 100, other: 7})


def test_a_limit_does_not_hide_it(broker: FakeBroker, reader: Make) -> None:
    other = MessageQueue("orders", "broker-b", 0)
    made = reader(maxOffsetsPerTrigger="30")
    made.prepareForTriggerAvailableNow()
    begin = {HERE: 60, other: 7}
    for end in (90, 100):
        begin = from_json(made.latestOffset(to_json(begin), ReadMaxRows(30)))
        assert begin == {HERE: end, other: 7}
    with pytest.raises(BrokerLost):
        made.latestOffset(to_json(begin), ReadMaxRows(30))


def test_a_topic_that_is_not_subscribed_any_more_is_left_alone(reader: Make) -> None:
    former = MessageQueue("payments", "broker-a", 0)
    made = reader()
    made.prepareForTriggerAvailableNow()
    assert latest(made, {HERE: 60, former: 7}) == {HERE: 100, former: 7}
    assert latest(made, {HERE: 100, former: 7}) == {HERE: 100, former: 7}
    assert latest(reader(), {HERE: 60, former: 7}) == {HERE: 100, former: 7}, (
        "nor where the stream does not end"
    )


def test_a_topic_made_anew_is_told(broker: FakeBroker, reader: Make) -> None:
    broker.end = 7
    made = reader()
    made.prepareForTriggerAvailableNow()
    with pytest.raises(DataLost, match="offsets 7 to 79.*made anew"):
        latest(made, {HERE: 80})


def test_a_slave_that_lags_has_lost_nothing(broker: FakeBroker, reader: Make) -> None:
    broker.members = {1: broker.addr}
    broker.end = 60
    assert latest(reader(), {HERE: 80}) == {HERE: 80}
    broker.end = 90
    assert latest(reader(), {HERE: 80}) == {HERE: 90}


def test_a_topic_that_is_gone_holds_up_no_other_of_its_broker(reader: Make) -> None:
    gone = MessageQueue("deleted", "broker-a", 0)
    made = reader(subscribe="deleted,orders")
    assert latest(made, {gone: 5, HERE: 80}) == {gone: 5, HERE: 100}


def test_the_first_micro_batch_starts_where_it_did_however_often_it_is_run(
    broker: FakeBroker, reader: Make
) -> None:
    other = MessageQueue("orders", "broker-b", 0)
    begin = to_json({HERE: 60, other: 7})
    first = reader().latestOffset(begin, ReadAllAvailable())

    def planned(start: dict[str, object], end: dict[str, object]) -> list[tuple[str, int, int]]:
        parts = [part.slices for part in reader().partitions(start, end) if isinstance(part, SlicePartition)]
        return [(piece.queue.broker_name, piece.start, piece.end) for part in parts for piece in part]

    assert planned(begin, first) == [("broker-a", 60, 100)]
    # Spark asks for the start again, and a broker is away, or the queue's end is another one.
    assert planned(to_json({other: 7}), first) == [("broker-a", 60, 100)]
    assert planned(to_json({HERE: 100, other: 9}), first) == [("broker-a", 60, 100)]
    broker.end = 150
    second = reader().latestOffset(first, ReadAllAvailable())
    assert planned(first, second) == [("broker-a", 100, 150)]
    assert reader().latestOffset(second, ReadAllAvailable()) == second, "nothing new is the same text"
