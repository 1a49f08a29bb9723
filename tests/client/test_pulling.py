"""Pulling one queue: whom to ask, what to do with each answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orbitmq.client.cluster import Cluster
from orbitmq.client.core.process_queue import Limits
from orbitmq.client.holding import Holding, Shared, Tally
from orbitmq.client.inbox import Inbox
from orbitmq.client.message import Message
from orbitmq.client.pulling import Puller, choose_addr
from orbitmq.client.routes import BrokerData, QueueData, TopicRoute
from orbitmq.client.scope import Scope
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import encode_record
from orbitmq.wire.properties import encode_properties
from orbitmq.wire.subscription import build_subscription
from tests.support.consuming import run, until
from tests.support.fake_servers import FakeServer

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.mark.parametrize(
    ("addrs", "wanted", "chosen"),
    [
        ({0: "m", 1: "s"}, 0, "m"),
        ({0: "m", 1: "s"}, 1, "s"),
        ({0: "m", 2: "s"}, 1, "s"),
        ({0: "m", 1: "s"}, 5, "m"),
        ({1: "s"}, 0, "s"),
        ({}, 0, None),
    ],
)
def test_the_member_that_was_suggested_or_the_next_or_any(
    addrs: dict[int, str], wanted: int, chosen: str | None
) -> None:
    assert choose_addr(BrokerData("b", "c", addrs), wanted) == chosen


def found(
    command: Command, *offsets: int, next_offset: int | None = None, suggest: int = 0, tag: str = ""
) -> Command:
    body = b"".join(
        encode_record(
            topic="T",
            body=b"%d" % offset,
            queue_offset=offset,
            properties=encode_properties({"TAGS": tag} if tag else {}),
        )
        for offset in offsets
    )
    return told(command, 0, next_offset if next_offset is not None else offsets[-1] + 1, suggest, body)


def told(command: Command, code: int, next_offset: int, suggest: int = 0, body: bytes = b"") -> Command:
    ext = {"nextBeginOffset": next_offset, "minOffset": 0, "maxOffset": 100, "suggestWhichBrokerId": suggest}
    return command.reply(code, ext={name: str(value) for name, value in ext.items()}, body=body)


class Scene:
    """A queue with a scripted master and slave; what a script does not answer is held for ever."""

    def __init__(self, cluster: Cluster, master: FakeServer, slave: FakeServer) -> None:
        self.cluster = cluster
        self.master = master
        self.slave = slave
        self.inbox = Inbox()
        self.tally = Tally()
        self.scope = Scope("test")
        self.moved: list[int] = []
        self.introduced: list[str] = []
        self.holding: Holding

    def start(self, *, tags: str = "*", limits: Limits | None = None) -> None:
        shared = Shared(limits or Limits(), self.inbox, self.scope, self, self.tally)
        self.holding = Holding(QUEUE, 0, shared)

        async def introduce(addr: str) -> None:
            self.introduced.append(addr)

        puller = Puller(
            self.cluster,
            "g",
            self.holding,
            build_subscription("T", tags, version_ms=7),
            self.inbox,
            self.tally,
            moved=lambda _, offset: self.moved.append(offset),
            introduce=introduce,
            retry_after_s=0.01,
        )
        self.holding.pull_task = self.scope.keep(puller.run, name="pull")

    async def give_back(self, msg: Message, level: int, reason: str) -> None:
        raise AssertionError("nothing fails here")

    def pulls(self, server: FakeServer) -> list[dict[str, str]]:
        return [command.ext for command in server.requests(RequestCode.PULL_MESSAGE)]


@asynccontextmanager
async def scene(
    *script: Callable[[Command], Command], slave: Callable[[Command], Command] | None = None
) -> AsyncIterator[Scene]:
    answers = list(script)

    def master_answer(conn: Any, command: Command) -> Command | None:
        return answers.pop(0)(command) if answers else None

    def slave_answer(conn: Any, command: Command) -> Command | None:
        return slave(command) if slave else None

    servers = [FakeServer({RequestCode.PULL_MESSAGE: answer}) for answer in (master_answer, slave_answer)]
    for server in servers:
        await server.start()
    async with Cluster("127.0.0.1:1", timeout_s=1) as cluster:
        addrs = {0: servers[0].addr, 1: servers[1].addr}
        route = TopicRoute(
            "T", (QueueData("broker-a", 1, 1, 6),), {"broker-a": BrokerData("broker-a", "c", addrs)}
        )
        cluster.routes.put(route, cluster.clock())
        stage = Scene(cluster, *servers)
        try:
            yield stage
        finally:
            stage.holding.drop()
            await stage.scope.aclose()
    for server in servers:
        await server.stop()


def test_pages_follow_each_other_and_the_request_says_what_is_wanted() -> None:
    async def scenario() -> None:
        script = (
            lambda c: found(c, 0, 1, 2),
            lambda c: told(c, ResponseCode.PULL_NOT_FOUND, 3),
            lambda c: found(c, 3),
        )
        async with scene(*script) as stage:
            stage.start()
            messages = [await anext(stage.inbox) for _ in range(4)]
            assert [msg.text for msg in messages] == ["0", "1", "2", "3"]
            await until(lambda: len(stage.pulls(stage.master)) == 4)
            first, *_, last = stage.pulls(stage.master)
            assert (first["queueOffset"], last["queueOffset"]) == ("0", "4")
            assert first["sysFlag"] == "2" and first["suspendTimeoutMillis"] == "15000"
            assert first["subVersion"] == "7" and first["expressionType"] == "TAG"
            assert (first["maxMsgNums"], first["pageBytes"]) == ("4096", "1048576")
            assert stage.tally.pulled == 4

    run(scenario)


def test_a_suggested_slave_is_asked_next_and_the_master_again_when_it_says_so() -> None:
    async def scenario() -> None:
        async with scene(lambda c: found(c, 0, suggest=1), slave=lambda c: found(c, 1, suggest=0)) as stage:
            stage.start()
            assert [(await anext(stage.inbox)).text for _ in range(2)] == ["0", "1"]
            await until(lambda: len(stage.pulls(stage.master)) == 2)
            assert [pull["queueOffset"] for pull in stage.pulls(stage.master)] == ["0", "2"]

    run(scenario)


def test_a_slave_holds_a_pull_for_moments_only_so_that_its_master_is_asked_again_when_it_is_back() -> None:
    async def scenario() -> None:
        async with scene(
            lambda c: found(c, 0, suggest=1),
            lambda c: found(c, 1),
            slave=lambda c: told(c, ResponseCode.PULL_NOT_FOUND, 1, suggest=0),
        ) as stage:
            stage.start()
            assert [(await anext(stage.inbox)).text for _ in range(2)] == ["0", "1"]
            (at_slave,) = stage.pulls(stage.slave)
            assert at_slave["suspendTimeoutMillis"] == "2000"
            assert {pull["suspendTimeoutMillis"] for pull in stage.pulls(stage.master)} == {"15000"}

    run(scenario)


def test_a_lost_master_is_left_for_its_slave_without_a_pause() -> None:
    async def scenario() -> None:
        served: list[int] = []

        def slave(command: Command) -> Command:
            offset = int(command.ext["queueOffset"])
            served.append(offset)
            if len(served) == 1:  # it has not noticed yet that its master is gone
                return told(command, ResponseCode.PULL_RETRY_IMMEDIATELY, offset, suggest=0)
            return found(command, offset, suggest=1)

        async with scene(lambda c: found(c, 0), slave=slave) as stage:
            stage.start(limits=Limits(messages=3))
            assert (await anext(stage.inbox)).text == "0"
            await until(lambda: len(stage.pulls(stage.master)) == 2)
            await stage.master.stop()
            assert (await anext(stage.inbox)).text == "1"
            assert served[:2] == [1, 1]

    run(scenario)


def test_a_route_that_calls_a_slave_the_master_is_renewed_and_not_asked_in_a_tight_circle() -> None:
    async def scenario() -> None:
        def demoted(command: Command) -> Command:
            return told(command, ResponseCode.PULL_RETRY_IMMEDIATELY, 0, suggest=0)

        async with scene(*[demoted] * 1000, slave=lambda c: found(c, 0)) as stage:
            stage.start(limits=Limits(messages=1))
            await until(lambda: len(stage.pulls(stage.master)) >= 3)
            await asyncio.sleep(0.2)
            assert len(stage.pulls(stage.master)) < 60, "about 20 with pauses of 10 ms"
            swapped = {0: stage.slave.addr, 1: stage.master.addr}
            queues, brokers = (QueueData("broker-a", 1, 1, 6),), {"broker-a": BrokerData("b", "c", swapped)}
            stage.cluster.routes.put(TopicRoute("T", queues, brokers), stage.cluster.clock())
            assert (await anext(stage.inbox)).text == "0"

    run(scenario)


def test_a_broker_that_does_not_know_this_member_is_told_and_asked_again() -> None:
    async def scenario() -> None:
        async with scene(
            lambda c: c.reply(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark="no heartbeat"),
            lambda c: c.reply(ResponseCode.FLOW_CONTROL, remark="slower"),
            lambda c: c.reply(ResponseCode.SYSTEM_ERROR, remark="broken"),
            lambda c: found(c, 0),
        ) as stage:
            stage.start()
            assert (await anext(stage.inbox)).text == "0"
            assert stage.introduced == [stage.master.addr]

    run(scenario)


def test_an_offset_outside_of_the_queue_is_handed_on() -> None:
    async def scenario() -> None:
        async with scene(lambda c: told(c, ResponseCode.PULL_OFFSET_MOVED, 40)) as stage:
            stage.start()
            await until(lambda: stage.moved == [40])
            await asyncio.sleep(0.03)
            assert len(stage.pulls(stage.master)) == 1, "the old offset is not asked for again"

    run(scenario)


def test_other_tags_with_the_same_hash_are_left_out_and_count_as_finished() -> None:
    async def scenario() -> None:
        async with scene(lambda c: found(c, 0, 1, tag="BB"), lambda c: found(c, 2, tag="Aa")) as stage:
            stage.start(tags="Aa")
            msg = await anext(stage.inbox)
            assert msg.text == "2" and stage.holding.unfinished.commit_offset == 2
            msg.ack()
            assert stage.holding.unfinished.commit_offset == 3

    run(scenario)


def test_a_page_with_wrong_offsets_or_broken_records_is_not_taken() -> None:
    async def scenario() -> None:
        async with scene(
            lambda c: found(c, 7, next_offset=5),
            lambda c: told(c, 0, 1, body=b"no record at all" * 8),
            lambda c: found(c, 0),
        ) as stage:
            stage.start()
            assert (await anext(stage.inbox)).text == "0"
            assert stage.holding.unfinished.next_offset == 1

    run(scenario)


def test_no_more_is_pulled_than_there_is_room_for() -> None:
    async def scenario() -> None:
        async with scene(lambda c: found(c, 0, 1, 2), lambda c: found(c, 3)) as stage:
            stage.start(limits=Limits(messages=4))
            messages = [await anext(stage.inbox) for _ in range(4)]
            await asyncio.sleep(0.03)
            assert [pull["maxMsgNums"] for pull in stage.pulls(stage.master)] == ["4", "1"]
            for msg in messages:
                msg.ack()
            await until(lambda: len(stage.pulls(stage.master)) == 3)

    run(scenario)
