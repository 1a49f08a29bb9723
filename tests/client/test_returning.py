"""Giving messages back when the broker does not take them: a copy by ourselves, then another try here."""

from __future__ import annotations

import asyncio
from random import Random

from orbitmq.client.client import connect
from orbitmq.client.cluster import Cluster
from orbitmq.client.core.process_queue import Limits
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.holding import Holding, Shared, Tally
from orbitmq.client.inbox import Inbox
from orbitmq.client.message import Message
from orbitmq.client.returning import Returner
from orbitmq.client.scope import Scope
from orbitmq.testing import Server
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import encode_record
from orbitmq.wire.properties import decode_properties, encode_properties
from tests.support.consuming import run, send, until
from tests.support.fake_servers import fake_cluster, reply

SENT = reply(ext={"msgId": "X", "queueId": "0", "queueOffset": "1"})
BUSY = reply(ResponseCode.SYSTEM_ERROR, remark="look message by offset failed")


def failed_message(reconsumed: int = 1) -> Message:
    buf = encode_record(
        topic="TopicA",
        body=b"bad",
        properties=encode_properties({"TAGS": "t", "UNIQ_KEY": "U", "user": "1"}),
        physical_offset=4711,
        reconsume_times=reconsumed,
    )
    return Message(buf, 0, "broker-a")


def test_the_broker_is_asked_first_with_level_reason_and_limit() -> None:
    async def scenario() -> None:
        async with fake_cluster({RequestCode.CONSUMER_SEND_MSG_BACK: reply()}) as fake:
            async with Cluster(fake.namesrv.addr) as cluster:
                await Returner(cluster, "g", max_retries=5).give_back(failed_message(), 7, "no stock")
            (asked,) = fake.brokers["broker-a"].requests(RequestCode.CONSUMER_SEND_MSG_BACK)
            assert asked.ext["offset"] == "4711" and asked.ext["group"] == "g"
            assert asked.ext["delayLevel"] == "7" and asked.ext["maxReconsumeTimes"] == "5"
            assert asked.ext["originMsgId"] == "U" and asked.ext["failureReason"] == "no stock"

    run(scenario)


def test_a_refused_message_is_stored_for_retry_by_ourselves_on_any_broker() -> None:
    async def scenario() -> None:
        refusing = {RequestCode.CONSUMER_SEND_MSG_BACK: BUSY, RequestCode.SEND_MESSAGE_V2: BUSY}
        taking = {RequestCode.SEND_MESSAGE_V2: SENT}
        async with (
            fake_cluster(refusing, taking, topics=("TopicA", "%RETRY%g"), queues=1) as fake,
            Cluster(fake.namesrv.addr, rng=Random(1)) as cluster,
        ):
            await Returner(cluster, "g").give_back(failed_message(), 0, "")
            await Returner(cluster, "g").give_back(failed_message(), -1, "")
            retried, buried = fake.brokers["broker-b"].requests(RequestCode.SEND_MESSAGE_V2)
        properties = decode_properties(retried.ext["i"])
        assert retried.ext["b"] == "%RETRY%g" and retried.body == b"bad"
        assert (retried.ext["j"], retried.ext["l"]) == ("2", "16")
        assert properties["RETRY_TOPIC"] == "TopicA" and properties["UNIQ_KEY"] == "U"
        assert (properties["RECONSUME_TIME"], properties["MAX_RECONSUME_TIMES"]) == ("2", "16")
        assert properties["DELAY"] == "4" and properties["user"] == "1"
        # A full count of tries makes the broker put it among the dead letters.
        assert buried.ext["j"] == "16"

    run(scenario)


def test_a_broker_that_is_away_does_not_lose_the_message() -> None:
    async def scenario() -> None:
        failures = 2

        class Away:
            async def give_back(self, msg: Message, level: int, reason: str) -> None:
                nonlocal failures
                if failures:
                    failures -= 1
                    raise OrbitMQError("nobody is there")

        scope = Scope("test")
        inbox = Inbox()
        shared = Shared(Limits(), inbox, scope, Away(), Tally(), local_retry_s=0.01)
        holding = Holding(MessageQueue("TopicA", "broker-a", 0), 0, shared)
        buf = encode_record(topic="TopicA", body=b"bad", queue_offset=0)
        holding.unfinished.add([0], [len(buf)], 1)
        inbox.put(holding, buf, [0])
        tries = []
        for _ in range(3):
            msg = await anext(inbox)
            tries.append(msg.reconsume_times)
            assert holding.unfinished.commit_offset == 0
            await msg.retry()
        assert tries == [0, 1, 2] and holding.unfinished.commit_offset == 1
        assert shared.tally.failed == 3 and shared.tally.returned == 1
        await scope.aclose()

    run(scenario)


def test_the_copy_really_comes_again_and_is_buried_by_a_real_broker(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", ["one", "two"], queue_id=0)
            async with mq.consumer("billing", "orders") as inbox:
                first, second = await anext(inbox), await anext(inbox)
                await until(lambda: mq.cluster.routes.stale("%RETRY%billing") is not None)
                returner = Returner(mq.cluster, "billing", max_retries=3)
                await returner._to_any_broker(first, 0)
                await returner._to_any_broker(second, -1)
                first.ack(), second.ack()
                await asyncio.to_thread(orbitmq_server.advance, minutes=1)
                again = await anext(inbox)
                assert (again.text, again.topic, again.reconsume_times) == ("one", "orders", 1)
                again.ack()
                await until(lambda: [msg.body for msg in orbitmq_server.dead("billing")] == [b"two"])

    run(scenario)
