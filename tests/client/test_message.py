"""The lazy message: the same as the plain decoder, settled once."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.errors import BadRequest, OrbitMQError
from orbitmq.client.message import DONE, Message
from orbitmq.wire.compression import Compression, compress
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, decode_record, encode_record
from orbitmq.wire.properties import encode_properties

TEXT = st.text("abcäöü123 ", min_size=1, max_size=8)


class Told:
    """An origin that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def finish(self, msg: Message) -> None:
        self.heard.append(("finish",))

    def retry(self, msg: Message, after_s: float | None, reason: str):  # type: ignore[no-untyped-def]
        self.heard.append(("retry", after_s, reason))
        return DONE

    def bury(self, msg: Message, reason: str):  # type: ignore[no-untyped-def]
        self.heard.append(("bury", reason))
        return DONE

    def release(self, msg: Message) -> None:
        self.heard.append(("release",))


def record(body: bytes = b"hello", **properties: str) -> bytes:
    return encode_record(topic="orders", body=body, properties=encode_properties(properties), queue_offset=7)


def made(origin: Told | None = None, **properties: str) -> Message:
    return Message(record(**properties), 0, "broker-a", origin)


@given(
    topic=st.text("abcDEF-", min_size=1, max_size=20),
    body=st.binary(max_size=300),
    properties=st.dictionaries(TEXT, TEXT, max_size=4),
    numbers=st.lists(st.integers(0, 2**31 - 1), min_size=5, max_size=5),
    born=st.sampled_from(["1.2.3.4:5", "[::1]:7"]),
    store=st.sampled_from(["10.0.0.1:10911", "[fe80::2]:10911"]),
    magic=st.sampled_from([MESSAGE_MAGIC, MESSAGE_MAGIC_V2]),
    before=st.binary(max_size=9),
)
def test_it_reads_what_the_plain_decoder_reads(
    topic: str,
    body: bytes,
    properties: dict[str, str],
    numbers: list[int],
    born: str,
    store: str,
    magic: int,
    before: bytes,
) -> None:
    queue_id, flag, offset, place, again = numbers
    buf = before + encode_record(
        topic=topic,
        body=body,
        properties=encode_properties(properties),
        queue_id=queue_id,
        flag=flag,
        queue_offset=offset,
        physical_offset=place,
        born_ms=offset,
        store_ms=place,
        born_host=born,
        store_host=store,
        reconsume_times=again,
        magic=magic,
    )
    plain = decode_record(buf, len(before))
    msg = Message(buf + b"more", len(before), "broker-a")
    assert (msg.topic, msg.body, msg.properties) == (plain.topic, plain.body, plain.properties)
    assert (msg.queue_id, msg.flag, msg.queue_offset) == (plain.queue_id, plain.flag, plain.queue_offset)
    assert (msg.commit_log_offset, msg.sys_flag) == (plain.physical_offset, plain.sys_flag)
    assert (msg.born_ms, msg.born_host) == (plain.born_ms, plain.born_host)
    assert (msg.store_ms, msg.store_host) == (plain.store_ms, plain.store_host)
    assert (msg.reconsume_times, msg.size) == (plain.reconsume_times, plain.size)
    assert (msg.msg_id, msg.offset_msg_id) == (plain.msg_id, plain.offset_msg_id)
    assert msg.record == buf[len(before) :]
    assert msg.queue == MessageQueue(topic, "broker-a", queue_id)
    assert msg.stored_at.tzinfo is UTC and round(msg.born_at.timestamp() * 1000) == plain.born_ms


def test_tag_keys_and_ids_come_from_the_properties() -> None:
    msg = made(TAGS="paid", KEYS="order-42 user-7", UNIQ_KEY="0A")
    assert (msg.tag, msg.keys, msg.msg_id) == ("paid", ["order-42", "user-7"], "0A")
    assert made().tag is None and made().keys == []


