"""A broker's place is taken by another process at another address: who sends and who consumes goes there by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orbitmq.client.client import Client, connect
from orbitmq.client.errors import NotFound, Refused, Unreachable
from orbitmq.net.connection import Connection
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from tests.client.live import SMALL, run
from tests.support.fake_servers import FakeServer, reply, silent
from tests.support.server_process import BrokerProcess, OrbitProcess, free_port

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
STORED = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "5"}
NOT_MASTER = reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark="not the master any more")
SLAVE_ADDR = "127.0.0.1:1"


class Group:
    """A name server and two processes of `broker-a`: which of them is master, the test says."""

    def __init__(self) -> None:
        nobody = fastjson.dumps({"brokerAddrTable": {}, "clusterAddrTable": {}})
        self.namesrv = FakeServer(
            {ROUTE: self._route, RequestCode.GET_BROKER_CLUSTER_INFO: reply(body=nobody)}
        )
        self.old = FakeServer(answers(reply(ext=STORED)))
        self.new = FakeServer(answers(reply(ext=STORED)))
        self.members: dict[int, str] | None = None

    def _route(self, conn: Connection, command: Command) -> Command:
        if self.members is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        brokers = [{"brokerAddrs": self.members, "brokerName": "broker-a", "cluster": "c"}]
        queues = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 2, "writeQueueNums": 2}
        return command.reply(body=fastjson.dumps({"brokerDatas": brokers, "queueDatas": [queues]}))

    def sends(self, server: FakeServer) -> list[Command]:
        return [*server.requests(SEND), *server.requests(BATCH)]

    async def later(self, members: dict[int, str]) -> None:
        """After so long that whoever tries three times and gives up has done so."""
        await asyncio.sleep(0.4)
        self.members = members


def answers(send: Any) -> dict[int, Any]:
    beats = dict.fromkeys((RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT), reply())
    return {**beats, SEND: send, BATCH: send}


@asynccontextmanager
async def group() -> AsyncIterator[tuple[Group, Client]]:
    made = Group()
    servers = (made.namesrv, made.old, made.new)
    for server in servers:
        await server.start()
    made.members = {0: made.old.addr, 1: SLAVE_ADDR}
    try:
        async with connect(made.namesrv.addr, timeout=10) as mq:
            yield made, mq
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


async def lose_the_place(made: Group, how: str) -> None:
    if how == "refuses":
        made.old.answers.update(answers(NOT_MASTER))
        return
    await made.old.stop()
    if how == "no master":
        made.members = {1: SLAVE_ADDR}
    elif how == "no route":
        made.members = None


@pytest.mark.parametrize("how", ["refuses", "gone", "no master", "no route"])
def test_sends_wait_for_the_next_master_within_their_time(how: str) -> None:
    async def main() -> None:
        async with group() as (made, mq):
            producer = mq.producer("shop", linger=0)
            await producer.send("TopicA", b"before")
            await lose_the_place(made, how)
            change = asyncio.create_task(made.later({0: made.new.addr, 1: SLAVE_ADDR}))
            started = time.monotonic()
            receipts = await asyncio.gather(
                *(producer.send("TopicA", b"%d" % n) for n in range(30)),
                producer.send_many("TopicA", [b"x"] * 10),
                _posted(producer.post("TopicA", b"posted")),
            )
            took = time.monotonic() - started
            await change
            assert len(receipts) == 32
            assert len(made.sends(made.new)) == 32
            assert 0.4 <= took < 3, "as soon as the new one is known"
            looks = len(made.namesrv.requests(ROUTE))
            assert looks < 10 + took / 0.1 * 3, "many that wait ask together"

    run(main)


async def _posted(posting: Any) -> Any:
    return await (await posting)


def test_every_try_carries_the_same_id() -> None:
    async def main() -> None:
        async with group() as (made, mq):
            producer = mq.producer("shop")
            await producer.send("TopicA", b"before")
            made.old.answers.update(answers(NOT_MASTER))
            change = asyncio.create_task(made.later({0: made.new.addr}))
            await producer.send("TopicA", b"x")
            await change
            (taken,) = made.sends(made.new)
            refused = [command for command in made.sends(made.old) if command.body == b"x"]
            assert len(refused) >= 2
            assert {command.ext["i"] for command in refused} == {taken.ext["i"]}

    run(main)


def test_who_must_not_be_retried_hears_at_once_and_the_next_goes_to_the_new_master() -> None:
    async def main() -> None:
        async with group() as (made, mq):
            producer, hasty = mq.producer("shop"), mq.producer("hasty", retries=0)
            await producer.send("TopicA", b"before", order_key="k")
            await hasty.send("TopicA", b"before")
            made.old.answers.update(answers(NOT_MASTER))
            made.members = {0: made.new.addr}
            started = time.monotonic()
            with pytest.raises(Refused, match="not the master"):
                await producer.send("TopicA", b"1", order_key="k")
            with pytest.raises(Refused, match="not the master"):
                await hasty.send("TopicA", b"1")
            assert time.monotonic() - started < 2
            async with asyncio.timeout(5):
                while not made.sends(made.new):
                    try:
                        await producer.send("TopicA", b"2", order_key="k")
                    except (Refused, Unreachable):
                        await asyncio.sleep(0.01)
            await hasty.send("TopicA", b"2")

    run(main)


def test_the_time_of_a_call_is_kept_when_nobody_takes_the_place() -> None:
    async def main() -> None:
        async with group() as (made, mq):
            producer = mq.producer("shop")
            await producer.send("TopicA", b"before")
            for how, error in (("refuses", Refused), ("no master", (Unreachable, NotFound))):
                await lose_the_place(made, how)
                started = time.monotonic()
                with pytest.raises(error):
                    await producer.send("TopicA", b"x", timeout=0.5)
                assert 0.3 < time.monotonic() - started < 3

    run(main)


def test_a_missing_permission_is_told_after_the_usual_tries() -> None:
    async def main() -> None:
        async with group() as (made, mq):
            made.old.answers.update(answers(reply(ResponseCode.NO_PERMISSION, remark="forbidden")))
            started = time.monotonic()
            with pytest.raises(Refused, match="forbidden"):
                await mq.producer("shop").send("TopicA", b"x")
            assert time.monotonic() - started < 3
            assert len(made.sends(made.old)) == 3

    run(main)


def test_nobody_waits_for_a_master_that_was_replaced() -> None:
    """It may be frozen: its connection lives and says nothing."""

    async def main() -> None:
        async with group() as (made, mq):
            producer = mq.producer("shop")
            await producer.send("TopicA", b"before")
            made.old.answers.update(answers(silent))
            waiting = asyncio.create_task(producer.send("TopicA", b"x", timeout=10))
            async with asyncio.timeout(5):
                while len(made.sends(made.old)) < 2:
                    await asyncio.sleep(0.01)
            made.members = {0: made.new.addr}
            started = time.monotonic()
            await mq.cluster.find_route("TopicA", refresh=True)
            await waiting
            assert time.monotonic() - started < 3
            assert len(made.sends(made.new)) == 1

    run(main)


def test_a_process_takes_over_and_traffic_goes_on(tmp_path: Path) -> None:
    port = free_port()
    namesrv = f"127.0.0.1:{port}"
    args = ["namesrv", "--port", str(port), "--data", str(tmp_path / "names")]
    processes: list[OrbitProcess] = [OrbitProcess(args, ready="OrbitMQ name server ready")]

    def broker() -> BrokerProcess:
        """On the same store each time, and at another address."""
        made = BrokerProcess(tmp_path, namesrv, "store", brokerName="broker-a", **SMALL)
        processes.append(made)
        return made

    async def main() -> None:
        old = await asyncio.to_thread(broker)
        async with connect(namesrv, timeout=10) as mq:
            producer = mq.producer("shop")
            await mq.admin.create_topic("Moves", queues=2)
            received: set[bytes] = set()
            stored: list[tuple[bytes, float]] = []
            over = asyncio.Event()

            async def consume() -> None:
                async with mq.consumer("movers", "Moves", start="first") as inbox:
                    async for message in inbox:
                        async with message:
                            received.add(message.body)

            async def produce() -> None:
                while not over.is_set():
                    body = b"%d" % len(stored)
                    await producer.send("Moves", body)  # an error here is the test's failure
                    stored.append((body, time.monotonic()))
                    await asyncio.sleep(0.002)

            consuming, producing = asyncio.create_task(consume()), asyncio.create_task(produce())
            try:
                async with asyncio.timeout(10):
                    while len(received) < 20:
                        await asyncio.sleep(0.01)
                old.kill()
                died = time.monotonic()
                await asyncio.to_thread(broker)
                there = time.monotonic()
                async with asyncio.timeout(10):
                    while stored[-1][1] < there:
                        await asyncio.sleep(0.01)
                first = next(at for _, at in stored if at > died)
                print(f"stored again {first - there:+.3f} s after the new broker said that it is ready")
                await asyncio.sleep(0.3)
                over.set()
                await producing
                async with asyncio.timeout(10):
                    while received != {body for body, _ in stored}:
                        await asyncio.sleep(0.01)
            finally:
                for task in (consuming, producing):
                    task.cancel()
                results = await asyncio.gather(consuming, producing, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError | None) for result in results), results

    try:
        run(main, limit_s=40)
    finally:
        for process in reversed(processes):
            if process.running:
                process.kill()
