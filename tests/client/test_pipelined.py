"""Many requests under way at once: all are answered, in order of sending, and a server that is gone costs one try."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError, Unreachable
from orbitmq.client.pipelined import Pipe
from orbitmq.net.connection import Connection
from orbitmq.wire.answer_json import Answer
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import Command, request
from tests.support.fake_servers import FakeCluster, fake_cluster, silent
from tests.support.server_process import free_port

CODE = RequestCode.END_TRANSACTION

Outcomes = dict[int, Answer | OrbitMQError]


def numbered(conn: Connection, command: Command) -> Command:
    """Refuses every third."""
    number = int(command.ext["n"])
    return command.reply(2 if number % 3 == 0 else 0, remark=str(number))


def asked(number: int) -> Command:
    return request(CODE, {"n": str(number)})


def run(handler: object, work: Callable[[FakeCluster, Cluster, Outcomes], Awaitable[None]]) -> Outcomes:
    outcomes: Outcomes = {}

    async def main() -> None:
        async with (
            asyncio.timeout(30),
            fake_cluster({CODE: handler}) as fake,
            Cluster(fake.namesrv.addr, timeout_s=10) as cluster,
        ):
            await work(fake, cluster, outcomes)

    asyncio.run(main())
    return outcomes


@pytest.mark.parametrize("at_once", [1, 7, 512])
def test_every_request_has_its_own_answer_whatever_its_code(at_once: int) -> None:
    async def work(fake: FakeCluster, cluster: Cluster, outcomes: Outcomes) -> None:
        pipe = Pipe(cluster, at_once=at_once, done=outcomes.__setitem__)
        for number in range(1000):
            await pipe.put(fake.addrs["broker-a"], asked(number))
        await pipe.finish()
        seen = [int(command.ext["n"]) for command in fake.brokers["broker-a"].requests(CODE)]
        assert seen == list(range(1000))

    outcomes = run(numbered, work)
    answers = {number: answer for number, answer in outcomes.items() if isinstance(answer, Answer)}
    assert {number: (answer.code, answer.remark) for number, answer in answers.items()} == {
        number: (2 if number % 3 == 0 else 0, str(number)) for number in range(1000)
    }


def test_an_answer_that_does_not_come_fails_its_request_alone() -> None:
    def mute(conn: Connection, command: Command) -> Command | None:
        return silent(conn, command) if command.ext["n"] == "4" else command.reply()

    async def work(fake: FakeCluster, cluster: Cluster, outcomes: Outcomes) -> None:
        pipe = Pipe(cluster, at_once=3, done=outcomes.__setitem__, timeout_s=0.3)
        for number in range(10):
            await pipe.put(fake.addrs["broker-a"], asked(number))
        await pipe.finish()

    outcomes = run(mute, work)
    assert sorted(outcomes) == list(range(10))
    assert [number for number, one in outcomes.items() if isinstance(one, OrbitMQError)] == [4]
    assert isinstance(outcomes[4], Unreachable)


def test_a_server_that_is_gone_is_tried_once_and_the_others_go_on() -> None:
    gone = f"127.0.0.1:{free_port()}"
    tries = 0

    async def work(fake: FakeCluster, cluster: Cluster, outcomes: Outcomes) -> None:
        channel = cluster.channel

        async def counted(addr: str) -> object:
            nonlocal tries
            tries += addr == gone
            return await channel(addr)

        cluster.channel = counted  # type: ignore[method-assign, assignment]
        pipe = Pipe(cluster, at_once=8, done=outcomes.__setitem__)
        for number in range(20):
            await pipe.put(gone if number % 2 else fake.addrs["broker-a"], asked(number))
        await pipe.finish()

    outcomes = run(lambda conn, command: command.reply(), work)
    assert tries == 1
    assert {number for number, one in outcomes.items() if isinstance(one, Unreachable)} == set(
        range(1, 20, 2)
    )
    assert all(isinstance(outcomes[number], Answer) for number in range(0, 20, 2))
