"""Brokers that refuse, are silent, slow, gone or frozen: what a producer makes of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orbitmq.client.client import connect
from orbitmq.client.errors import NotFound, Refused, Unreachable
from orbitmq.net.connection import Connection
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from tests.client.live import SMALL, bodies, run
from tests.support.fake_servers import FakeCluster, fake_cluster, reply, silent
from tests.support.server_process import BrokerProcess, OrbitProcess, ServerProcess, free_port

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
STORED = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "5"}
BEATS: dict[int, Any] = {RequestCode.HEART_BEAT: reply(), RequestCode.UNREGISTER_CLIENT: reply()}


def answers(send: Any, **more: Any) -> dict[int, Any]:
    return {**BEATS, SEND: send, BATCH: send, **more}


def counts(fake: FakeCluster, code: int = SEND) -> list[int]:
    return [len(broker.requests(code)) for broker in fake.brokers.values()]


GOOD = answers(reply(ext=STORED))


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
def test_a_refusal_of_the_list_is_tried_on_another_broker_with_the_same_id(code: int) -> None:
    async def main() -> None:
        async with (
            fake_cluster(answers(reply(code, remark="no")), GOOD) as fake,
            connect(fake.namesrv.addr) as mq,
        ):
            producer = mq.producer("shop")
            for _ in range(8):
                assert (await producer.send("TopicA", b"x")).broker == "broker-b"
            refused, taken = counts(fake)
            assert refused >= 1 and taken == 8
            first = fake.brokers["broker-a"].requests(SEND)[0].ext["i"]
            assert first in [command.ext["i"] for command in fake.brokers["broker-b"].requests(SEND)]

    run(main)


@pytest.mark.parametrize("code", [3, 13, 215])
def test_other_refusals_are_raised_at_once(code: int) -> None:
    async def main() -> None:
        refusing = answers(reply(code, remark="because"))
        async with fake_cluster(refusing, refusing) as fake, connect(fake.namesrv.addr) as mq:
            with pytest.raises(Refused, match="because") as caught:
                await mq.producer("shop").send("TopicA", b"x")
            assert caught.value.code == code
            assert sum(counts(fake)) == 1

    run(main)


def test_first_sends_share_one_look_up_and_later_ones_make_none() -> None:
    async def main() -> None:
        async with fake_cluster(GOOD) as fake, connect(fake.namesrv.addr) as mq:
            producer = mq.producer("shop")
            await asyncio.gather(*(producer.send("TopicA", b"x") for _ in range(64)))
            await producer.send_many("TopicA", [b"x"] * 10)
            assert len(fake.namesrv.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1

    run(main)


def test_three_tries_and_then_the_last_error_which_names_them() -> None:
    async def main() -> None:
        refusing = answers(reply(ResponseCode.SYSTEM_ERROR, remark="broken"))
        async with fake_cluster(refusing, refusing) as fake, connect(fake.namesrv.addr) as mq:
            with pytest.raises(Refused, match="broken") as caught:
                await mq.producer("shop").send("TopicA", b"x")
            assert sum(counts(fake)) == 3
            assert min(counts(fake)) == 1
            assert "tried 3 times: broker-" in caught.value.__notes__[0]
            with pytest.raises(Refused):
                await mq.producer("shop", retries=0).send("TopicA", b"x")
            assert sum(counts(fake)) == 4

    run(main)


def test_ordered_and_named_queues_are_never_retried() -> None:
    async def main() -> None:
        refusing = answers(reply(ResponseCode.SYSTEM_BUSY, remark="busy"))
        async with fake_cluster(refusing, refusing) as fake, connect(fake.namesrv.addr) as mq:
            producer = mq.producer("shop")
            for options in ({"order_key": "k"}, {"queue": ("broker-a", 1)}):
                before = sum(counts(fake))
                with pytest.raises(Refused, match="busy"):
                    await producer.send("TopicA", b"x", **options)  # type: ignore[arg-type]
                assert sum(counts(fake)) == before + 1

    run(main)


def test_stored_less_safely_is_a_receipt_unless_another_broker_shall_do_better() -> None:
    async def main() -> None:
        weak = answers(reply(ResponseCode.FLUSH_DISK_TIMEOUT, ext=STORED))
        async with fake_cluster(weak, GOOD) as fake, connect(fake.namesrv.addr) as mq:
            receipts = [await mq.producer("shop").send("TopicA", b"x") for _ in range(8)]
            weaker = next(receipt for receipt in receipts if receipt.broker == "broker-a")
            assert (weaker.status, weaker.ok) == ("FLUSH_DISK_TIMEOUT", False)
            assert "its disk had not confirmed in time" in weaker.durable
            careful = mq.producer("shop", retry_not_stored=True)
            for _ in range(8):
                assert (await careful.send("TopicA", b"x")).status == "SEND_OK"
        async with fake_cluster(weak, weak) as fake, connect(fake.namesrv.addr) as mq:
            careful = mq.producer("shop", retry_not_stored=True)
            assert (await careful.send("TopicA", b"x")).status == "FLUSH_DISK_TIMEOUT"
            assert sum(counts(fake)) == 3

    run(main)


def test_a_silent_broker_costs_one_share_of_the_time_and_is_left_alone_then() -> None:
    async def main() -> None:
        async with fake_cluster(answers(silent), GOOD) as fake, connect(fake.namesrv.addr, timeout=3) as mq:
            producer = mq.producer("shop")
            start = time.monotonic()
            receipts = await asyncio.gather(*(producer.send("TopicA", b"x") for _ in range(8)))
            assert {receipt.broker for receipt in receipts} == {"broker-b"}
            assert 0.9 < time.monotonic() - start < 3
            asked = counts(fake)[0]
            start = time.monotonic()
            for _ in range(20):
                await producer.send("TopicA", b"x")
            assert counts(fake)[0] == asked
            assert time.monotonic() - start < 0.9

    run(main)


def test_an_expired_timeout_says_what_is_not_known() -> None:
    async def main() -> None:
        async with fake_cluster(answers(silent)) as fake, connect(fake.namesrv.addr) as mq:
            producer = mq.producer("shop")
            start = time.monotonic()
            with pytest.raises(Unreachable, match="did not answer SEND_MESSAGE_V2 within") as caught:
                await producer.send("TopicA", b"x", timeout=0.1)
            assert 0.09 < time.monotonic() - start < 2.5
            assert caught.value.maybe_processed and caught.value.retryable
            assert "may have been processed" in caught.value.hint

    run(main)


def test_a_late_answer_of_a_slow_broker_isolates_it() -> None:
    async def slowly(conn: Connection, command: Command) -> Command:
        await asyncio.sleep(0.6)
        return command.reply(ext=STORED)

    async def main() -> None:
        async with fake_cluster(answers(slowly), GOOD) as fake, connect(fake.namesrv.addr) as mq:
            producer = mq.producer("shop")
            await asyncio.gather(*(producer.send("TopicA", b"x") for _ in range(8)))
            asked = counts(fake)[0]
            assert asked > 0
            for _ in range(10):
                await producer.send("TopicA", b"x")
            assert counts(fake)[0] == asked

    run(main)


def test_the_quickest_broker_gets_most() -> None:
    async def slowly(conn: Connection, command: Command) -> Command:
        await asyncio.sleep(0.05)
        return command.reply(ext=STORED)

    async def main() -> None:
        async with fake_cluster(answers(slowly), GOOD) as fake, connect(fake.namesrv.addr) as mq:
            producer = mq.producer("shop", choice="least_latency")
            for _ in range(60):
                await producer.send("TopicA", b"x")
            slow, quick = counts(fake)
            assert 1 <= slow <= 5 and quick >= 55

    run(main)


def test_posted_messages_are_tried_again_on_the_same_broker() -> None:
    broken: list[int] = []

    def hang_up_once(conn: Connection, command: Command) -> Command | None:
        if not broken:
            broken.append(1)
            conn.close()
            return None
        return command.reply(ext=STORED)

    async def main() -> None:
        both = answers(hang_up_once)
        async with fake_cluster(both, both) as fake, connect(fake.namesrv.addr) as mq:
            future = await mq.producer("shop", linger=0).post("TopicA", b"x")
            receipt = await future
            assert sorted(counts(fake, BATCH)) == [0, 2]
            assert fake.brokers[receipt.broker].requests(BATCH)
        refusing = answers(reply(ResponseCode.SYSTEM_BUSY, remark="busy"))
        async with fake_cluster(refusing, refusing) as fake, connect(fake.namesrv.addr) as mq:
            future = await mq.producer("shop", linger=0).post("TopicA", b"x")
            with pytest.raises(Refused, match="busy"):
                await future
            assert sum(counts(fake, BATCH)) == 1

    run(main)


def test_a_topic_without_a_writable_queue() -> None:
    async def main() -> None:
        async with fake_cluster(GOOD, queues=0) as fake, connect(fake.namesrv.addr) as mq:
            for options in ({}, {"order_key": "k"}, {"queue": ("broker-a", 0)}):
                with pytest.raises(NotFound, match="topic 'TopicA' has no writable queue") as caught:
                    await mq.producer("shop").send("TopicA", b"x", **options)  # type: ignore[arg-type]
                assert "orbitmq topic route TopicA" in caught.value.hint

    run(main)


def test_a_cancelled_send_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with fake_cluster(answers(silent)) as fake, connect(fake.namesrv.addr) as mq:
            producer = mq.producer("shop")
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(producer.send("TopicA", b"x", timeout=5), 0.05)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(producer.send_many("TopicA", [b"x"], timeout=5), 0.05)

    run(main)


class Pair:
    """A name server and two brokers, each in its own process."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.namesrv = f"127.0.0.1:{self.port}"
        self.names = OrbitProcess(["namesrv", "--port", str(self.port)], ready="OrbitMQ name server ready")
        self.a = BrokerProcess(directory, self.namesrv, "broker-a", **SMALL)
        self.b = BrokerProcess(directory, self.namesrv, "broker-b", **SMALL)

    def stop(self) -> None:
        for process in (self.b, self.a, self.names):
            process.kill()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"))
    yield made
    made.stop()


