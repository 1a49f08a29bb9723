"""The producer against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orbitmq.client.batching import PartlySent
from orbitmq.client.client import connect
from orbitmq.client.errors import BadRequest, Closed, NotFound, OrbitMQError, Refused, Unreachable
from orbitmq.client.outgoing import Out
from orbitmq.client.receipt import Receipt
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.compression import Compression
from tests.client.live import SMALL, bodies, run, stored, until_stored
from tests.support.server_process import ServerProcess, free_port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("producer"), **SMALL) as running:
        yield running


def test_what_is_sent_is_what_is_stored(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("shop")
            receipt = await producer.send(
                "Plain", b"body", tag="paid", keys=["order-1", "user-2"], properties={"region": 'eu"%é'}
            )
            (message,) = await stored(mq, "Plain")
            assert message.body == b"body"
            assert message.properties["TAGS"] == "paid"
            assert message.properties["KEYS"] == "order-1 user-2"
            assert message.properties["region"] == 'eu"%é'
            assert message.properties["UNIQ_KEY"] == receipt.msg_id == message.msg_id
            assert receipt.offset_msg_id == message.offset_msg_id
            assert (receipt.topic, receipt.broker) == ("Plain", "broker-a")
            assert (receipt.queue_id, receipt.queue_offset) == (message.queue_id, message.queue_offset)
            assert (receipt.status, receipt.ok, receipt.recall_handle) == ("SEND_OK", True, None)
            assert receipt.durable == "stored as safely as the broker's settings say"
            assert "SEND_OK" in repr(receipt) and receipt.msg_id in repr(receipt)

    run(main)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_many_sends_at_once_get_each_its_own_receipt(server: ServerProcess, loop: str) -> None:
    topic = f"AtOnce-{loop}"

    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("shop")

            async def worker(number: int) -> list[tuple[bytes, Receipt]]:
                sent = [b"%d-%d" % (number, at) for at in range(20)]
                return [(body, await producer.send(topic, body)) for body in sent]

            pairs = [pair for part in await asyncio.gather(*map(worker, range(64))) for pair in part]
            assert len({receipt.msg_id for _, receipt in pairs}) == len(pairs) == 1280
            places = {(m.queue_id, m.queue_offset): m for m in await stored(mq, topic)}
            for body, receipt in pairs:
                message = places[receipt.queue_id, receipt.queue_offset]
                assert (message.body, message.offset_msg_id) == (body, receipt.offset_msg_id)
            queues = {receipt.queue_id for _, receipt in pairs}
            assert queues == {0, 1, 2, 3}

    if loop == "asyncio":
        run(main)
    else:
        uvloop = pytest.importorskip("uvloop")
        uvloop.run(asyncio.wait_for(main(), 20))


def test_send_many_gives_a_receipt_for_each_in_order(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("shop", batch_bytes=4000, batch_messages=50)
            sent = [b"%d" % at * (at % 7 + 1) for at in range(1000)]
            receipts = await producer.send_many("Many", sent)
            messages = {m.offset_msg_id: m for m in await stored(mq, "Many")}
            assert len(receipts) == len(messages) == 1000
            for body, receipt in zip(sent, receipts, strict=True):
                message = messages[receipt.offset_msg_id]
                assert message.body == body
                assert message.properties["UNIQ_KEY"] == receipt.msg_id
                assert (message.queue_id, message.queue_offset) == (receipt.queue_id, receipt.queue_offset)
            assert await producer.send_many("Many", []) == []

    run(main)


def test_send_many_with_tags_keys_and_order(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("shop", batch_messages=10)
            outs = [
                Out(
                    body=b"%03d" % at,
                    tag="t",
                    keys=f"k{at}",
                    properties={"n": str(at)},
                    order_key=f"u{at % 5}",
                )
                for at in range(200)
            ]
            receipts = await producer.send_many("ManyOrdered", [*outs, b"plain"])
            assert len(receipts) == 201
            messages = [m for m in await stored(mq, "ManyOrdered") if m.body != b"plain"]
            for key in range(5):
                of_key = [m for m in messages if int(m.body) % 5 == key]
                assert len({m.queue_id for m in of_key}) == 1
                assert [m.body for m in sorted(of_key, key=lambda m: m.queue_offset)] == [
                    b"%03d" % at for at in range(key, 200, 5)
                ]
                assert of_key[0].properties["__SHARDINGKEY"] == f"u{key}"
            first = next(m for m in messages if m.body == b"000")
            assert (first.properties["TAGS"], first.properties["KEYS"], first.properties["n"]) == (
                "t",
                "k0",
                "0",
            )

    run(main)


def test_a_stream_is_sent_without_waiting_for_its_end(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("shop", linger=0.01)
            more = asyncio.Event()

            async def source() -> AsyncIterator[bytes]:
                yield b"1"
                yield b"2"
                await more.wait()
                yield b"3"

            sending = asyncio.create_task(producer.send_many("Stream", source()))
            assert await until_stored(mq, "Stream", 2) == [b"1", b"2"]
            assert not sending.done()
            more.set()
            assert len(await sending) == 3
            assert await bodies(mq, "Stream") == [b"1", b"2", b"3"]

    run(main)


def test_posted_messages_travel_together(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("shop", linger=60)
            await producer.send("Posted", b"first")
            futures = [await producer.post("Posted", b"%d" % at, tag="p") for at in range(100)]
            await asyncio.sleep(0.05)
            assert not any(future.done() for future in futures)
            await producer.flush()
            receipts = [future.result() for future in futures]
            assert len({(receipt.broker, receipt.queue_id) for receipt in receipts}) == 1
            offsets = [receipt.queue_offset for receipt in receipts]
            assert offsets == list(range(offsets[0], offsets[0] + 100))
            last = await mq.producer("shop", linger=0.01).post("Posted", b"by itself")
            assert (await last).ok
            await producer.post("Posted", b"at the end")
        async with connect(server.namesrv) as mq:
            assert len(await stored(mq, "Posted")) == 103

    run(main)


def test_one_way_messages_arrive(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("shop")
            for at in range(50):
                await producer.send_oneway("Oneway", b"%02d" % at, tag="o", keys="k")
            assert await until_stored(mq, "Oneway", 50) == [b"%02d" % at for at in range(50)]

    run(main)


def test_an_order_key_keeps_its_queue_and_a_queue_can_be_named(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("shop")
            for key in ("user-7", 12, "ü"):
                receipts = [await producer.send("Keyed", b"%d" % at, order_key=key) for at in range(5)]
                assert len({receipt.queue_id for receipt in receipts}) == 1
                offsets = [receipt.queue_offset for receipt in receipts]
                assert offsets == sorted(offsets)
            assert (await producer.send("Keyed", b"x", queue=("broker-a", 2))).queue_id == 2
            with pytest.raises(NotFound, match="no writable queue 99 on broker 'broker-a'") as caught:
                await producer.send("Keyed", b"x", queue=("broker-a", 99))
            assert "broker-a" in caught.value.hint

    run(main)


@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
def test_big_bodies_travel_compressed(server: ServerProcess, name: str) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("shop", compression=name, compress_from=1000)
            big, small = b"abc" * 1000, b"abc" * 300
            topic = f"Packed-{name}"
            for body in (big, small):
                await producer.send(topic, body)
            messages = {m.decoded_body(): m for m in await stored(mq, topic)}
            assert set(messages) == {big, small}
            assert messages[big].sys_flag & 0x701 == Compression.named(name).sys_flag
            assert len(messages[big].body) < 200
            assert not messages[small].sys_flag & SysFlag.COMPRESSED
            plain = mq.producer("shop", compression=None)
            receipt = await plain.send(topic, big + b"!")
            (found,) = [m for m in await stored(mq, topic) if m.offset_msg_id == receipt.offset_msg_id]
            assert found.body == big + b"!" and not found.sys_flag & SysFlag.COMPRESSED

    run(main)


def test_a_scheduled_message_can_be_cancelled_by_receipt_or_id(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("shop")
            soon = await producer.send("Later", b"soon", deliver_after=timedelta(seconds=0.3))
            gone = await producer.send("Later", b"gone", deliver_after=0.6)
            too = await producer.send("Later", b"too", deliver_at=datetime.now(UTC) + timedelta(seconds=0.6))
            level = await producer.send("Later", b"level", delay_level=1)
            assert soon.recall_handle and gone.recall_handle
            assert (await producer.cancel(gone)).msg_id == gone.msg_id
            assert (await producer.cancel(too.msg_id, topic="Later")).msg_id == too.msg_id
            assert await until_stored(mq, "Later", 2) == [b"level", b"soon"]
            with pytest.raises(OrbitMQError):
                await producer.cancel(soon)
            with pytest.raises(BadRequest, match="which message to cancel is not said"):
                await producer.cancel(level.msg_id)

    run(main)


@pytest.mark.parametrize(
    ("arguments", "text", "hint"),
    [
        ({"body": "text"}, "the body is text, not bytes", "body.encode()"),
        ({"body": {"a": 1}}, "the body is dict, not bytes", "json.dumps"),
        ({"body": None}, "the body is NoneType, not bytes", "encode"),
        ({"body": b""}, "the body is empty", "at least one byte"),
        (
            {"body": b"x" * (4 * 1024 * 1024 + 1)},
            "the body has 4,194,305 bytes, allowed are 4,194,304",
            "split",
        ),
        ({"topic": 7}, "the topic is int, not text", '"orders"'),
        ({"topic": "no blanks"}, "contains illegal characters", "rename"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "belongs to the broker", "of your own"),
        ({"tag": "a||b"}, "'a||b' cannot be a tag", "'|'"),
        ({"tag": 5}, "the tag is int, not text", "tag="),
        ({"keys": ["two words"]}, "'two words' cannot be a key", "blanks"),
        ({"keys": [5]}, "a key is int, not text", "str(order_id)"),
        ({"properties": {"KEYS": "x"}}, "property 'KEYS' is reserved", "option"),
        ({"properties": {"n": 5}}, "property 'n' is int, not text", "str(value)"),
        ({"properties": {"n": ""}}, "empty name or value", "cannot be stored"),
        ({"properties": {"n": "a\x02b"}}, "separator byte", "remove"),
        ({"properties": {"n": "x" * 33000}}, "take more than", "into the body"),
        ({"order_key": 1.5}, "order_key is 1.5", "whole number"),
        ({"order_key": "a", "queue": ("broker-a", 0)}, "order_key and queue are given", "choose one"),
        ({"queue": 3}, "queue is 3", '("broker-a", 0)'),
        ({"deliver_after": 5, "delay_level": 1}, "deliver_after and delay_level are given", "choose one"),
        ({"deliver_at": datetime(2030, 1, 1)}, "deliver_at has no time zone", "UTC"),
        ({"deliver_after": -1}, "deliver_after is -1 s", "positive"),
        ({"delay_level": 0}, "delay_level is 0", "deliver_after"),
        ({"timeout": 0}, "timeout is 0 s", "positive"),
        ({"timeout": "1"}, "timeout is str, not a duration", "timeout="),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(
    server: ServerProcess, arguments: dict[str, Any], text: str, hint: str
) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            with pytest.raises(BadRequest) as caught:
                await mq.producer("shop").send(**{"topic": "Refused", "body": b"x", **arguments})
            assert text in str(caught.value)
            assert hint in caught.value.hint

    run(main)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"group": "no blanks"}, "illegal characters"),
        ({"group": 5}, "the producer group is int, not text"),
        ({"choice": "random"}, "choice is 'random'"),
        ({"compression": "gzip"}, "compression 'gzip' is not known"),
        ({"retries": -1}, "retries is -1"),
        ({"batch_bytes": 0}, "batch_bytes is 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        connect("127.0.0.1:1").producer(**{"group": "shop", **options})


def test_wrong_things_for_send_many(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("shop")
            with pytest.raises(BadRequest, match="send_many got one bytes, not many messages"):
                await producer.send_many("Wrong", b"body")
            for wrong in ([b"x", b""], [b"x", "text"], [Out(body=b"")], [b"x" * (4 << 20) + b"x"]):
                with pytest.raises(BadRequest, match="the body"):
                    await producer.send_many("Wrong", wrong)  # type: ignore[arg-type]
            with pytest.raises(BadRequest, match="retry topic"):
                await producer.send_many("%RETRY%g", [b"x"])

    run(main)


def test_closed_producers_and_clients_say_so(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            other = mq.producer("other")
            async with mq.producer("shop") as producer:
                await producer.send("Closing", b"1")
            await other.send("Closing", b"2")
            with pytest.raises(Closed, match="the producer of group 'shop' is closed") as caught:
                await producer.send("Closing", b"3")
            assert "mq.producer" in caught.value.hint
        for use in (
            other.send("Closing", b"4"),
            other.send_many("New", [b"5"]),
            other.cancel("id", "Closing"),
        ):
            with pytest.raises(Closed, match="the client is closed"):
                await use

    run(main)


def test_nobody_at_the_address(server: ServerProcess) -> None:
    async def main() -> None:
        nowhere = f"127.0.0.1:{free_port()}"
        async with connect(nowhere, timeout=1) as mq:
            with pytest.raises(Unreachable, match=f"could not connect to {nowhere}") as caught:
                await mq.producer("shop").send("T", b"x")
            assert "orbitmq server" in caught.value.hint
            assert caught.value.retryable

    run(main)


def test_an_unknown_topic_when_none_may_be_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def main() -> None:
        async with connect(strict.namesrv) as mq:
            with pytest.raises(NotFound, match="topic 'Unknown' does not exist") as caught:
                await mq.producer("shop").send("Unknown", b"x")
            assert "orbitmq topic create Unknown" in caught.value.hint
            with pytest.raises(NotFound):
                await mq.producer("shop").send_many("Unknown", [b"x"])

    directory = tmp_path_factory.mktemp("strict")
    with ServerProcess(directory, autoCreateTopicEnable=False, **SMALL) as strict:
        run(main)


def test_a_message_the_broker_refuses(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def main() -> None:
        async with connect(small.namesrv) as mq:
            producer = mq.producer("shop", compression=None, batch_bytes=60_000)
            await producer.send("Small", b"x")
            with pytest.raises(Refused, match="MESSAGE_ILLEGAL") as caught:
                await producer.send("Small", b"x" * 100_000)
            assert caught.value.hint
            with pytest.raises(PartlySent, match="1 of 3 messages were not stored") as partly:
                await producer.send_many("Small", [b"a", b"x" * 100_000, b"c"])
            stored_or_not = [receipt is not None for receipt in partly.value.receipts]
            assert stored_or_not == [True, False, True]
            assert not partly.value.retryable

    with ServerProcess(tmp_path_factory.mktemp("small"), maxMessageSize=65536, **SMALL) as small:
        run(main)
