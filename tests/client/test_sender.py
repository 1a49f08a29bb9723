"""Sending: what is on the wire, which queue is taken, what a failure leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError, Refused, Unreachable
from orbitmq.client.sender import Sender
from orbitmq.net.connection import Connection
from orbitmq.wire.codes import RequestCode, ResponseCode, SysFlag
from orbitmq.wire.command import Command
from orbitmq.wire.compression import decompress
from orbitmq.wire.properties import decode_properties
from tests.support.fake_servers import FakeCluster, fake_cluster, reply, silent

SEND = RequestCode.SEND_MESSAGE_V2


def stored(conn: Connection, command: Command) -> Command:
    return command.reply(ext={"msgId": "0A" * 16, "queueId": command.ext["e"], "queueOffset": "7"})


def failing(code: int) -> dict[int, Any]:
    return {SEND: reply(code, remark="no")}


def with_sender(
    work: Callable[[Sender, FakeCluster], Awaitable[None]],
    *brokers: dict[int, Any],
    timeout_s: float = 3,
    **options: Any,
) -> None:
    async def scenario() -> None:
        async with (
            fake_cluster(*brokers) as fake,
            Cluster(fake.namesrv.addr, timeout_s=timeout_s, clock=lambda: 1_700_000_000_000) as cluster,
        ):
            await work(Sender(cluster, **options), fake)

    asyncio.run(scenario())


def test_a_message_travels_with_everything_it_was_given() -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        message = sender.prepare(
            "TopicA", b"hi", tag="TagA", keys=["k1", "k2"], properties={"region": "eu"}, delay_level=3, flag=9
        )
        receipt = await sender.send(message)
        (sent,) = fake.brokers["broker-a"].requests(SEND)
        properties = decode_properties(sent.ext["i"])
        assert sent.body == b"hi"
        assert (sent.ext["a"], sent.ext["b"], sent.ext["h"]) == ("orbitmq-client", "TopicA", "9")
        assert (sent.ext["f"], sent.ext["g"]) == ("0", "1700000000000")
        assert properties == {
            "TAGS": "TagA",
            "KEYS": "k1 k2",
            "region": "eu",
            "DELAY": "3",
            "WAIT": "true",
            "UNIQ_KEY": message.msg_id,
        }
        assert receipt.status == "SEND_OK"
        assert (receipt.msg_id, receipt.offset_msg_id) == (message.msg_id, "0A" * 16)
        assert (receipt.broker, receipt.queue_offset) == ("broker-a", 7)
        assert str(receipt.queue_id) == sent.ext["e"]

    with_sender(work, {SEND: stored})


def test_queues_take_turns_over_all_brokers() -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        for _ in range(8):
            await sender.send(sender.prepare("TopicA", b"x"))
        for broker in fake.brokers.values():
            assert sorted(sent.ext["e"] for sent in broker.requests(SEND)) == ["0", "1", "2", "3"]

    with_sender(work, {SEND: stored}, {SEND: stored})


@pytest.mark.parametrize(
    "code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION]
)
def test_another_broker_is_tried_with_the_same_id(code: ResponseCode) -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        for _ in range(4):
            message = sender.prepare("TopicA", b"x")
            receipt = await sender.send(message)
            assert receipt.broker == "broker-b"
            assert (
                decode_properties(fake.brokers["broker-b"].requests(SEND)[-1].ext["i"])["UNIQ_KEY"]
                == message.msg_id
            )

    with_sender(work, failing(code), {SEND: stored})


def test_a_message_that_no_broker_can_take_is_tried_once() -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        with pytest.raises(Refused) as caught:
            await sender.send(sender.prepare("TopicA", b"x"))
        assert caught.value.code == ResponseCode.MESSAGE_ILLEGAL
        assert sum(len(broker.requests(SEND)) for broker in fake.brokers.values()) == 1

    with_sender(work, failing(ResponseCode.MESSAGE_ILLEGAL), failing(ResponseCode.MESSAGE_ILLEGAL))


def test_a_dead_broker_costs_a_retry_not_the_message() -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        await fake.brokers["broker-a"].stop()
        for _ in range(4):
            assert (await sender.send(sender.prepare("TopicA", b"x"))).broker == "broker-b"

    with_sender(work, {SEND: stored}, {SEND: stored})


def test_a_fixed_queue_is_never_left() -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        message = sender.prepare("TopicA", b"x")
        with pytest.raises(OrbitMQError):
            await sender.send(message, queue_id=2, broker="broker-a")
        assert [sent.ext["e"] for sent in fake.brokers["broker-a"].requests(SEND)] == ["2"]
        assert not fake.brokers["broker-b"].requests(SEND)
        with pytest.raises(NotFound, match="no queue 9"):
            await sender.send(message, queue_id=9)

    with_sender(work, failing(ResponseCode.SYSTEM_BUSY), {SEND: stored})


def test_a_silent_broker_ends_in_time_and_says_the_message_may_be_stored() -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        with pytest.raises(Unreachable) as caught:
            await asyncio.wait_for(sender.send(sender.prepare("TopicA", b"x")), 2)
        assert caught.value.maybe_processed

    with_sender(work, {SEND: silent}, timeout_s=0.3)


@pytest.mark.parametrize(
    ("code", "status"), [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")]
)
def test_stored_but_less_safe_is_a_receipt_not_an_error(code: int, status: str) -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        assert (await sender.send(sender.prepare("TopicA", b"x"))).status == status

    ext = {"msgId": "00", "queueId": "0", "queueOffset": "1"}
    with_sender(work, {SEND: reply(code, ext=ext)})


def test_oneway_is_marked_and_not_waited_for() -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        await sender.send_oneway(sender.prepare("TopicA", b"x"))
        async with asyncio.timeout(2):
            while not fake.brokers["broker-a"].requests(SEND):
                await asyncio.sleep(0.01)
        assert fake.brokers["broker-a"].requests(SEND)[0].is_oneway

    with_sender(work, {SEND: silent})


def test_big_bodies_are_compressed_when_that_helps() -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        packed = sender.prepare("TopicA", b"a" * 5000)
        assert packed.sys_flag & SysFlag.COMPRESSED
        assert decompress(packed.body, packed.sys_flag) == b"a" * 5000
        small = sender.prepare("TopicA", b"a" * 4095)
        assert (small.sys_flag, small.body) == (0, b"a" * 4095)

    with_sender(work, {SEND: stored})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"topic": "bad topic"}, "illegal characters"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "belongs to the broker"),
        ({"body": b""}, "empty"),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, "allowed are"),
        ({"properties": {"TAGS": "x"}}, "reserved"),
        ({"properties": {"p": ""}}, "empty"),
        ({"properties": {"p": "a\x02b"}}, "separator"),
        ({"properties": {"p": "x" * 40_000}}, "allowed are"),
    ],
)
def test_what_could_never_be_stored_is_refused_before_it_is_sent(
    arguments: dict[str, Any], reason: str
) -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        with pytest.raises(BadRequest, match=reason):
            sender.prepare(**{"topic": "TopicA", "body": b"x", **arguments})

    with_sender(work, {SEND: stored})


def test_a_bad_producer_group_is_refused() -> None:
    async def work(sender: Sender, fake: FakeCluster) -> None:
        with pytest.raises(BadRequest):
            Sender(sender.cluster, "no good")

    with_sender(work, {SEND: stored})
