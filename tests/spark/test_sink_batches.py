"""Rows travel in batches, plain or as one half message; a row that cannot, or whose batch is refused, goes alone."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.net.connection import Connection
from orbitmq.spark.sink_batches import BATCH_BYTES, BATCHES_AT_ONCE, Numbered, Sorting
from orbitmq.spark.sink_end import BYTES_AT_ONCE, ENDS_AT_ONCE, ends_at_once
from orbitmq.spark.sink_handles import Handles
from orbitmq.spark.sink_options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions
from orbitmq.spark.sink_rows import BadRow, Row, rows_of
from orbitmq.spark.sink_send import TaskSender
from orbitmq.spark.sink_table import PlainTable
from orbitmq.wire.batch import MAX_HALF_BATCH, iter_batch
from orbitmq.wire.codes import OrbitCode, RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.message_id import UniqIdFactory
from orbitmq.wire.properties import Prop, decode_properties
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

    def __init__(
        self,
        *,
        to_batches: int = ResponseCode.SUCCESS,
        times: int = sys.maxsize,
        native: bool = True,
        half_batch: int = MAX_HALF_BATCH,
    ) -> None:
        self._to_batches = to_batches
        self._times = times
        self._native = native
        self._said = {"halfBatch": str(half_batch)} if half_batch else {}
        self._places = itertools.count()
        self.batches: list[list[tuple[bytes, dict[str, str]]]] = []
        self.singles: list[tuple[bytes, dict[str, str]]] = []
        self.outer: list[dict[str, str]] = []
        """Properties of half batches themselves."""

    def __call__(self, conn: Connection, command: Command) -> Command:
        if command.code == OrbitCode.LIST_HALF_MESSAGES:
            if self._native:
                return command.reply(ext=self._said)
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        properties = decode_properties(command.ext["i"])
        if command.code == BATCH or Prop.HALF_BATCH in properties:
            assert command.ext["m"] == ("true" if command.code == BATCH else "false")
            self.batches.append(
                [(body, decode_properties(text)) for _, body, text in iter_batch(command.body)]
            )
            self.outer.append(properties)
            if self._to_batches != ResponseCode.SUCCESS and len(self.batches) <= self._times:
                return command.reply(self._to_batches, "not now, or never")
        else:
            self.singles.append((command.body, properties))
        place = next(self._places)
        return command.reply(
            ext={"msgId": f"7F00000100002A9F{place:016X}", "queueId": "0", "queueOffset": str(place)}
        )


def write(
    broker: Broker, rows: list[Row], delivery: str = AT_LEAST_ONCE, **options: Any
) -> tuple[list[float], Handles]:
    """The pauses that were made, and the half messages that were noted."""
    handles = Handles()

    async def work(fake: FakeCluster, cluster: Cluster, pauses: list[float]) -> None:
        chosen = SinkOptions(fake.namesrv.addr, delivery=delivery, **options)
        sender = TaskSender(cluster, chosen, GROUP, 0, sleep=noted(pauses))
        await sender.send(iter(rows))
        assert sender.rows == len(rows)
        handles.extend(sender.handles)

    answers = {SINGLE: broker, BATCH: broker, OrbitCode.LIST_HALF_MESSAGES: broker}
    return run(answers, work, topics=("TopicA", "TopicB", "%RETRY%group")), handles


def test_many_rows_are_few_requests() -> None:
    broker = Broker()
    rows = [row(b"row %d" % n, tag="red", keys=(f"k{n}",), properties={"n": str(n)}) for n in range(1000)]
    write(broker, rows, max_in_flight=256)
    assert not broker.singles
    assert [len(batch) for batch in broker.batches] == [256 // BATCHES_AT_ONCE] * 15 + [1000 - 15 * 64]
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
    broker = Broker(to_batches=ResponseCode.SYSTEM_BUSY)
    pauses, _ = write(broker, [row(b"%d" % n, tag="t") for n in range(20)])
    (batch,) = broker.batches
    assert len(pauses) == 20
    assert sorted(body for body, _ in broker.singles) == sorted(body for body, _ in batch)
    ids = {body: properties["UNIQ_KEY"] for body, properties in batch}
    assert {body: properties["UNIQ_KEY"] for body, properties in broker.singles} == ids
    assert {properties["TAGS"] for _, properties in broker.singles} == {"t"}


@pytest.mark.parametrize("delivery", [AT_LEAST_ONCE, EXACTLY_ONCE])
def test_what_is_wrong_with_a_batch_need_not_be_wrong_with_its_rows(delivery: str) -> None:
    broker = Broker(to_batches=ResponseCode.MESSAGE_ILLEGAL)
    pauses, handles = write(broker, [row(b"%d" % n) for n in range(600)], delivery)
    assert pauses == []
    assert [len(batch) for batch in broker.batches] == [256, 256, 88]
    assert Counter(body for body, _ in broker.singles) == Counter(b"%d" % n for n in range(600))
    assert len(handles) == (600 if delivery == EXACTLY_ONCE else 0)


def test_a_batch_is_one_half_message_under_the_id_of_its_last_row() -> None:
    broker = Broker()
    _, handles = write(broker, [row(b"%d" % n, tag="t") for n in range(600)], EXACTLY_ONCE)
    assert not broker.singles
    assert [len(batch) for batch in broker.batches] == [256, 256, 88]
    for batch, outer in zip(broker.batches, broker.outer, strict=True):
        assert outer == {
            Prop.UNIQ_KEY: batch[-1][1][Prop.UNIQ_KEY],
            Prop.WAIT: "true",
            Prop.TRANSACTION_PREPARED: "true",
            Prop.PRODUCER_GROUP: GROUP,
            Prop.HALF_BATCH: str(len(batch)),
        }
    assert len(handles) == 3
    assert list(handles.pairs("broker-a")) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("times", [1, 5])
def test_a_half_message_that_a_busy_broker_refused_is_sent_again_as_it_is(times: int) -> None:
    broker = Broker(to_batches=ResponseCode.SYSTEM_BUSY, times=times)
    pauses, handles = write(broker, [row(b"%d" % n) for n in range(600)], EXACTLY_ONCE)
    assert not broker.singles
    assert len(broker.batches) == 3 + times
    assert len(pauses) == (1 if times == 1 else 2), "for all of them together"
    refused, stored = broker.batches[:times], broker.batches[times:]
    assert Counter(body for batch in stored for body, _ in batch) == Counter(b"%d" % n for n in range(600))
    assert all(batch in stored or batch in refused[3:] for batch in refused), "under the same ids"
    assert len(handles) == 3


def test_a_half_message_that_was_not_answered_is_sent_again_as_it_is() -> None:
    broker = Broker()
    lost: list[Command] = []

    def answer(conn: Connection, command: Command) -> Command | None:
        if not lost:
            lost.append(command)
            conn.abort()
            return None
        return broker(conn, command)

    async def work(fake: FakeCluster, cluster: Cluster, pauses: list[float]) -> None:
        sender = TaskSender(cluster, SinkOptions(fake.namesrv.addr), GROUP, 0, sleep=noted(pauses))
        await sender.send(iter([row(b"%d" % n) for n in range(20)]))
        assert len(sender.handles) == 1

    assert len(run({SINGLE: answer, OrbitCode.LIST_HALF_MESSAGES: broker}, work)) == 1
    assert not broker.singles
    assert [[body for body, _ in batch] for batch in broker.batches] == [[b"%d" % n for n in range(20)]]


def test_a_row_that_went_nowhere_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(TaskSender, "_store_lanes", nothing)
    with pytest.raises(AssertionError, match="of 20 rows 0 went in batches and 0 alone"):
        write(Broker(to_batches=ResponseCode.SYSTEM_BUSY), [row(b"%d" % n) for n in range(20)])


def test_a_half_message_that_stays_refused_is_an_error_that_names_its_rows() -> None:
    broker = Broker(to_batches=ResponseCode.SYSTEM_BUSY)
    with pytest.raises(OrbitMQError, match=r"row 0 of task 0 .*, with 19 others, was not stored: .*not now"):
        write(broker, [row(b"%d" % n) for n in range(20)], EXACTLY_ONCE, retry_timeout_s=0.05)
    assert not broker.singles


@pytest.mark.parametrize("half_batch", [0, 99])
def test_a_broker_gets_no_more_rows_in_a_half_message_than_it_says(half_batch: int) -> None:
    """An older OrbitMQ says nothing, and would take the half message for one message."""
    broker = Broker(half_batch=half_batch)
    _, handles = write(broker, [row(b"%d" % n) for n in range(100)], EXACTLY_ONCE)
    assert not broker.batches and len(broker.singles) == len(handles) == 100


def test_ends_under_way_are_bounded_by_what_they_make_visible() -> None:
    small = [(1000 + n * 300, n) for n in range(2000)]
    large = [(1000 + n * 50_000, n) for n in range(2000)]
    far_apart = [(n * 10**9, n) for n in range(2000)]
    assert ends_at_once(small) == ends_at_once(small[:1]) == ENDS_AT_ONCE
    assert ends_at_once(large) == BYTES_AT_ONCE // 50_000
    assert ends_at_once(far_apart) == ends_at_once(far_apart[::-1]) == BYTES_AT_ONCE // BATCH_BYTES
    # Two tasks beside each other: where one's ends and the other's begin is the only step backwards.
    assert ends_at_once(small + small) > ENDS_AT_ONCE // 2


def test_to_a_java_broker_each_row_is_its_own_half_message() -> None:
    broker = Broker(native=False)
    _, handles = write(broker, [row(b"%d" % n, tag="t") for n in range(600)], EXACTLY_ONCE)
    assert not broker.batches
    assert [body for body, _ in broker.singles] == [b"%d" % n for n in range(600)]
    assert {properties[Prop.TRANSACTION_PREPARED] for _, properties in broker.singles} == {"true"}
    assert len({properties[Prop.UNIQ_KEY] for _, properties in broker.singles}) == 600
    assert len(handles) == 600


def test_half_messages_with_an_order_key_are_noted_in_the_order_of_the_rows() -> None:
    broker = Broker()
    rows = [row(b"%d" % n, order_key="k" if n % 2 else None) for n in range(40)]
    _, handles = write(broker, rows, EXACTLY_ONCE)
    assert [body for body, _ in broker.singles] == [b"%d" % n for n in range(1, 40, 2)]
    assert list(handles.pairs("broker-a")) == [(n, n) for n in range(21)]


def test_one_row_is_no_batch() -> None:
    broker = Broker()
    write(broker, [row(b"a")], EXACTLY_ONCE)
    assert [body for body, _ in broker.singles] == [b"a"] and not broker.batches


# Arrow batches column by column, and as rows.


def table(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


def ids() -> UniqIdFactory:
    return UniqIdFactory("127.0.0.1", 77, lambda: 1_800_000_000_000, process_hash=1)


BODIES = pa.array([b"a", b"b", b"c"])


@pytest.mark.parametrize(
    "batch",
    [
        table(body=BODIES),
        table(body=pa.array(["ä", "b", "c"])),
        table(body=BODIES, tags=pa.array(["x", None, ""])),
        table(body=BODIES, tags=pa.array(["x", "y", "x"]), keys=pa.array(["k1 k2", None, " "])),
        table(body=BODIES, keys=pa.array([["k1", "k2"], None, [None, "k3"]])),
        table(body=BODIES, topic=pa.array(["TopicB"] * 3)),
        table(body=BODIES, topic=pa.array([None] * 3, pa.string())),
        table(body=BODIES, order_key=pa.array([None] * 3, pa.string())),
        table(body=BODIES, delay_level=pa.array([None] * 3, pa.int32())),
    ],
    ids=lambda batch: ",".join(batch.schema.names),
)
def test_columns_say_what_rows_say(batch: pa.RecordBatch) -> None:
    plain = PlainTable.of(batch, "TopicA", 4 << 20)
    assert plain is not None and plain.rows == 3 and not plain.alone
    rows = [Numbered(number, row) for number, row in enumerate(rows_of(batch, "TopicA", 0, 0))]
    (ours,), (theirs,) = plain.batches(256, ids()), Sorting(rows, 4 << 20).batches(256, ids())
    assert ours[:4] == theirs[:4]
    assert ours.rows() == theirs.rows() == rows


@pytest.mark.parametrize(
    "batch",
    [
        table(body=pa.array([], pa.binary())),
        table(body=pa.array([b"a", None])),
        table(body=pa.array([b"a", b""])),
        table(body=pa.array([b"a", b"y" * 5000])),
        table(body=BODIES, topic=pa.array(["TopicA", "TopicB", "TopicA"])),
        table(body=BODIES, topic=pa.array(["TopicA", None, "TopicA"])),
        table(body=BODIES, topic=pa.array(["%RETRY%g"] * 3)),
        table(body=BODIES, tags=pa.array(["a|b", "a", "a"])),
        table(body=BODIES, keys=pa.array(["a\x01b", "a", "a"])),
        table(body=BODIES, order_key=pa.array(["k", None, None])),
        table(body=BODIES, deliver_at=pa.array([None, None, datetime.now(UTC)])),
        table(body=BODIES, delay_level=pa.array([None, 1, None])),
        table(
            body=BODIES, properties=pa.array([None, [("a", "b")], None], pa.map_(pa.string(), pa.string()))
        ),
    ],
    ids=lambda batch: ",".join(batch.schema.names),
)
def test_what_is_not_plain_goes_as_rows(batch: pa.RecordBatch) -> None:
    assert PlainTable.of(batch, "TopicA", 4 << 20) is None


def test_rows_of_a_refused_table_go_alone_under_their_numbers_and_ids() -> None:
    broker = Broker(to_batches=ResponseCode.SYSTEM_BUSY)

    async def work(fake: FakeCluster, cluster: Cluster, pauses: list[float]) -> None:
        options = SinkOptions(fake.namesrv.addr, topic="TopicA", delivery=AT_LEAST_ONCE)
        sender = TaskSender(cluster, options, GROUP, 0, sleep=noted(pauses))
        for start in (0, 500):
            bodies = pa.array([b"%d" % n for n in range(start, start + 500)])
            await sender.send_table(table(body=bodies, tags=pa.array(["t"] * 500)))
        assert sender.rows == 1000

    run({SINGLE: broker, BATCH: broker}, work)
    batched = {body: properties for batch in broker.batches for body, properties in batch}
    assert Counter(body for body, _ in broker.singles) == Counter(b"%d" % n for n in range(1000))
    assert all(
        properties[Prop.UNIQ_KEY] == batched[body][Prop.UNIQ_KEY] for body, properties in broker.singles
    )


def test_a_wrong_row_of_a_table_is_named() -> None:
    async def work(fake: FakeCluster, cluster: Cluster, pauses: list[float]) -> None:
        sender = TaskSender(cluster, SinkOptions(fake.namesrv.addr, topic="TopicA"), GROUP, 4)
        await sender.send_table(table(body=BODIES))
        await sender.send_table(table(body=pa.array([b"d", None])))

    broker = Broker()
    with pytest.raises(BadRow, match=r"row 4 of task 4 \(topic TopicA\) has no body"):
        run({SINGLE: broker, OrbitCode.LIST_HALF_MESSAGES: broker}, work)


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
