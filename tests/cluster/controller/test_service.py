"""The controller behind a socket: answers only while it is the active one, and only what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from orbitmq.client.controller import ControllerClient
from orbitmq.client.errors import NotFound, Refused, Unreachable
from orbitmq.cluster.controller.engines import EngineFailed, Hold
from orbitmq.cluster.controller.engines.memory import MemoryEngine
from orbitmq.cluster.controller.machine import Rules
from orbitmq.cluster.controller.service import Controller
from orbitmq.cluster.controller.state import GroupState, Stored
from orbitmq.wire.bodies import Body, decode, encode
from orbitmq.wire.codes import OrbitCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.controller_bodies import (
    LEAVING,
    MASTER,
    SLAVE,
    AlterInSync,
    ControllerState,
    GroupAnswer,
)
from tests.support.controller_desk import WALL_MS, beat
from tests.support.raw_client import RawClient

LEASE_MS = 400


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def __call__(self) -> float:
        return self.now_ms


class ShakyEngine(MemoryEngine):
    """Fails when told to, with or without effect; leadership is whatever the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.before_swap: Callable[[], Awaitable[None]] | None = None
        self.after_swap: Callable[[], Awaitable[None]] | None = None
        self.held = Hold(True, float("inf"), "")
        self.swaps = 0

    async def hold(self, address: str) -> Hold:
        return self.held

    async def swap(self, key: str, state: GroupState, expected: int | None) -> int | None:
        self.swaps += 1
        if self.before_swap is not None:
            await self.before_swap()
        revision = await super().swap(key, state, expected)
        if self.after_swap is not None:
            await self.after_swap()
        return revision


@asynccontextmanager
async def running(engine: MemoryEngine, clock: Clock | None = None) -> AsyncIterator[Controller]:
    controller = Controller(engine, Rules(lease_ms=LEASE_MS), clock or Clock(), lambda: WALL_MS)
    await controller.start("127.0.0.1", 0, "127.0.0.1")
    try:
        yield controller
    finally:
        await controller.stop()


async def ask(client: RawClient, code: int, body: Body) -> Command:
    return await client.ask(code, body=encode(body))


async def beats(client: RawClient, token: str, role: str = "starting", **fields: object) -> GroupAnswer:
    answer = await ask(client, OrbitCode.CONTROLLER_HEARTBEAT, beat(token, role, **fields))
    assert answer.code == ResponseCode.SUCCESS, answer
    return decode(GroupAnswer, answer.body)


async def once_fail() -> None:
    raise EngineFailed("the disk is full")


def test_a_group_lives_through_its_first_failover() -> None:
    async def main() -> None:
        clock = Clock()
        async with running(MemoryEngine(), clock) as controller, RawClient(controller.address) as client:
            assert (await beats(client, "t1")).master == 1
            assert (await beats(client, "t2")).replica == 2
            wish = AlterInSync(broker="b", cluster="C", replica=1, epoch=1, version=1, in_sync=[1, 2])
            granted = await ask(client, OrbitCode.ALTER_IN_SYNC, wish)
            assert granted.code == ResponseCode.SUCCESS
            refused = await ask(client, OrbitCode.ALTER_IN_SYNC, wish)
            assert refused.code == ResponseCode.IN_SYNC_REFUSED
            assert decode(GroupAnswer, refused.body).in_sync == [1, 2]
            await beats(client, "t1", LEAVING, epoch=1)
            elected = await beats(client, "t2", SLAVE, epoch=1)
            assert (elected.master, elected.epoch, elected.in_sync) == (2, 2, [2])
            state = decode(ControllerState, (await client.ok(OrbitCode.CONTROLLER_STATE)).body)
            assert (state.address, state.engine, state.lease_ms) == (controller.address, "memory", LEASE_MS)
            assert [(group.broker, group.master, group.epoch) for group in state.groups] == [("b", 2, 2)]

    asyncio.run(main())


def test_a_refusal_says_why() -> None:
    async def main() -> None:
        async with running(MemoryEngine()) as controller, RawClient(controller.address) as client:
            await beats(client, "t1")
            foreign = await ask(client, OrbitCode.CONTROLLER_HEARTBEAT, beat("t2", cluster="Other"))
            assert foreign.code == ResponseCode.MISCONFIGURED
            assert "brokerClusterName" in (foreign.remark or "")
            nonsense = await client.ask(OrbitCode.CONTROLLER_HEARTBEAT, body=b"nonsense")
            assert nonsense.code == ResponseCode.SYSTEM_ERROR and nonsense.remark
            unknown = await client.ask(10)
            assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert (await beats(client, "t1", MASTER, epoch=1)).master == 1

    asyncio.run(main())


def test_nothing_is_said_before_it_is_stored() -> None:
    async def main() -> None:
        engine = ShakyEngine()
        stuck, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            stuck.set()
            await go_on.wait()

        async with running(engine) as controller, RawClient(controller.address) as client:
            engine.before_swap = wait
            first = asyncio.create_task(beats(client, "t1"))
            await stuck.wait()
            async with RawClient(controller.address) as other:
                elsewhere = await beats_elsewhere(other, engine)
                second = asyncio.create_task(beats(other, "t2"))
                await asyncio.sleep(0.05)
                assert not first.done() and not second.done(), "both wait for the group's state"
                assert elsewhere.master == 1, "another group does not"
                go_on.set()
                assert (await first).master == 1
                assert (await second).replica == 2

    asyncio.run(main())


async def beats_elsewhere(client: RawClient, engine: ShakyEngine) -> GroupAnswer:
    wait, engine.before_swap = engine.before_swap, None
    answer = await beats(client, "x1", broker="b2")
    engine.before_swap = wait
    return answer


