"""Slices of queues through everything a broker can do: small pages, losses, slaves, cleaned messages."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from orbitmq.spark.brokers import Brokers
from orbitmq.spark.columns import decode_page
from orbitmq.spark.errors import BrokerLost, DataLost
from orbitmq.spark.places import Bounds, offsets_at
from orbitmq.spark.pull_client import MOST_PER_PULL, PullSettings, QueueSlice, SliceReader
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import encode_record
from tests.spark.fake_broker import FakeBroker

QUEUE = MessageQueue("orders", "broker-a", 0)


def record(offset: int, store_ms: int = 0) -> bytes:
    return encode_record(topic="orders", body=b"%d" % offset, queue_offset=offset, store_ms=store_ms)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(record, end=1000) as fake:
        yield fake


def read(
    fake: FakeBroker, start: int, end: int, settings: PullSettings | None = None, namesrv: str | None = None
) -> list[int]:
    pauses: list[float] = []
    found: list[int] = []
    with Brokers(namesrv or fake.addr, 5.0) as brokers:
        reader = SliceReader(
            brokers, QueueSlice(QUEUE, start, end), settings or PullSettings(), sleep=pauses.append
        )
        for page in reader:
            batch = decode_page(
                page.data, columns=("queue_offset", "body"), heads=page.heads, window=page.window
            )
            offsets = batch.column("queue_offset").to_pylist()
            assert batch.column("body").to_pylist() == [b"%d" % offset for offset in offsets]
            found += offsets
    return found


def test_a_broker_with_small_pages_is_asked_for_several_at_once(broker: FakeBroker) -> None:
    assert read(broker, 3, 990) == list(range(3, 990))
    asked = [int(pull.ext["maxMsgNums"]) for pull in broker.pulls()]
    assert asked[0] == 987, "the first pull asks for as much as there is"
    assert len(asked) <= 987 // 32 + 6, "after that, windows of what the broker gives"
    assert max(asked[3:]) <= 32


def test_a_broker_that_honours_pages_is_asked_for_whole_ones(broker: FakeBroker) -> None:
    broker.most, broker.end = 1_000_000, 20_000
    assert read(broker, 0, 20_000) == list(range(20_000))
    assert len(broker.pulls()) == -(-20_000 // MOST_PER_PULL)
    assert broker.pulls()[0].ext["pageBytes"] == str(PullSettings.page_bytes)


def test_short_answers_are_completed_in_order(broker: FakeBroker) -> None:
    sizes = iter([1000, 7, 400, 1, 1, 33, *[50] * 100])
    whole = broker._pull

    def shortened(command, offset, count):  # type: ignore[no-untyped-def]
        return whole(command, offset, min(count, next(sizes)))

    broker.most, broker.end = 1_000_000, 5000
    broker._pull = shortened  # type: ignore[method-assign]
    assert read(broker, 0, 3000, PullSettings(page_bytes=40_000)) == list(range(3000))


def test_cleaned_messages_are_named_exactly(broker: FakeBroker) -> None:
    broker.first = 150
    with pytest.raises(DataLost) as caught:
        read(broker, 100, 400)
    assert (caught.value.start, caught.value.end) == (100, 150)
    assert "50 message(s) of topic 'orders' on broker-a queue 0 are missing: offsets 100 to 149" in str(
        caught.value
    )
    assert "failOnDataLoss" in str(caught.value)


def test_cleaned_messages_can_be_done_without(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker.first = 150
    with caplog.at_level(logging.WARNING, "orbitmq.spark"):
        assert read(broker, 100, 400, PullSettings(fail_on_data_loss=False)) == list(range(150, 400))
    assert "offsets 100 to 149" in caplog.text


def test_messages_left_out_inside_a_page_are_noticed(broker: FakeBroker) -> None:
    broker.missing = {40, 41, 43}
    with pytest.raises(DataLost, match="2 message.*offsets 40 to 41"):
        read(broker, 0, 100)
    kept = read(broker, 0, 100, PullSettings(fail_on_data_loss=False))
    assert kept == [offset for offset in range(100) if offset not in broker.missing]


def test_a_filter_makes_holes_normal(broker: FakeBroker) -> None:
    broker.missing = set(range(1000)) - {5, 700}
    assert read(broker, 0, 1000, PullSettings(tags="A")) == [5, 700]
    assert broker.pulls()[0].ext["subscription"] == "A"


def test_a_queue_that_ends_too_early_is_a_loss(broker: FakeBroker) -> None:
    broker.end = 60
    with pytest.raises(DataLost, match=re.escape("offsets 60 to 99; the queue ends at 60 now")):
        read(broker, 0, 100)


def test_a_lost_connection_is_made_again_and_nothing_comes_twice(broker: FakeBroker) -> None:
    broker.hang_up_after = 4
    assert read(broker, 0, 900) == list(range(900))
    assert broker.hang_up_after is None


def test_a_broker_that_stays_away_is_an_error_that_names_the_place(broker: FakeBroker) -> None:
    with FakeBroker(record, end=1000) as namesrv:
        namesrv.members = {0: broker.addr}
        broker.close()
        with pytest.raises(BrokerLost, match="on broker-a queue 0 cannot be read on from offset 10 .of 20."):
            read(broker, 10, 20, PullSettings(retry_timeout_s=0.0), namesrv.addr)


def test_a_slave_serves_while_the_master_is_away(broker: FakeBroker) -> None:
    with FakeBroker(record, end=1000) as slave:
        slave.members = {0: broker.addr, 1: slave.addr}
        broker.close()
        assert read(broker, 10, 200, namesrv=slave.addr) == list(range(10, 200))


def test_a_slave_that_is_behind_proves_no_loss(broker: FakeBroker) -> None:
    with FakeBroker(record, end=50) as slave:
        broker.members = {0: broker.addr, 1: slave.addr}
        broker.hang_up_after = 1  # the slave gets its turn, and has too little
        assert read(broker, 0, 200) == list(range(200))
        assert slave.pulls()


def test_the_group_of_the_option_pulls(broker: FakeBroker) -> None:
    read(broker, 0, 5, PullSettings(group="nightly"))
    assert {pull.ext["consumerGroup"] for pull in broker.pulls()} == {"nightly"}


@pytest.mark.parametrize("guess", [-100, -1, 0, 1, 40, 5000])
def test_a_time_finds_the_first_message_however_rough_the_answer(broker: FakeBroker, guess: int) -> None:
    """Brokers answer with the nearest, or with any of several messages of one time."""
    broker.record = lambda offset: record(offset, store_ms=1000 * (offset // 10))
    broker.first = 20
    bounds = {QUEUE: Bounds(20, 1000)}
    with Brokers(broker.addr, 5.0) as brokers:
        for time_ms, expected in ((50_000, 500), (50_001, 510), (0, 20), (99_000, 990), (99_001, 1000)):
            broker.search = lambda _, around=expected: max(0, around + guess)  # type: ignore[misc]
            assert offsets_at(brokers, {QUEUE: time_ms}, bounds) == {QUEUE: expected}
