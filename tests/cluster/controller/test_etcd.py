"""Several controllers on a real etcd: one speaks at a time, and the next one goes on where it stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest

from orbitmq.cluster.controller.engines.etcd import EtcdEngine
from orbitmq.cluster.controller.state import GroupState, Replica
from orbitmq.wire.codes import OrbitCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.controller_bodies import MASTER
from scripts.services import program
from scripts.serving import free_port
from tests.chaos.etcd import EtcdNode
from tests.support.controller_process import LIMIT_S, ControllerProcess, Puppet, ended, until_mastered
from tests.support.raw_client import RawClient

if program("etcd") is None or find_spec("aetcd") is None:
    pytest.skip("etcd or aetcd is not installed", allow_module_level=True)

T = TypeVar("T")
LEASE_MS = 1500


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EtcdNode]:
    (single,) = nodes = _nodes(tmp_path, 1)
    _start(nodes)
    yield single
    single.end()


def _nodes(directory: Path, count: int) -> list[EtcdNode]:
    return [
        EtcdNode(
            f"etcd{number}",
            f"127.0.0.1:{free_port()}",
            f"127.0.0.1:{free_port()}",
            directory / f"etcd{number}",
        )
        for number in range(count)
    ]


def _start(nodes: list[EtcdNode]) -> None:
    for node in nodes:
        node.start(nodes)
    for node in nodes:
        node.wait_ready()


def _controllers(directory: Path, count: int, *nodes: EtcdNode) -> list[ControllerProcess]:
    etcd = ";".join(node.client_addr for node in nodes)
    return [
        ControllerProcess(directory / f"c{number}", "--etcd", etcd, lease_ms=LEASE_MS)
        for number in range(count)
    ]


def eventually(condition: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + LIMIT_S
    while (found := condition()) is None:
        assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(0.05)
    return found


def active_of(controllers: list[ControllerProcess]) -> ControllerProcess:
    return eventually(
        lambda: next((each for each in controllers if each.state()), None), "a controller is active"
    )


def test_the_next_controller_goes_on_when_the_active_one_is_killed(tmp_path: Path, node: EtcdNode) -> None:
    controllers = _controllers(tmp_path, 2, node)
    with ended(*controllers):
        puppets = [Puppet(token, [each.addr for each in controllers]) for token in ("t1", "t2")]
        master = asyncio.run(until_mastered(puppets))
        asyncio.run(master.alter(1, 2))
        first = active_of(controllers)
        (other,) = (each for each in controllers if each is not first)
        standby = other.ask(OrbitCode.CONTROLLER_HEARTBEAT, puppets[0].heartbeat())
        assert standby is not None
        assert (standby.code, standby.remark) == (ResponseCode.NOT_ACTIVE_CONTROLLER, first.addr)
        first.kill()
        assert active_of([other]) is other
        assert asyncio.run(until_mastered(puppets)) is master, "the master keeps its place"
        assert (master.role, master.epoch, master.served) == (MASTER, 1, [1])
        state = other.state()
        assert state is not None and state.groups[0].in_sync == [1, 2]
        first.start()
        assert first.state() is None, "one that comes back waits"


def test_a_clean_stop_hands_over_at_once(tmp_path: Path, node: EtcdNode) -> None:
    controllers = _controllers(tmp_path, 2, node)
    with ended(*controllers):
        first = active_of(controllers)
        (other,) = (each for each in controllers if each is not first)
        assert first.stop() == 0
        assert active_of([other]) is other
        assert other.stop() == 0
        assert all("Traceback" not in each.printed for each in controllers)


def test_a_controller_that_was_frozen_says_nothing_when_it_wakes(tmp_path: Path, node: EtcdNode) -> None:
    controllers = _controllers(tmp_path, 2, node)
    with ended(*controllers):
        first = active_of(controllers)
        (other,) = (each for each in controllers if each is not first)
        puppet = Puppet("t1", [first.addr])
        asyncio.run(puppet.beat())
        os.kill(first.pid, signal.SIGSTOP)
        try:
            assert active_of([other]) is other
            answer = asyncio.run(_beat_while_frozen(first, puppet))
        finally:
            os.kill(first.pid, signal.SIGCONT)
        assert answer.code == ResponseCode.NOT_ACTIVE_CONTROLLER

        def named() -> str | None:
            found = first.ask(OrbitCode.CONTROLLER_STATE)
            assert found is None or found.code == ResponseCode.NOT_ACTIVE_CONTROLLER
            return found.remark or None if found else None

        assert eventually(named, "it knows who is active now") == other.addr


async def _beat_while_frozen(first: ControllerProcess, puppet: Puppet) -> Command:
    """The master's heartbeat waits in the frozen one's socket until that wakes up."""
    async with RawClient(first.addr) as client:
        (number,) = client.write([request(OrbitCode.CONTROLLER_HEARTBEAT, body=puppet.heartbeat())])
        await client.writer.drain()
        os.kill(first.pid, signal.SIGCONT)
        return await client.answer(number)


def test_without_etcd_there_is_no_controller_and_with_it_again_one(tmp_path: Path, node: EtcdNode) -> None:
    (controller,) = controllers = _controllers(tmp_path, 1, node)
    with ended(controller):
        puppet = Puppet("t1", [controller.addr])
        asyncio.run(until_mastered([puppet]))
        node.kill()
        eventually(lambda: True if controller.state() is None else None, "it notices that it may not speak")
        assert asyncio.run(puppet.beat()) is None
        node.start()
        node.wait_ready()
        assert active_of(controllers) is controller
        asyncio.run(until_mastered([puppet]))
        assert puppet.served == [1]


def test_one_of_three_etcd_nodes_may_die(tmp_path: Path) -> None:
    nodes = _nodes(tmp_path, 3)
    try:
        _start(nodes)
        (controller,) = controllers = _controllers(tmp_path, 1, *nodes)
        with ended(controller):
            puppets = [Puppet(token, [controller.addr]) for token in ("t1", "t2")]
            master = asyncio.run(until_mastered(puppets))
            for node in nodes:
                node.kill()
                assert active_of(controllers) is controller
                asyncio.run(until_mastered(puppets))
                asyncio.run(_alter_when_possible(master))
                node.start()
                node.wait_ready()
            assert master.served == [1], "nobody lost a place for it"
    finally:
        for node in nodes:
            node.end()


def test_a_former_leader_cannot_store_anything(node: EtcdNode) -> None:
    """It may not have noticed, and the key may still have the revision that it read."""

    async def main() -> None:
        old, new = (
            EtcdEngine([node.client_addr], "/test", LEASE_MS, lambda: time.monotonic() * 1000) for _ in "12"
        )
        await old.open()
        await new.open()
        try:
            assert (await old.hold("old:1")).active
            waiting = await new.hold("new:1")
            assert (waiting.active, waiting.address) == (False, "old:1")
            first = await old.swap("b", a_group(epoch=1), None)
            assert first is not None
            assert await old.swap("b", a_group(epoch=2), None) is None, "it exists already"
            lost = old._lease
            await new._try(lambda client: client.revoke_lease(lost))
            assert (await new.hold("new:1")).active
            assert await new.load_all() == {"b": (a_group(epoch=1), first)}
            assert await old.swap("b", a_group(epoch=2), first) is None, "it is not the leader any more"
            second = await new.swap("b", a_group(epoch=2), first)
            assert second is not None
            assert await new.load("b") == (a_group(epoch=2), second)
            assert await new.load("unknown") is None
            beaten = await old.hold("old:1")
            assert (beaten.active, beaten.address) == (False, "new:1")
        finally:
            await old.close()
            await new.close()

    asyncio.run(main())


def a_group(epoch: int) -> GroupState:
    return GroupState("C", "b", {1: Replica("t", "h:1", "h:2")}, 1, "run", epoch, (1,), epoch, 2)


async def _alter_when_possible(master: Puppet) -> None:
    """A swap that failed with its node is tried again by whoever wished it."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await master.alter(1, 2)
                return
            except AssertionError:
                await master.beat()
                await asyncio.sleep(0.1)
