"""Brokers that are killed, restarted, frozen, or all gone at once, under traffic."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import orbitmq
from tests.client.faults.traffic import Traffic
from tests.support.consuming import run, until
from tests.support.server_process import BrokerProcess, OrbitProcess, free_port

LIMIT_S = 40.0
SMALL: dict[str, str | int] = {"mappedFileSizeCommitLog": 16 << 20}


class Cluster:
    """A name server and two brokers, each in its own process."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        self.namesrv = f"127.0.0.1:{port}"
        args = ["namesrv", "--port", str(port), "--data", str(directory / "names")]
        self.names = OrbitProcess(args, ready="OrbitMQ name server ready")
        self.a = BrokerProcess(directory, self.namesrv, "broker-a", **SMALL)
        self.b = BrokerProcess(directory, self.namesrv, "broker-b", **SMALL)

    def stop(self) -> None:
        for process in (self.b, self.a, self.names):
            if process.running:
                process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("faults"))
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def frozen(broker: BrokerProcess) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


async def topic_on_both(mq: orbitmq.Client, name: str) -> str:
    await mq.admin.create_topic(name, queues=2)
    return name


async def until_routed(mq: orbitmq.Client, topic: str, broker: str) -> None:
    async with asyncio.timeout(10):
        while True:
            with suppress(orbitmq.NotFound):  # no broker at all has registered yet
                if broker in (await mq.admin.route(topic)).brokers:
                    return
            await asyncio.sleep(0.02)


def test_a_broker_is_killed_and_started_again(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with orbitmq.connect(cluster.namesrv) as mq:
            topic = await topic_on_both(mq, "killed")
            async with Traffic(mq, topic) as traffic:
                cluster.b.kill()
                await traffic.flows("with one broker left", broker="broker-a")
                await asyncio.to_thread(cluster.b.start)
                await until_routed(mq, topic, "broker-b")
                await mq.producer("fresh").send(topic, b"999999", queue=("broker-b", 0))
                duplicates = await traffic.check()
                assert set(traffic.acked.values()) == {"broker-a", "broker-b"}
                print(f"{len(traffic.acked)} stored, {duplicates} handled twice")

    run(scenario, limit_s=LIMIT_S)


def test_a_broker_is_restarted_in_good_order(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with orbitmq.connect(cluster.namesrv) as mq:
            topic = await topic_on_both(mq, "restarted")
            async with Traffic(mq, topic) as traffic:
                await asyncio.to_thread(cluster.b.restart)
                await traffic.flows("after the restart")
                duplicates = await traffic.check()
                print(f"{len(traffic.acked)} stored, {duplicates} handled twice")

    run(scenario, limit_s=LIMIT_S)


def test_a_frozen_broker_holds_up_neither_sends_nor_handlers(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with orbitmq.connect(cluster.namesrv) as mq:
            topic = await topic_on_both(mq, "frozen")
            async with Traffic(mq, topic) as traffic:
                with frozen(cluster.b):
                    await traffic.flows("with one broker frozen", 300, broker="broker-a")
                    # Progress of the frozen broker's queues cannot be saved now; that must not hold up the others.
                    await traffic.flows("with one broker frozen for longer", 300, broker="broker-a")
                duplicates = await traffic.check()
                print(f"{len(traffic.acked)} stored, {duplicates} handled twice")

    run(scenario, limit_s=LIMIT_S)


def test_closing_is_bounded_while_a_broker_is_frozen(cluster: Cluster) -> None:
    async def scenario() -> None:
        mq = await orbitmq.connect(cluster.namesrv, timeout=1)
        try:
            topic = await topic_on_both(mq, "closing")
            async with Traffic(mq, topic) as traffic:
                await traffic.check()
            with frozen(cluster.b):
                began = time.monotonic()
                await mq.close()
                assert time.monotonic() - began < 8
        finally:
            await mq.close()

    run(scenario, limit_s=LIMIT_S)


def test_everything_resumes_when_all_brokers_were_gone(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with orbitmq.connect(cluster.namesrv) as mq:
            topic = await topic_on_both(mq, "gone")
            async with Traffic(mq, topic) as traffic:
                cluster.a.kill()
                cluster.b.kill()
                failures = traffic.failures
                await traffic.fails(8)
                assert all(isinstance(error, orbitmq.Unreachable | orbitmq.NotFound) for error in failures)
                await asyncio.gather(asyncio.to_thread(cluster.a.start), asyncio.to_thread(cluster.b.start))
                await traffic.flows("after both brokers came back")
                duplicates = await traffic.check(failures_allowed=True)
                print(
                    f"{len(traffic.acked)} stored, {len(failures)} sends failed, {duplicates} handled twice"
                )

    run(scenario, limit_s=LIMIT_S)


def test_without_any_name_server_traffic_goes_on(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with orbitmq.connect(cluster.namesrv) as mq:
            topic = await topic_on_both(mq, "nameless")
            async with Traffic(mq, topic) as traffic:
                cluster.names.kill()
                await mq.routes.refresh(topic)  # as it happens every 30 s: the last known route stays
                await traffic.flows("without a name server", 300)
                async with orbitmq.connect(cluster.namesrv, timeout=1) as newcomer:
                    with pytest.raises(orbitmq.Unreachable, match="no name server answers") as caught:
                        await newcomer.producer("newcomers").send(topic, b"x")
                    assert cluster.namesrv in str(caught.value) + caught.value.hint
                await asyncio.to_thread(cluster.names.start)
                await traffic.flows("with a name server again")
                duplicates = await traffic.check()
                assert duplicates == 0, "nothing was wrong with brokers and members"

    run(scenario, limit_s=LIMIT_S)


def test_a_broker_that_registers_late_at_a_new_name_server_is_found_soon(cluster: Cluster) -> None:
    """A name server that has just started is told of brokers one after the other, and clients may ask in between."""

    async def scenario() -> None:
        async with orbitmq.connect(cluster.namesrv) as mq:
            topic = await topic_on_both(mq, "late")
            await mq.producer("early").send(topic, b"on the late broker", queue=("broker-b", 0))
        async with orbitmq.connect(cluster.namesrv) as mq:
            with frozen(cluster.b):
                cluster.names.kill()
                await asyncio.to_thread(cluster.names.start)
                await until_routed(mq, topic, "broker-a")
                inbox = mq.consumer("late-group", topic, start="first")
                await inbox.start()
                await until(lambda: {queue.broker_name for queue in inbox.queues} == {"broker-a"})
            # A client that only asks every 30 s would find the rest after half a minute.
            async with asyncio.timeout(15):
                async for msg in inbox:
                    assert msg.text == "on the late broker"
                    break

    run(scenario, limit_s=LIMIT_S)
