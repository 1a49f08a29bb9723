"""The blocking client: from threads, inside running loops, over forks, with handlers in threads."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import orbitmq
import orbitmq.sync
from orbitmq.testing import Server

TOPIC = "Orders"
GROUP = "billing"
LIMIT_S = 10.0


@pytest.fixture
def mq(orbitmq_server: Server) -> Iterator[orbitmq.sync.Client]:
    orbitmq_server.create_topic(TOPIC, queues=2)
    before = threading.active_count()
    with orbitmq_server.connect() as client:
        yield client
    assert threading.active_count() == before, "threads are left"


def bodies(server: Server, topic: str = TOPIC) -> list[bytes]:
    return [message.body for message in server.sent(topic)]


def test_every_way_of_sending(mq: orbitmq.sync.Client, orbitmq_server: Server) -> None:
    producer = mq.producer("app")
    receipt = producer.send(TOPIC, b"one", tag="paid", keys=["k1"], properties={"region": "eu"})
    assert receipt.status == "SEND_OK"
    assert [one.ok for one in producer.send_many(TOPIC, [b"two", b"three"])] == [True, True]
    producer.send_oneway(TOPIC, b"four")
    assert len(orbitmq_server.wait_sent(TOPIC, 4)) == 4
    assert sorted(bodies(orbitmq_server)) == [b"four", b"one", b"three", b"two"]
    [one] = orbitmq_server.sent(TOPIC, key="k1")
    assert (one.tag, one.properties["region"], one.msg_id) == ("paid", "eu", receipt.msg_id)


def test_posted_messages_get_their_receipts_later(mq: orbitmq.sync.Client, orbitmq_server: Server) -> None:
    producer = mq.producer("app")
    posted = [producer.post(TOPIC, b"%d" % number) for number in range(50)]
    producer.flush()
    assert len({receipt.result(0).msg_id for receipt in posted}) == 50
    assert len(orbitmq_server.sent(TOPIC)) == 50


def test_a_delayed_message_comes_when_its_time_has_passed_or_is_cancelled(
    mq: orbitmq.sync.Client, orbitmq_server: Server
) -> None:
    orbitmq_server.advance(days=1)  # the server's clock is far ahead, and the delay counts from there
    producer = mq.producer("app")
    producer.send(TOPIC, b"later", deliver_after=timedelta(hours=2))
    unwanted = producer.send(TOPIC, b"never", deliver_at=orbitmq_server.now() + timedelta(hours=1))
    producer.cancel(unwanted)
    orbitmq_server.advance(hours=1, minutes=59)
    assert bodies(orbitmq_server) == []
    orbitmq_server.advance(minutes=2)
    assert bodies(orbitmq_server) == [b"later"]


def test_many_threads_share_one_client(mq: orbitmq.sync.Client, orbitmq_server: Server) -> None:
    def send(number: int) -> str:
        return mq.producer("app").send(TOPIC, b"%d" % number).msg_id

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(send, range(200)))
    assert len(set(ids)) == 200
    assert sorted(map(int, bodies(orbitmq_server))) == list(range(200))
    groups = orbitmq_server.inspect(lambda broker: len(broker.clients.producer_group("app")))
    assert groups == 1, "the same group is one producer"


def test_a_transaction_is_seen_whole_or_not_at_all(mq: orbitmq.sync.Client, orbitmq_server: Server) -> None:
    producer = mq.producer("shop")
    with producer.transaction(TOPIC, b"order") as tx:
        tx.send(TOPIC, b"stock")
        assert len(tx.id) > 0 and len(tx.receipts) == 2
        assert bodies(orbitmq_server) == []
    orbitmq_server.wait_sent(TOPIC, 2)
    with pytest.raises(ZeroDivisionError), producer.transaction(TOPIC, b"broken"):
        raise ZeroDivisionError
    with producer.transaction(TOPIC, b"regretted") as tx:
        tx.rollback()
    assert sorted(bodies(orbitmq_server)) == [b"order", b"stock"]
    with pytest.raises(orbitmq.BadRequest, match="not entered"):
        producer.transaction(TOPIC, b"x").send(TOPIC, b"y")


def test_a_broker_that_asks_for_a_transaction_is_answered_by_a_thread(orbitmq_server: Server) -> None:
    asked: list[tuple[str, bytes]] = []
    orbitmq_server.create_topic(TOPIC)
    with orbitmq_server.connect() as dying:
        engine, twin = dying.producer("shop")._use()

        async def prepare_only() -> None:
            await twin.transaction(TOPIC, b"left open").__aenter__()

        engine.run(prepare_only())
    with orbitmq_server.connect() as heir:
        producer = heir.producer("shop")

        @producer.on_check
        def look(message: orbitmq.Message) -> bool:
            asked.append((threading.current_thread().name, message.body))
            return True

        group = "shop"
        orbitmq_server.wait_until(
            lambda: orbitmq_server.inspect(lambda broker: broker.clients.producer_group(group)),
            what="the broker knows the producer",
        )
        orbitmq_server.advance(minutes=2)
        orbitmq_server.wait_sent(TOPIC)
    assert asked[0][1] == b"left open"
    assert asked[0][0].startswith("orbitmq-handler")


def test_messages_are_iterated_acknowledged_and_retried(
    mq: orbitmq.sync.Client, orbitmq_server: Server
) -> None:
    mq.producer("app").send_many(TOPIC, [b"good", b"bad", b"worse"])
    seen: list[tuple[bytes, int]] = []
    with mq.consumer(GROUP, TOPIC, start="earliest") as inbox:
        for msg in inbox:
            seen.append((msg.body, msg.reconsume_times))
            with msg:
                if msg.reconsume_times:
                    continue_on = len(seen) < 4
                elif msg.body == b"bad":
                    raise ValueError("not today")
                elif msg.body == b"worse":
                    msg.dead("never")
                continue_on = len(seen) < 4
            if not continue_on:
                break
            if len(seen) == 3:
                orbitmq_server.wait_until(orbitmq_server.waiting, what="the retry is scheduled")
                orbitmq_server.advance(minutes=1)
        inbox.commit()
    assert sorted(seen) == [(b"bad", 0), (b"bad", 1), (b"good", 0), (b"worse", 0)]
    assert [message.body for message in orbitmq_server.dead(GROUP)] == [b"worse"]
    lag = mq.admin.lag(GROUP, topic=TOPIC)
    assert isinstance(lag, orbitmq.Lag) and lag.messages == 0


def test_receive_waits_no_longer_than_told_and_loses_nothing(
    mq: orbitmq.sync.Client, orbitmq_server: Server
) -> None:
    with mq.consumer(GROUP, TOPIC, start="earliest") as inbox:
        started = time.monotonic()
        assert inbox.receive(0.1) is None
        assert 0.05 < time.monotonic() - started < 3
        mq.producer("app").send(TOPIC, b"here")
        message = inbox.receive(LIMIT_S)
        assert message is not None and message.body == b"here"
        message.ack()
        assert message.settled
        assert inbox.queues and inbox.members == [mq.client_id]


@dataclass
class Order:
    id: int


def test_handlers_run_in_threads_at_the_same_time_with_decoded_bodies(
    mq: orbitmq.sync.Client, orbitmq_server: Server
) -> None:
    together = threading.Barrier(3, timeout=LIMIT_S)
    handled: dict[int, str] = {}
    done = threading.Semaphore(0)

    def bill(order: Order, msg: orbitmq.sync.Message) -> None:
        together.wait()
        handled[order.id] = threading.current_thread().name
        mq.producer("app").send("Invoices", b"for %s" % msg.keys[0].encode())  # blocking calls work in there
        done.release()

    with mq.consumer(GROUP, TOPIC, handler=bill, threads=3, start="earliest") as consumer:
        for number in range(3):
            mq.producer("app").send(TOPIC, b'{"id": %d}' % number, keys=[f"order-{number}"])
        for _ in range(3):
            assert done.acquire(timeout=LIMIT_S)
        assert not consumer.wait(0.01)
    assert sorted(handled) == [0, 1, 2]
    assert len(set(handled.values())) == 3
    assert all(name.startswith("orbitmq-handler") for name in handled.values())
    assert sorted(bodies(orbitmq_server, "Invoices")) == [b"for order-0", b"for order-1", b"for order-2"]


def test_a_handler_decides_about_its_message_and_may_stop_the_consumer(
    mq: orbitmq.sync.Client, orbitmq_server: Server
) -> None:
    tries: list[int] = []
    refused: list[str] = []

    def handle(msg: orbitmq.sync.Message) -> None:
        tries.append(msg.reconsume_times)
        if msg.reconsume_times == 0:
            msg.retry(after=10)
            return
        with pytest.raises(orbitmq.BadRequest, match="called by a handler") as caught:
            consumer.close()
        refused.append(caught.value.hint)
        consumer.stop()

    consumer = mq.consumer(GROUP, TOPIC, handler=handle, start="earliest")
    with consumer:
        mq.producer("app").send(TOPIC, b"twice")
        orbitmq_server.wait_until(orbitmq_server.waiting, what="the retry is scheduled")
        orbitmq_server.advance(seconds=11)
        assert consumer.wait(LIMIT_S)
    assert tries == [0, 1]
    assert "stop()" in refused[0]


def test_run_blocks_until_the_consumer_is_stopped(mq: orbitmq.sync.Client) -> None:
    mq.producer("app").send(TOPIC, b"only")
    seen: list[bytes] = []

    def handle(body: bytes) -> None:
        seen.append(body)
        inbox.stop()

    with mq.consumer(GROUP, TOPIC, start="earliest") as inbox:
        inbox.run(handle)
        assert seen == [b"only"]
        with pytest.raises(orbitmq.BadRequest, match="has a handler"):
            inbox.run(handle)


def test_dedup_gives_handlers_in_threads_their_transaction(
    mq: orbitmq.sync.Client, orbitmq_server: Server, tmp_path: Path
) -> None:
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database)) as db, db:
        db.execute("CREATE TABLE paid (id TEXT)")
    done = threading.Event()

    def pay(msg: orbitmq.sync.Message) -> None:
        msg.transaction.execute("INSERT INTO paid VALUES (?)", (msg.keys[0],))
        if msg.keys == ["last"]:
            done.set()

    options: dict[str, Any] = {"handler": pay, "dedup": orbitmq.Dedup.sqlite(database), "start": "earliest"}
    with mq.consumer(GROUP, TOPIC, **options):
        producer = mq.producer("app")
        for key in ("a", "a", "last"):
            producer.send(TOPIC, b"pay", keys=[key], queue=("broker-a", 0))
        assert done.wait(LIMIT_S)
    with closing(sqlite3.connect(database)) as db:
        assert sorted(db.execute("SELECT id FROM paid").fetchall()) == [("a",), ("last",)]


def test_request_and_reply(mq: orbitmq.sync.Client) -> None:
    def answer(msg: orbitmq.sync.Message) -> None:
        mq.producer("service").reply(msg, msg.body.upper())

    with mq.consumer("service", TOPIC, handler=answer, start="earliest"):
        assert mq.producer("asker").request(TOPIC, b"hello", timeout=LIMIT_S).body == b"HELLO"


def test_reading_and_administration(mq: orbitmq.sync.Client, orbitmq_server: Server) -> None:
    mq.producer("app").send_many(TOPIC, [b"%d" % number for number in range(20)])
    with mq.reader(TOPIC) as reader:
        first = reader.read(max_messages=5)
        assert 1 <= len(first) <= 5
        rest = []
        for message in reader:
            rest.append(message)
            if len(first) + len(rest) == 20:
                break
        assert sorted(int(message.body) for message in first + rest) == list(range(20))
        assert sum(reader.positions.values()) == sum(reader.ends().values()) == 20
        assert len(list(reader.range("earliest", "latest"))) == 20
        reader.seek("earliest")
        assert len(reader.read(max_messages=3)) == 3
    with pytest.raises(orbitmq.Closed, match="not open"):
        reader.read()
    assert mq.admin.topics() == [TOPIC]
    assert mq.admin.topic(TOPIC).messages == 20
    with pytest.raises(orbitmq.NotFound, match="has no dead letters"):
        list(mq.admin.dead_letters("nobody"))


def test_it_works_where_a_loop_runs_already(mq: orbitmq.sync.Client, orbitmq_server: Server) -> None:
    """As in a notebook, whose cells run inside a loop."""

    async def cell() -> None:
        mq.producer("app").send(TOPIC, b"from a notebook")
        with mq.reader(TOPIC) as reader:
            assert reader.read(max_wait=LIMIT_S)[0].body == b"from a notebook"

    asyncio.run(cell())


def test_errors_are_those_of_the_asynchronous_client(mq: orbitmq.sync.Client) -> None:
    with pytest.raises(orbitmq.BadRequest, match="body"):
        mq.producer("app").send(TOPIC, "text")  # type: ignore[arg-type]
    with pytest.raises(orbitmq.BadRequest, match="is not a name server address"):
        orbitmq.sync.connect("nonsense:port")
    with pytest.raises(orbitmq.BadRequest, match="concurrency="):
        mq.consumer(GROUP, TOPIC, concurrency=3)
    with pytest.raises(orbitmq.Closed, match="not running") as caught:
        mq.consumer(GROUP, TOPIC).receive()
    assert "with mq.consumer" in caught.value.hint


def test_a_closed_client_says_so_and_closes_once(orbitmq_server: Server) -> None:
    client = orbitmq_server.connect()
    producer = client.producer("app")
    producer.send(TOPIC, b"in time")
    client.close()
    client.close()
    for use in (lambda: producer.send(TOPIC, b"late"), lambda: client.admin, lambda: client.producer("x")):
        with pytest.raises(orbitmq.Closed, match="closed") as caught:
            use()
        assert "orbitmq.sync.connect" in caught.value.hint


def test_a_client_closed_by_another_thread_ends_the_wait(orbitmq_server: Server) -> None:
    client = orbitmq_server.connect()
    orbitmq_server.create_topic(TOPIC)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            with client.reader(TOPIC) as reader:
                reader.read(max_wait=LIMIT_S)
        except orbitmq.OrbitMQError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    client.close()
    waiting.join(LIMIT_S)
    assert [type(error) for error in errors] == [orbitmq.Closed]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_goes_on_sending_and_is_told_what_it_must_not_use(
    mq: orbitmq.sync.Client, orbitmq_server: Server
) -> None:
    producer = mq.producer("app")
    producer.send(TOPIC, b"parent before")
    parent_id = mq.client_id
    results: Any = multiprocessing.get_context("fork").SimpleQueue()

    with mq.reader(TOPIC) as reader, mq.consumer(GROUP, TOPIC) as inbox:

        def child() -> None:
            told: list[str] = []
            for use in (reader.read, inbox.receive):
                try:
                    use()
                except orbitmq.sync.Forked as error:
                    told.append(f"{error} / {error.hint}")
            producer.send(TOPIC, b"child")
            mq.admin.topics()
            results.put((told, mq.client_id))
            mq.close()

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(LIMIT_S)
        assert process.exitcode == 0
        told, child_id = results.get()
        producer.send(TOPIC, b"parent after")
        assert len(reader.read(max_wait=LIMIT_S)) >= 1, "the parent's reader goes on"
    assert [("before this process was forked" in text, "after the fork" in text) for text in told] == [
        (True, True),
        (True, True),
    ]
    assert child_id != parent_id
    assert sorted(bodies(orbitmq_server)) == [b"child", b"parent after", b"parent before"]


def test_ctrl_c_ends_a_blocked_program_which_still_leaves_its_group(orbitmq_server: Server) -> None:
    orbitmq_server.create_topic(TOPIC)
    program = (
        "import sys, orbitmq.sync\n"
        "mq = orbitmq.sync.connect(sys.argv[1])\n"
        "inbox = mq.consumer('billing', 'Orders').start()\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    for msg in inbox: pass\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    command = [sys.executable, "-W", "error", "-c", program, orbitmq_server.namesrv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, err) == (0, "interrupted\n", "")
    members = orbitmq_server.inspect(lambda broker: broker.clients.consumer_ids(GROUP))
    assert not members
