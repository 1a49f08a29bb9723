"""Where a read begins and ends, without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orbitmq.spark.batch import batch_slices
from orbitmq.spark.brokers import Brokers
from orbitmq.spark.errors import BadOption, DataLost
from orbitmq.spark.filters import Narrow
from orbitmq.spark.options import parse_read_options
from orbitmq.wire.message import encode_record
from tests.spark.fake_broker import FakeBroker


@pytest.fixture
def cleaned() -> Iterator[FakeBroker]:
    """A queue with the offsets 20 to 99."""
    with FakeBroker(
        lambda offset: encode_record(topic="orders", body=b"x", queue_offset=offset), first=20, end=100
    ) as fake:
        yield fake


def stretch(fake: FakeBroker, **given: str) -> tuple[int, int]:
    options = parse_read_options({"namesrv": fake.addr, "subscribe": "orders", **given}, streaming=False)
    with Brokers(fake.addr, 5.0) as brokers:
        (piece,) = batch_slices(brokers, options, Narrow())
    return piece.start, piece.end


def numbered(offset: int) -> str:
    return f'{{"orders":{{"0":{offset}}}}}'


def test_a_start_that_was_cleaned_away_names_its_option(cleaned: FakeBroker) -> None:
    assert stretch(cleaned, startingOffsets=numbered(-2)) == (20, 100)
    assert stretch(cleaned, startingOffsets=numbered(30)) == (30, 100)
    with pytest.raises(DataLost, match=r"offsets 5 to 19.*\(option 'startingOffsets'\)"):
        stretch(cleaned, startingOffsets=numbered(5))
    assert stretch(cleaned, startingOffsets=numbered(5), failOnDataLoss="false") == (20, 100)


def test_an_end_outside_the_queue_is_no_empty_table(cleaned: FakeBroker) -> None:
    assert stretch(cleaned, endingOffsets=numbered(30)) == (20, 30)
    for end in (5, 101):
        with pytest.raises(BadOption, match=f"'endingOffsets': {end} .* out of range: .* 20 to 100"):
            stretch(cleaned, endingOffsets=numbered(end))
