"""Consumers and servers that die, freeze and come back, in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

from orbitmq.client.client import connect
from orbitmq.client.message import Message
from tests.support.consuming import Crowd, run, send, until
from tests.support.server_process import BrokerProcess, OrbitProcess, ServerProcess, free_port

SMALL = {"mappedFileSizeCommitLog": 16 * 1024 * 1024}


def test_a_killed_broker_costs_no_message(tmp_path: Path) -> None:
    async def scenario(server: ServerProcess) -> None:
        crowd = Crowd(server.namesrv, "billing", "orders", start="first", commit_every=0.2)
        async with connect(server.namesrv) as mq:
            await send(mq, "orders", range(50))
            async with crowd.member("one"), crowd.member("two"):
                await until(lambda: len(set(crowd.bodies)) == 50)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                await send(mq, "orders", range(50, 100))
                await until(lambda: len(set(crowd.bodies)) == 100, "all are handled")
        counts = Counter(map(int, crowd.bodies))
        assert counts.keys() == set(range(100))

    with ServerProcess(tmp_path, **SMALL) as server:
        run(lambda: scenario(server), limit_s=30)


def test_consumption_goes_on_without_any_name_server(tmp_path: Path) -> None:
    port = free_port()
    namesrv_addr = f"127.0.0.1:{port}"
    args = ["namesrv", "--port", str(port), "--data", str(tmp_path / "ns")]

    async def scenario(namesrv: OrbitProcess) -> None:
        crowd = Crowd(namesrv_addr, "billing", "orders", start="first", rebalance_every=0.2)
        async with connect(namesrv_addr) as mq:
            await send(mq, "orders", range(10))
            async with crowd.member("one") as one:
                await crowd.settled(4)
                await until(lambda: len(crowd.handled) == 10)
                await asyncio.to_thread(namesrv.kill)
                await send(mq, "orders", range(10, 20))
                await until(lambda: len(crowd.handled) == 20)
                await asyncio.sleep(0.5)  # a few rebalances without a name server
                assert len([queue for queue in one.queues if queue.topic == "orders"]) == 4
                await send(mq, "orders", range(20, 30))
                await until(lambda: len(crowd.handled) == 30)
                await asyncio.to_thread(namesrv.start)
        assert sorted(map(int, crowd.bodies)) == list(range(30))

    with (
        OrbitProcess(args, ready="OrbitMQ name server ready") as namesrv,
        BrokerProcess(tmp_path, namesrv_addr, "broker-a", **SMALL),
    ):
        run(lambda: scenario(namesrv), limit_s=30)


def test_a_frozen_broker_holds_up_its_own_queues_only(tmp_path: Path) -> None:
    async def scenario(server: ServerProcess, other: BrokerProcess) -> None:
        crowd = Crowd(
            server.namesrv, "billing", "orders", start="first", commit_every=0.2, rebalance_every=0.5
        )
        async with connect(server.namesrv, timeout=1) as mq:
            await mq.admin.create_topic("orders", queues=2)
            await send(mq, "orders", range(20))
            async with crowd.member("one"):
                await until(lambda: len(set(crowd.bodies)) == 20)
                os.kill(other.pid, signal.SIGSTOP)
                try:
                    await send(mq, "orders", range(20, 40), broker="broker-a")
                    await until(lambda: len(set(crowd.bodies)) == 40, "the other broker's are handled")
                finally:
                    os.kill(other.pid, signal.SIGCONT)
                await until(lambda: sum(crowd.members["one"].positions().values()) >= 40)
        assert set(map(int, crowd.bodies)) >= set(range(40))

    with (
        ServerProcess(tmp_path, **SMALL) as server,
        BrokerProcess(tmp_path, server.namesrv, "broker-b", **SMALL) as other,
    ):
        run(lambda: scenario(server, other), limit_s=40)


def test_a_member_that_vanishes_is_replaced_and_its_messages_come_again(tmp_path: Path) -> None:
    """Its connection is cut without a goodbye, as a killed process does it."""

    async def scenario(server: ServerProcess) -> None:
        taken: list[str] = []
        entered = asyncio.Event()

        async def never(msg: Message) -> None:
            taken.append(msg.text)
            entered.set()
            await asyncio.sleep(60)

        crowd = Crowd(server.namesrv, "billing", "orders", start="first")
        async with connect(server.namesrv) as mq:
            await mq.admin.create_topic("orders", queues=4)
            lost = connect(server.namesrv)
            victim = await lost.consumer("billing", "orders", start="first", concurrency=4).start()
            running = asyncio.create_task(victim.run(never))
            await until(lambda: len(victim.queues) >= 4)
            await send(mq, "orders", range(12))
            await entered.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert victim._engine is not None
            await victim._engine.scope.aclose()
            await lost.scope.aclose()
            await lost.cluster.close()
            async with crowd.member("two"):
                await until(lambda: len(set(crowd.bodies)) == 12, "everything comes again")
        assert set(taken) <= set(crowd.bodies)

    with ServerProcess(tmp_path, **SMALL) as server:
        run(lambda: scenario(server), limit_s=30)
