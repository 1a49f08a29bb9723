"""Stream readers made as Spark makes them, without Spark, on a broker with 100 messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from orbitmq.spark.options import parse_read_options
from orbitmq.spark.stream import OrbitStreamReader
from orbitmq.wire.message import encode_record
from tests.spark.fake_broker import FakeBroker

Make = Callable[..., OrbitStreamReader]


def a_hundred() -> FakeBroker:
    return FakeBroker(
        lambda offset: encode_record(topic="orders", body=b"x" * 100, queue_offset=offset), end=100
    )


@contextmanager
def stream_readers(namesrv: str) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(**options: str) -> OrbitStreamReader:
            given = {"namesrv": namesrv, "subscribe": "orders", "retryTimeoutMs": "0", **options}
            made = OrbitStreamReader(parse_read_options(given, streaming=True), ("body",))
            stack.callback(made.stop)
            return made

        yield make
