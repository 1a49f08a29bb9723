"""`mq.admin` against a real broker: every wish once, and what is unknown stays unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from orbitmq.client.admin.groups import GroupProgress, QueueProgress
from orbitmq.client.client import Client, connect
from orbitmq.client.errors import BadRequest, Closed, NotFound
from orbitmq.client.lag import Lag, Unknown, lag_of
from orbitmq.client.sender import Receipt, Sender
from orbitmq.testing import Server
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import request

LIMIT_S = 15.0
TOPIC = "Orders"


def run(server: Server, work: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S), connect(server.namesrv) as mq:
            await work(mq)

    asyncio.run(bounded())


async def send(mq: Client, body: bytes, **options: Any) -> Receipt:
    sender = Sender(mq.cluster)
    return await sender.send(sender.prepare(TOPIC, body, **options), queue_id=0)


async def commit(mq: Client, server: Server, group: str, offset: int, queue_id: int = 0) -> None:
    fields = {
        "consumerGroup": group,
        "topic": TOPIC,
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    await mq.cluster.request(server.address, request(RequestCode.UPDATE_CONSUMER_OFFSET, fields))


async def give_up(mq: Client, server: Server, group: str, count: int) -> None:
    """Sends messages back that may not be retried: they are dead letters at once."""
    for message in server.sent(TOPIC)[:count]:
        fields = {
            "group": group,
            "offset": str(message.commit_log_offset),
            "delayLevel": "-1",
            "originMsgId": message.msg_id,
            "originTopic": TOPIC,
            "maxReconsumeTimes": "16",
        }
        await mq.cluster.request(server.address, request(RequestCode.CONSUMER_SEND_MSG_BACK, fields))


def test_topics_are_made_shown_grown_and_deleted(orbitmq_server: Server) -> None:
    async def work(mq: Client) -> None:
        admin = mq.admin
        await admin.create_topic(TOPIC, queues=2)
        assert await admin.topics() == [TOPIC]
        assert TOPIC in (everything := await admin.topics(internal=True)) and len(everything) > 1
        await send(mq, b"one")
        status = await admin.topic(TOPIC)
        assert (status.messages, len(status.queues), status.missing) == (1, 2, [])
        await admin.grow_topic(TOPIC, 4)
        assert len((await admin.route(TOPIC)).read_queues()) == 4
        await admin.delete_topic(TOPIC)
        assert await admin.topics() == []
        with pytest.raises(NotFound, match="does not exist") as caught:
            await admin.topic(TOPIC)
        assert "topic create" in caught.value.hint

    run(orbitmq_server, work)


def test_groups_are_made_shown_and_deleted(orbitmq_server: Server) -> None:
    async def work(mq: Client) -> None:
        admin = mq.admin
        await admin.create_group("billing", max_retries=3)
        assert await admin.groups() == ["billing"]
        assert len(await admin.groups(internal=True)) > 1
        kept = orbitmq_server.inspect(lambda broker: broker.groups.find("billing", 0).retry_max_times)
        assert kept == 3
        assert (await admin.members("billing")).members == []
        await admin.create_topic(TOPIC, queues=1)
        await commit(mq, orbitmq_server, "billing", 0)
        assert await admin.groups_of(TOPIC) == ["billing"]
        await admin.delete_group("billing")
        assert await admin.groups() == []

    run(orbitmq_server, work)


def test_lag_is_a_number_or_the_reason_why_there_is_none(orbitmq_server: Server) -> None:
    async def work(mq: Client) -> None:
        admin = mq.admin
        await admin.create_topic(TOPIC, queues=1)
        for number in range(5):
            await send(mq, b"%d" % number)
        await admin.create_group("billing")
        unknown = await admin.lag("billing")
        assert isinstance(unknown, Unknown)
        assert unknown.reason == "the group has not committed any offset yet"
        with pytest.raises(TypeError, match="unknown"):
            bool(unknown)
        await commit(mq, orbitmq_server, "billing", 2)
        lag = await admin.lag("billing", topic=TOPIC)
        assert isinstance(lag, Lag)
        assert (lag.messages, int(lag), [queue.lag for queue in lag.queues]) == (3, 3, [3])
        assert lag.last_acknowledged_at == orbitmq_server.sent(TOPIC)[1].stored_at

    run(orbitmq_server, work)


def test_lag_of_a_broker_that_did_not_answer_is_unknown() -> None:
    queue = QueueProgress(
        topic=TOPIC,
        broker="broker-a",
        queue_id=0,
        broker_offset=9,
        consumer_offset=None,
        lag=None,
        last_consumed_ms=None,
    )
    progress = GroupProgress(
        group="billing",
        lag=None,
        lag_unknown="no answer from broker-b",
        consume_tps=0.0,
        queues=[queue],
        missing=[],
    )
    assert lag_of(progress) == Unknown("no answer from broker-b", (queue,))


def test_a_reset_is_previewed_and_then_carried_out(orbitmq_server: Server) -> None:
    async def work(mq: Client) -> None:
        admin = mq.admin
        await admin.create_topic(TOPIC, queues=1)
        await admin.create_group("billing")
        await send(mq, b"early")
        middle = orbitmq_server.advance(hours=1)
        for number in range(3):
            await send(mq, b"%d" % number)
        await commit(mq, orbitmq_server, "billing", 4)

        async def offset() -> int | None:
            return (await admin.progress("billing", topic=TOPIC)).queues[0].consumer_offset

        plan = await admin.reset("billing", TOPIC, to=middle, preview=True)
        assert [(step.from_offset, step.to_offset, step.repeated) for step in plan.queues] == [(4, 1, 3)]
        assert not plan.applied
        assert await offset() == 4
        assert (await admin.apply(plan)).applied
        assert await offset() == 1
        for to, wanted in (("latest", 4), ("earliest", 0), (2, 2), (1000, 4)):
            done = await admin.reset("billing", TOPIC, to=to)
            assert (done.applied, await offset()) == (True, wanted)
        for wrong in ("first", -1, True):
            with pytest.raises(BadRequest, match="no place to reset"):
                await admin.reset("billing", TOPIC, to=wrong)
        with pytest.raises(NotFound, match="no broker knows a group 'nobody'"):
            await admin.reset("nobody", TOPIC, to="latest")

    run(orbitmq_server, work)


def test_messages_are_found_by_either_id_and_by_key(orbitmq_server: Server) -> None:
    async def work(mq: Client) -> None:
        admin = mq.admin
        await admin.create_topic(TOPIC, queues=1)
        first = await send(mq, b"first" * 1000, keys=["k1"], tag="paid", properties={"region": "eu"})
        await send(mq, b"second", keys=["k1", "k2"])
        for msg_id in (first.msg_id, first.offset_msg_id):
            found = await admin.message(TOPIC, msg_id)
            assert found.body == b"first" * 1000
            assert (found.tag, found.keys, found.properties["region"]) == ("paid", ["k1"], "eu")
            assert (found.msg_id, found.offset_msg_id) == (first.msg_id, first.offset_msg_id)
        assert [one.body for one in await admin.messages_by_key(TOPIC, "k2")] == [b"second"]
        assert len(await admin.messages_by_key(TOPIC, "k1")) == 2
        later = orbitmq_server.now() + timedelta(hours=1)
        assert await admin.messages_by_key(TOPIC, "k1", since=later) == []
        with pytest.raises(NotFound, match="has no message with the id nonsense"):
            await admin.message(TOPIC, "nonsense")
        with pytest.raises(NotFound):
            await admin.message("TBW102", first.offset_msg_id)

    run(orbitmq_server, work)


def test_dead_letters_are_listed_and_sent_again(orbitmq_server: Server) -> None:
    async def work(mq: Client) -> None:
        admin = mq.admin
        await admin.create_topic(TOPIC, queues=1)
        await admin.create_group("billing")
        for number in range(3):
            await send(mq, b"%d" % number, keys=[f"order-{number}"])
        await give_up(mq, orbitmq_server, "billing", 3)
        assert [(dead.group, dead.messages) for dead in await admin.dead_groups()] == [("billing", 3)]
        letters = [letter async for letter in admin.dead_letters("billing", key="order-1")]
        assert [(letter.message.body, letter.topic) for letter in letters] == [(b"1", TOPIC)]
        tried = await admin.redrive("billing", dry_run=True)
        assert (tried.total, tried.dry_run, len(orbitmq_server.sent(TOPIC))) == (3, True, 3)
        done = await admin.redrive("billing")
        assert (done.sent, done.failed) == (3, 0)
        assert [message.body for message in orbitmq_server.sent(TOPIC)] == [b"0", b"1", b"2"] * 2
        with pytest.raises(BadRequest, match="not a regular expression"):
            [letter async for letter in admin.dead_letters("billing", reason="(")]

    run(orbitmq_server, work)


def test_scheduled_messages_are_listed_and_cancelled(orbitmq_server: Server) -> None:
    async def work(mq: Client) -> None:
        admin = mq.admin
        await admin.create_topic(TOPIC, queues=1)
        due = orbitmq_server.now() + timedelta(hours=1)
        receipt = await send(mq, b"later", deliver_ms=round(due.timestamp() * 1000))
        assert len(orbitmq_server.waiting(TOPIC)) == 1
        listed = await admin.scheduled(topic=TOPIC)
        assert [(one.msg_id, one.topic) for one in listed.messages] == [(receipt.msg_id, TOPIC)]
        assert not (await admin.cancel(TOPIC, receipt.msg_id)).already
        orbitmq_server.advance(hours=2)
        assert orbitmq_server.sent(TOPIC) == []
        assert (await admin.open_transactions()).open == 0

    run(orbitmq_server, work)


def test_brokers_tell_their_figures(orbitmq_server: Server) -> None:
    async def work(mq: Client) -> None:
        [status] = await mq.admin.brokers()
        assert (status.broker, status.addr, status.problem) == ("broker-a", orbitmq_server.address, None)
        assert (await mq.admin.clusters()).clusters == {"DefaultCluster": ("broker-a",)}

    run(orbitmq_server, work)


def test_a_closed_client_administers_nothing(orbitmq_server: Server) -> None:
    async def work(mq: Client) -> None:
        admin = mq.admin
        await mq.close()
        with pytest.raises(Closed, match="closed") as caught:
            await admin.topics()
        assert "orbitmq.connect" in caught.value.hint

    run(orbitmq_server, work)