@pytest.mark.parametrize("took_effect", [False, True])
def test_a_swap_that_ended_nobody_knows_how_is_looked_up_before_the_next_decision(took_effect: bool) -> None:
    async def main() -> None:
        engine = ShakyEngine()
        async with running(engine) as controller, RawClient(controller.address) as client:
            await beats(client, "t1")
            await beats(client, "t1", LEAVING, epoch=1)
            if took_effect:
                engine.after_swap = once_fail
            else:
                engine.before_swap = once_fail
            failed = await ask(client, OrbitCode.CONTROLLER_HEARTBEAT, beat("t1", run="t1-run-2"))
            assert failed.code == ResponseCode.SYSTEM_ERROR and "the disk is full" in (failed.remark or "")
            still = await ask(client, OrbitCode.CONTROLLER_HEARTBEAT, beat("t1", run="t1-run-2"))
            assert still.code == ResponseCode.SYSTEM_ERROR, "it cannot be looked up, so nothing is said"
            engine.before_swap = engine.after_swap = None
            elected = await beats(client, "t1", run="t1-run-2")
            assert (elected.master, elected.epoch) == (1, 2)
            stored = await engine.load("b")
            assert stored is not None and stored.state.epoch == 2

    asyncio.run(main())


def test_a_state_that_somebody_else_changed_is_read_anew() -> None:
    async def main() -> None:
        engine = ShakyEngine()
        async with running(engine) as controller, RawClient(controller.address) as client:
            await beats(client, "t1")
            stored = await engine.load("b")
            assert isinstance(stored, Stored)
            assert await MemoryEngine.swap(engine, "b", stored.state, stored.revision) is not None
            assert (await beats(client, "t2")).replica == 2

    asyncio.run(main())


def test_a_controller_without_leadership_names_the_one_that_has_it() -> None:
    async def main() -> None:
        engine = ShakyEngine()
        engine.held = Hold(False, 0, "10.0.0.9:9878")
        async with running(engine) as controller, RawClient(controller.address) as client:
            for code, body in (
                (OrbitCode.CONTROLLER_HEARTBEAT, encode(beat("t1"))),
                (OrbitCode.ALTER_IN_SYNC, encode(AlterInSync(broker="b"))),
                (OrbitCode.CONTROLLER_STATE, b""),
            ):
                answer = await client.ask(code, body=body)
                assert answer.code == ResponseCode.NOT_ACTIVE_CONTROLLER
                assert answer.remark == "10.0.0.9:9878"
            assert await engine.load_all() == {}

    asyncio.run(main())


def test_leadership_is_over_by_the_clock_even_if_nobody_says_so() -> None:
    """As after a freeze: the clock is far on, and the engine was not asked again yet."""

    async def main() -> None:
        engine, clock = ShakyEngine(), Clock()
        engine.held = Hold(True, clock.now_ms + 60_000, "")
        async with running(engine, clock) as controller, RawClient(controller.address) as client:
            assert (await beats(client, "t1")).master == 1
            clock.now_ms += 60_000
            late = await ask(client, OrbitCode.CONTROLLER_HEARTBEAT, beat("t1", MASTER, epoch=1))
            assert late.code == ResponseCode.NOT_ACTIVE_CONTROLLER

    asyncio.run(main())


def test_an_answer_that_was_ready_too_late_is_not_sent() -> None:
    async def main() -> None:
        engine, clock = ShakyEngine(), Clock()
        engine.held = Hold(True, clock.now_ms + 60_000, "")

        async def frozen() -> None:
            clock.now_ms += 60_000

        async with running(engine, clock) as controller, RawClient(controller.address) as client:
            engine.after_swap = frozen
            answer = await ask(client, OrbitCode.CONTROLLER_HEARTBEAT, beat("t1"))
            assert answer.code == ResponseCode.NOT_ACTIVE_CONTROLLER

    asyncio.run(main())


def test_who_gets_leadership_back_begins_anew_with_what_is_stored() -> None:
    async def main() -> None:
        engine, clock = ShakyEngine(), Clock()
        engine.held = Hold(True, clock.now_ms + 60_000, "")
        async with running(engine, clock) as controller, RawClient(controller.address) as client:
            await beats(client, "t1")
            first = controller.machine.groups["b"]
            clock.now_ms += 60_000
            engine.held = Hold(True, clock.now_ms + 60_000, "")
            async with asyncio.timeout(10):
                while not controller.active:
                    await asyncio.sleep(0.01)
            assert controller.machine.groups["b"] is not first
            assert (await beats(client, "t1", MASTER, epoch=1)).master == 1

    asyncio.run(main())


def test_tools_find_the_active_controller_and_hear_its_refusals() -> None:
    async def main() -> None:
        active = MemoryEngine()
        async with running(active) as leader, RawClient(leader.address) as client:
            standby = ShakyEngine()
            standby.held = Hold(False, 0, leader.address)
            async with running(standby) as follower:
                await beats(client, "t1")
                dead = "127.0.0.1:1"
                async with ControllerClient([dead, follower.address], 5) as tool:
                    assert [group.master for group in (await tool.state()).groups] == [1]
                    with pytest.raises(Refused, match="nobody else is alive and in sync"):
                        await tool.hand_over("b")
                    with pytest.raises(NotFound, match="no broker group 'c' is known"):
                        await tool.hand_over("c")
        lost = ShakyEngine()
        lost.held = Hold(False, 0, "")
        async with running(lost) as follower, ControllerClient([dead, follower.address], 5) as tool:
            with pytest.raises(Unreachable, match="no controller answers") as caught:
                await tool.state()
        assert dead in str(caught.value) and follower.address in str(caught.value)

    asyncio.run(main())