def test_sends_go_on_while_a_broker_is_frozen_killed_and_started_again(pair: Pair) -> None:
    async def main() -> None:
        async with connect(pair.namesrv, timeout=6) as mq:
            producer = mq.producer("shop")
            await mq.admin.create_topic("Faults", queues=2)
            sent: list[bytes] = []

            async def send(count: int) -> Counter[str]:
                wanted = [b"%d" % (len(sent) + at) for at in range(count)]
                sent.extend(wanted)
                receipts = await asyncio.gather(*(producer.send("Faults", body) for body in wanted))
                return Counter(receipt.broker for receipt in receipts)

            assert set(await send(20)) == {"broker-a", "broker-b"}
            os.kill(pair.b.pid, signal.SIGSTOP)
            try:
                assert set(await send(20)) == {"broker-a"}
                start = time.monotonic()
                assert set(await send(200)) == {"broker-a"}
                assert time.monotonic() - start < 1.9
            finally:
                os.kill(pair.b.pid, signal.SIGCONT)
            pair.a.kill()
            producer.delivery.faults.note("broker-b", 0.001, 0.0)  # its isolation would end in some seconds
            assert set(await send(20)) == {"broker-b"}
            pair.a.start()
            # At least once: what the frozen broker had in its buffer is stored twice, nothing is missing.
            assert set(await bodies(mq, "Faults")) == set(sent)

    run(main, limit_s=30)


