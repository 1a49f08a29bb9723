"""Two brokers of one group with a controller, in one process: who is master, what is acknowledged, what travels."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from orbitmq.broker.supervisor import Supervisor
from orbitmq.cluster.controller.engines.memory import MemoryEngine
from orbitmq.cluster.controller.machine import Rules
from orbitmq.cluster.controller.service import Controller
from orbitmq.config import BrokerConfig
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.controller_bodies import MASTER, SLAVE, HandOver
from tests.support.raw_client import RawClient, send_ext

LEASE_MS = 2000
TOPIC = "Orders"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Cluster:
    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.settings = settings
        self.controller = Controller(
            MemoryEngine(), Rules(lease_ms=LEASE_MS), lambda: boot_s() * 1000, now_ms
        )
        self.address = ""
        self.brokers: dict[str, Supervisor] = {}
        self.complaints: list[str] = []
        self._tokens = itertools.count()

    async def add(self, name: str) -> Supervisor:
        config, _ = BrokerConfig.from_properties(
            {
                "brokerName": "broker-a",
                "brokerRole": "SYNC_MASTER",
                "brokerIP1": "127.0.0.1",
                "listenHost": "127.0.0.1",
                "listenPort": "0",
                "enableControllerMode": "true",
                "controllerAddr": self.address,
                "storePathRootDir": str(self.directory / name),
                "mappedFileSizeCommitLog": str(1 << 20),
                "mappedFileSizeConsumeQueue": str(20 * 1000),
                **self.settings,
            }
        )
        config.fill_blanks()
        broker = Supervisor(
            config,
            now_ms,
            boot_clock_s=boot_s,
            new_token=lambda: f"{name}-{next(self._tokens)}",
            give_up=self.complaints.append,
        )
        self.brokers[name] = broker
        await broker.start()
        return broker

    def master(self) -> Supervisor | None:
        for broker in self.brokers.values():
            if broker.role == MASTER and broker.broker is not None and not broker.broker.store.refusal:
                return broker
        return None

    def in_sync(self) -> tuple[int, ...]:
        return tuple(self.controller.machine.groups["broker-a"].state.in_sync)

    async def both_in_sync(self) -> None:
        await until(lambda: len(self.in_sync()) == 2 and self.master() is not None, "both are in sync")


@asynccontextmanager
async def cluster(directory: Path, **settings: str) -> AsyncIterator[Cluster]:
    made = Cluster(directory, **settings)
    made.address = await made.controller.start("127.0.0.1", 0, "127.0.0.1")
    try:
        yield made
    finally:
        for broker in made.brokers.values():
            await broker.stop()
        await made.controller.stop()
    assert not made.complaints


async def until(condition: Callable[[], object], what: str, limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        await asyncio.sleep(0.02)


def address_of(broker: Supervisor | None) -> str:
    assert broker is not None and broker.broker is not None
    return broker.broker.address


async def send(addr: str, body: bytes) -> Command:
    async with RawClient(addr) as client:
        text = f"UNIQ_KEY\x01{uuid.uuid4().hex.upper()}\x02WAIT\x01true"
        return await client.ask(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0, text), body)


async def read(addr: str) -> list[bytes]:
    async with RawClient(addr) as client:
        return [message.body for message in await client.read_queue(TOPIC, 0)]


async def make_topic(addr: str, name: str) -> Command:
    fields = {
        "topic": name,
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }
    fields |= {"topicSysFlag": "0", "order": "false", "defaultTopic": "TBW102"}
    async with RawClient(addr) as client:
        return await client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def test_alone_a_double_write_says_that_there_is_no_copy(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as group:
            master = await group.add("a")
            await until(group.master, "it is master")
            assert (await send(address_of(master), b"1")).code == ResponseCode.SLAVE_NOT_AVAILABLE
            assert await read(address_of(master)) == [b"1"]

    asyncio.run(story())


def test_an_orderly_stop_hands_everything_over_before_the_lease_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as group:
            first, second = await group.add("a"), await group.add("b")
            await group.both_in_sync()
            old = group.master()
            assert old is not None
            new = second if old is first else first
            assert new.role == SLAVE
            await make_topic(address_of(old), "MadeBefore")
            assert new.broker is not None and new.broker.topics.get("MadeBefore") is not None
            for number in range(20):
                assert (await send(address_of(old), b"%d" % number)).code == ResponseCode.SUCCESS
            del group.brokers["a" if old is first else "b"]
            await old.stop()
            await until(lambda: group.master() is new, "the other one is master")
            assert await read(address_of(new)) == [b"%d" % number for number in range(20)]
            assert new.broker is not None and new.broker.topics.get("MadeBefore") is not None
            # Nobody else is in sync, and it says so.
            assert (await send(address_of(new), b"20")).code == ResponseCode.SLAVE_NOT_AVAILABLE

    asyncio.run(story())


def test_masters_change_places_by_a_tools_wish(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as group:
            await group.add("a")
            await group.add("b")
            await group.both_in_sync()
            for number in range(4):
                old = group.master()
                assert (await send(address_of(old), b"%d" % number)).code == ResponseCode.SUCCESS
                group.controller.machine.hand_over(HandOver(broker="broker-a"), round(boot_s() * 1000))
                await until(lambda old=old: group.master() not in (None, old), "the other one is master")  # type: ignore[misc]
                await group.both_in_sync()
            assert await read(address_of(group.master())) == [b"0", b"1", b"2", b"3"]

    asyncio.run(story())


def test_without_a_controller_nothing_is_taken_after_the_lease(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path) as group:
            await group.add("a")
            await group.add("b")
            await group.both_in_sync()
            master = group.master()
            address = address_of(master)
            port = int(group.address.rpartition(":")[2])
            await group.controller.stop()
            began = time.monotonic()
            codes = {ResponseCode.SUCCESS}
            while ResponseCode.SERVICE_NOT_AVAILABLE not in codes:
                assert time.monotonic() - began < 20
                codes.add(ResponseCode((await send(address, b"x")).code))
                await asyncio.sleep(0.05)
            taken = len(await read(address))
            assert (await send(address, b"y")).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert len(await read(address)) == taken
            # A new controller, which knows nothing but the same words: the group is found again.
            engine = group.controller._engine
            group.controller = Controller(engine, Rules(lease_ms=LEASE_MS), lambda: boot_s() * 1000, now_ms)
            await group.controller.start("127.0.0.1", port, "127.0.0.1")
            await until(group.master, "there is a master again")
            await group.both_in_sync()
            assert (await send(address_of(group.master()), b"z")).code == ResponseCode.SUCCESS

    asyncio.run(story())
