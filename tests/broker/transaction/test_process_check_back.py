"""Open transactions of a real broker: asked for over deaths of producers and broker, shown by the tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.broker.transaction.producer import COMMIT, ROLLBACK, UNKNOWN, Producer
from tests.support.commands import Commands
from tests.support.raw_client import RawClient
from tests.support.server_process import ServerProcess

LIMIT_S = 15.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("transactions")
    with ServerProcess(directory, transactionTimeOut=100, transactionCheckInterval=200) as running:
        yield running


@pytest.fixture
def orbitmq(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys, server.namesrv)


def run(work: object) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work  # type: ignore[misc]

    asyncio.run(bounded())


async def delivered(client: RawClient, topic: str, want: int) -> list[bytes]:
    """Everything in queue 0 a moment after there are `want` messages: one too many would be seen."""
    while await client.max_offset(topic, 0) < want:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    return [message.body for message in await client.read_queue(topic, 0)]


def test_another_producer_of_the_group_decides_when_the_first_died(server: ServerProcess) -> None:
    async def work() -> None:
        async with RawClient(server.broker_addr) as client:
            await client.create_topic("TwoLives", 1)
            async with Producer(server.broker_addr, "two-lives") as first:
                await first.prepare("TwoLives", "M1", b"survivor")
                await first.asked.wait()
            async with Producer(server.broker_addr, "two-lives", lambda _: COMMIT) as second:
                assert await delivered(client, "TwoLives", 1) == [b"survivor"]
                assert [message.topic for message in second.questions] == ["TwoLives"]

    run(work())


def test_an_open_transaction_outlives_the_broker(server: ServerProcess) -> None:
    async def before() -> None:
        async with (
            RawClient(server.broker_addr) as client,
            Producer(server.broker_addr, "restart") as producer,
        ):
            await client.create_topic("Restart", 1)
            for i in range(4):
                place = await producer.prepare("Restart", f"R{i}", b"%d" % i)
                if i == 2:
                    assert (await producer.end(place, COMMIT, "R2")).code == 0
            await producer.asked.wait()

    async def after() -> None:
        decisions = {"R0": COMMIT, "R1": ROLLBACK, "R3": COMMIT}
        async with (
            RawClient(server.broker_addr) as client,
            Producer(server.broker_addr, "restart", decisions.__getitem__),
        ):
            assert sorted(await delivered(client, "Restart", 3)) == [b"0", b"2", b"3"]

    run(before())
    server.kill()
    server.start()
    run(after())


def test_a_group_that_never_comes_back_disturbs_nobody(server: ServerProcess) -> None:
    async def work() -> None:
        async with RawClient(server.broker_addr) as client:
            await client.create_topic("Alone", 1)
            async with Producer(server.broker_addr, "gone") as gone:
                await gone.prepare("Alone", "G1", b"never")
            async with Producer(server.broker_addr, "alive", lambda _: COMMIT) as alive:
                await alive.prepare("Alone", "A1", b"asked")
                assert await delivered(client, "Alone", 1) == [b"asked"]

    run(work())


def test_the_tools_show_what_is_open(server: ServerProcess, orbitmq: Commands) -> None:
    async def work() -> None:
        async with Producer(server.broker_addr, "shown", lambda _: UNKNOWN) as producer:
            await producer.prepare("Shown", "S1", b"half")
            await producer.asked.wait()

    run(work())
    found = orbitmq.ok("message", "half", "--group", "shown", "--json").json
    (message,) = found["messages"]
    assert message["msg_id"] == "S1" and message["topic"] == "Shown" and message["keys"] == ["key-S1"]
    assert message["checks"] >= 1 and message["producers_online"] == 0 and found["missing"] == []
    table = orbitmq.ok("message", "half").out
    assert "S1" in table and "shown" in table
    assert "no open transaction matches" in orbitmq.ok("message", "half", "--group", "nobody").out
    assert orbitmq.ok("message", "half", "--topic", "Shown", "--json").json["messages"] == [message]
