"""Writes without transactions travel in batches; a row that cannot, or whose batch is refused, goes alone."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from orbitmq.client.cluster import Cluster
from orbitmq.net.connection import Connection
from orbitmq.spark.sink_batches import AT_ONCE, BATCH_BYTES
from orbitmq.spark.sink_options import AT_LEAST_ONCE, SinkOptions
from orbitmq.spark.sink_rows import BadRow, Row
from orbitmq.spark.sink_send import TaskSender
from orbitmq.wire.batch import iter_batch
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.properties import decode_properties
from tests.spark.test_sink_busy import GROUP, noted, run
from tests.spark.test_sink_protocol import Job, plain_row
from tests.spark.test_sink_protocol import run as run_on
from tests.support.fake_servers import FakeCluster
from tests.support.server_process import ServerProcess

SINGLE, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


def row(body: bytes, **fields: Any) -> Row:
    return plain_row("TopicA", body)._replace(**fields)


class Broker:
    """Stores what it is sent; batches only if it is told to."""

    def __init__(self, *, takes_batches: bool = True) -> None:
        self._takes_batches = takes_batches
        self._places = itertools.count()
        self.batches: list[list[tuple[bytes, dict[str, str]]]] = []
        self.singles: list[tuple[bytes, dict[str, str]]] = []

    def __call__(self, conn: Connection, command: Command) -> Command:
        if command.code == BATCH:
            assert command.ext["m"] == "true"
            self.batches.append(
                [(body, decode_properties(text)) for _, body, text in iter_batch(command.body)]
            )
            if not self._takes_batches:
                return command.reply(ResponseCode.SYSTEM_BUSY, "flow control")
        else:
            self.singles.append((command.body, decode_properties(command.ext["i"])))
        place = next(self._places)
        return command.reply(
            ext={"msgId": f"7F00000100002A9F{place:016X}", "queueId": "0", "queueOffset": str(place)}
        )


def write(broker: Broker, rows: list[Row], **options: Any) -> list[float]:
    async def work(fake: FakeCluster, cluster: Cluster, pauses: list[float]) -> None:
        chosen = SinkOptions(fake.namesrv.addr, delivery=AT_LEAST_ONCE, **options)
        sender = TaskSender(cluster, chosen, GROUP, 0, sleep=noted(pauses))
        await sender.send(iter(rows))
        assert sender.rows == len(rows)
        assert sender.bytes == sum(len(row.body) for row in rows)

    return run({SINGLE: broker, BATCH: broker}, work, topics=("TopicA", "TopicB", "%RETRY%group"))


def test_many_rows_are_few_requests() -> None:
    broker = Broker()
    rows = [row(b"row %d" % n, tag="red", keys=(f"k{n}",), properties={"n": str(n)}) for n in range(1000)]
    write(broker, rows, max_in_flight=256)
    assert not broker.singles
    assert [len(batch) for batch in broker.batches] == [256 // AT_ONCE] * 15 + [1000 - 15 * 64]
    found = [entry for batch in broker.batches for entry in batch]
    assert [body for body, _ in found] == [row.body for row in rows]
    for number, (_, properties) in enumerate(found):
        assert (properties["TAGS"], properties["KEYS"], properties["n"]) == ("red", f"k{number}", str(number))
    assert len({properties["UNIQ_KEY"] for _, properties in found}) == 1000


def test_a_batch_has_a_bound_in_bytes() -> None:
    broker = Broker()
    write(broker, [row(b"x" * 4000) for _ in range(400)], max_in_flight=4000)
    sizes = [sum(len(body) for body, _ in batch) for batch in broker.batches]
    assert sum(sizes) == 400 * 4000
    assert max(sizes) <= BATCH_BYTES
    assert len(sizes) == 7


@pytest.mark.parametrize("max_in_flight", [1, 2, 7, 40])
def test_no_more_are_under_way_than_the_option_allows(max_in_flight: int) -> None:
    waiting: list[int] = []
    most = 0

    async def slow(conn: Connection, command: Command) -> Command:
        nonlocal most
        waiting.append(len(list(iter_batch(command.body))))
        most = max(most, sum(waiting))
        await asyncio.sleep(0.005)
        waiting.pop(0)
        return command.reply(ext={"msgId": "7F00000100002A9F" + "0" * 16, "queueId": "0", "queueOffset": "1"})

    async def work(fake: FakeCluster, cluster: Cluster, pauses: list[float]) -> None:
        options = SinkOptions(fake.namesrv.addr, delivery=AT_LEAST_ONCE, max_in_flight=max_in_flight)
        await TaskSender(cluster, options, GROUP, 0).send(row(b"%d" % n) for n in range(100))

    run({BATCH: slow}, work)
    assert max_in_flight // 2 < most <= max_in_flight


def test_each_topic_has_its_own_batches() -> None:
    broker = Broker()
    write(broker, [row(b"%d" % n, topic=("TopicA", "TopicB")[n % 2]) for n in range(10)])
    assert [[body for body, _ in batch] for batch in broker.batches] == [
        [b"0", b"2", b"4", b"6", b"8"],
        [b"1", b"3", b"5", b"7", b"9"],
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_level": 3},
        {"deliver_ms": 1_900_000_000_000},
        {"order_key": "o1"},
        {"topic": "%RETRY%group"},
        {"body": b"y" * 5000},
    ],
    ids=["level", "moment", "order", "retry topic", "large"],
)
def test_a_row_with_a_wish_of_its_own_goes_alone(fields: dict[str, Any]) -> None:
    broker = Broker()
    body = fields.pop("body", b"alone")
    write(broker, [row(b"a"), row(body, **fields), row(b"b")])
    assert [[body for body, _ in batch] for batch in broker.batches] == [[b"a", b"b"]]
    assert len(broker.singles) == 1


def test_rows_of_a_refused_batch_go_alone_under_their_ids() -> None:
    broker = Broker(takes_batches=False)
    pauses = write(broker, [row(b"%d" % n, tag="t") for n in range(20)])
    (batch,) = broker.batches
    assert len(pauses) == 20
    assert sorted(body for body, _ in broker.singles) == sorted(body for body, _ in batch)
    ids = {body: properties["UNIQ_KEY"] for body, properties in batch}
    assert {body: properties["UNIQ_KEY"] for body, properties in broker.singles} == ids
    assert {properties["TAGS"] for _, properties in broker.singles} == {"t"}


def test_nothing_is_sent_when_a_row_is_wrong() -> None:
    broker = Broker()
    rows = [row(b"a"), row(b"b", properties={"UNIQ_KEY": "mine"}), row(b"c")]
    with pytest.raises(BadRow, match=r"row 1 of task 0 .*UNIQ_KEY.* is reserved"):
        write(broker, rows)
    assert not broker.batches
    assert not broker.singles


def test_a_broker_stores_all_of_them_once(server: ServerProcess) -> None:
    bodies = [f"{n}:" + "z" * (n * 37 % 6000) for n in range(2000)]

    async def main(job: Job) -> None:
        await job.task(*bodies, tag="T", keys=("k1", "k2"), properties={"colour": "red"})
        messages = await job.messages()
        assert sorted(m.decoded_body().decode() for m in messages) == sorted(bodies)
        assert {(m.tags, tuple(m.key_list), m.properties["colour"]) for m in messages} == {
            ("T", ("k1", "k2"), "red")
        }
        assert len({m.queue_id for m in messages}) == 4, "all queues are used"

    run_on(server, "Batched", main, delivery=AT_LEAST_ONCE)