def test_a_retried_message_shows_the_topic_it_was_sent_to() -> None:
    buf = encode_record(topic="%RETRY%g", body=b"x", properties=encode_properties({"RETRY_TOPIC": "orders"}))
    msg = Message(buf, 0, "broker-a")
    assert (msg.topic, msg.stored_topic) == ("orders", "%RETRY%g")


def test_compressed_bodies_and_json() -> None:
    class Order(msgspec.Struct):
        number: int

    body = b'{"number": 42}' + b" " * 200
    buf = encode_record(topic="T", body=compress(body, Compression.ZSTD), sys_flag=Compression.ZSTD.sys_flag)
    msg = Message(buf, 0, "b")
    assert msg.body == body and msg.text.strip() == '{"number": 42}'
    assert msg.json() == {"number": 42} and msg.json(Order).number == 42


def test_damage_is_told_when_the_damaged_part_is_read() -> None:
    buf = bytearray(record())
    buf[90] ^= 1
    msg = Message(bytes(buf), 0, "broker-a")
    assert msg.topic == "orders"
    with pytest.raises(OrbitMQError, match="checksum of its body is wrong") as caught:
        _ = msg.body
    assert "store verify" in caught.value.hint
    short = bytearray(record())
    short[88 + 5] = 120  # the length of the topic
    with pytest.raises(OrbitMQError, match="offset 7 of queue 0 on broker-a is damaged"):
        _ = Message(bytes(short), 0, "broker-a").topic


def test_leaving_acknowledges_once() -> None:
    async def scenario() -> None:
        told = Told()
        msg = made(told)
        async with msg as same:
            assert same is msg and not msg.settled
        assert msg.settled and not msg.rejected
        msg.retry()
        await msg.ack()
        assert told.heard == [("finish",)]

    asyncio.run(scenario())


def test_an_exception_is_logged_and_has_the_message_retried(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        told = Told()
        msg = made(told)
        with caplog.at_level(logging.WARNING):
            async with msg:
                raise ValueError("no stock")
        assert msg.rejected
        assert told.heard == [("retry", None, "ValueError: no stock")]
        assert "failed for the 1. time" in caplog.text and "no stock" in caplog.text

    asyncio.run(scenario())


def test_a_decision_inside_the_block_counts_and_an_error_after_it_changes_nothing() -> None:
    async def scenario() -> None:
        told = Told()
        async with made(told) as msg:
            await msg.retry(after=timedelta(minutes=1), reason="later")
        async with made(told) as msg:
            msg.dead("no such order")
            raise ValueError("too late")
        assert told.heard == [("retry", 60.0, "later"), ("bury", "no such order")]

    asyncio.run(scenario())


def test_a_cancelled_handler_tells_nothing_about_its_message() -> None:
    async def scenario() -> None:
        told = Told()

        async def handle() -> None:
            async with made(told):
                await asyncio.sleep(60)

        task = asyncio.create_task(handle())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told.heard == [("release",)]

    asyncio.run(scenario())


def test_another_try_is_a_new_message_that_counts() -> None:
    msg = made(Told())
    msg.ack()
    again = msg.again(failed=True)
    assert not again.settled and again.reconsume_times == 1 and again.again(failed=True).reconsume_times == 2
    assert again.body == msg.body and again.origin is msg.origin


def test_a_message_read_without_a_group_cannot_be_settled() -> None:
    async def scenario() -> None:
        for settle in (Message.ack, Message.retry, Message.dead):
            with pytest.raises(BadRequest, match="read without a consumer group") as caught:
                settle(made())
            assert "client.consumer" in caught.value.hint
        with pytest.raises(BadRequest, match="cannot be handled in a block"):
            async with made():
                raise AssertionError("entered")

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [-1, timedelta(seconds=-1), float("nan"), "soon"])
def test_a_bad_delay_is_refused_and_settles_nothing(after: object) -> None:
    msg = made(Told())
    with pytest.raises(BadRequest, match="after"):
        msg.retry(after=after)  # type: ignore[arg-type]
    assert not msg.settled