def test_sends_go_on_without_any_name_server(pair: Pair) -> None:
    async def main() -> None:
        async with connect(pair.namesrv, timeout=1) as mq:
            producer = mq.producer("shop")
            await producer.send("NoNames", b"1")
            pair.names.kill()
            for at in range(2, 12):
                await producer.send("NoNames", b"%d" % at)
            with pytest.raises(Unreachable, match="no name server answers"):
                await producer.send("Other", b"x")
            pair.names.start()
            while True:
                try:
                    await producer.send("Other", b"x")
                    break
                except (Unreachable, NotFound):
                    await asyncio.sleep(0.1)  # until the brokers have registered again

    run(main, limit_s=60)


def test_sends_resume_after_everything_was_killed_and_started_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with connect(server.namesrv, timeout=0.5) as mq:
            producer = mq.producer("shop")
            await producer.send("Again", b"before")
            await asyncio.sleep(0.2)  # the new topic has reached the broker's disk
            server.kill()
            with pytest.raises(Unreachable) as caught:
                await producer.send("Again", b"lost")
            assert caught.value.retryable
            server.start()
            while True:
                try:
                    await producer.send("Again", b"after")
                    break
                except (Unreachable, NotFound) as error:
                    assert error.retryable, error
                    await asyncio.sleep(0.05)
            assert await bodies(mq, "Again") == [b"after", b"before"]

    with ServerProcess(tmp_path, **SMALL) as server:
        run(main, limit_s=30)
