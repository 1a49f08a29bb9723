"""A master and slaves of a group in one process: real stores, real sockets, no controller."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orbitmq.cluster.epochs import EpochHistory
from orbitmq.cluster.group_ship import GroupShipper
from orbitmq.cluster.in_sync import InSync
from orbitmq.cluster.join import ApplyTable, JoiningReceiver, JoinTarget
from orbitmq.cluster.mastership import Mastership
from orbitmq.net.listener import bind_socket
from orbitmq.store.disk import Disk
from orbitmq.store.flush import ThreadRunner
from orbitmq.store.follower import LogFollower
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.message_store import MessageStore
from tests.support.stores import Clock, Queues, read_all, small_settings

CLUSTER, BROKER = "DefaultCluster", "broker-a"
HEARTBEAT_MS = 100
# Long for a machine that is busy with other tests; what has to happen happens by events.
SILENCE_MS = 20_000
PATIENCE_S = 20
FILE_BYTES = 32 << 10


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.005)


def open_store(root: Path, sync_flush: bool, file_bytes: int) -> MessageStore:
    """With a disk thread, as in a broker, where acks wait for the device."""
    settings = replace(small_settings(root, sync_flush=sync_flush), commit_log_file_bytes=file_bytes)
    runner = ThreadRunner(asyncio.get_running_loop()) if sync_flush else None
    store = MessageStore(settings, Disk(), Clock(), runner)
    store.open()
    return store


def put(store: MessageStore, *bodies: bytes, topic: str = "Copied") -> int:
    """Where the log ends then."""
    for body in bodies:
        store.put(InnerMessage(topic, 0, body, b"UNIQ_KEY\x01" + body[:16].hex().encode()).index_properties())
    return store.log.position


def bodies_of(store: MessageStore, topic: str = "Copied") -> list[bytes]:
    found: Queues = read_all(store)
    return [message.body for message in found.get((topic, 0), [])]


class Master:
    """Replica 1. `history`: of the masterships before; its own epoch begins where its log ends."""

    def __init__(
        self,
        root: Path,
        *,
        epoch: int = 1,
        history: EpochHistory | None = None,
        sync_flush: bool = False,
        file_bytes: int = FILE_BYTES,
        silence_ms: int = SILENCE_MS,
        near_bytes: int = 1 << 20,
        block_bytes: int = 4096,
        table_timeout_ms: int = 10_000,
        not_caught_up_ms: int = 10_000,
    ) -> None:
        self.store = open_store(root, sync_flush, file_bytes)
        end = self.store.log.position
        self.mastership = Mastership(CLUSTER, BROKER, 1, epoch, (history or EpochHistory()).begin(epoch, end))
        self.in_sync = InSync(
            1,
            {1},
            1,
            end,
            now_ms,
            min_in_sync=2,
            timeout_ms=10_000,
            not_caught_up_ms=not_caught_up_ms,
            near_bytes=near_bytes,
        )
        self.store.copies = self.in_sync
        self.shipper = GroupShipper(
            self.store,
            self.mastership,
            self.in_sync,
            asyncio.get_running_loop().time,
            block_bytes=block_bytes,
            heartbeat_ms=HEARTBEAT_MS,
            silence_ms=silence_ms,
            table_timeout_ms=table_timeout_ms,
        )
        self.address = ""

    async def start(self) -> None:
        bound: socket.socket = bind_socket("127.0.0.1", 0)
        self.address = f"127.0.0.1:{bound.getsockname()[1]}"
        await self.shipper.start_on(bound)

    def grant(self) -> None:
        """What a controller would do at once."""
        wish = self.in_sync.wish()
        assert wish is not None
        self.in_sync.asked(wish)
        self.in_sync.granted(wish, self.in_sync.version + 1)

    async def has_member(self, replica: int) -> None:
        await until(lambda: self.in_sync.wish() is not None, f"replica {replica} joins")
        self.grant()
        assert replica in self.in_sync.members

    async def stop(self) -> None:
        await self.shipper.stop()
        self.store.close()


class Slave:
    def __init__(
        self,
        root: Path,
        master: Master,
        *,
        replica: int = 2,
        sync_flush: bool = False,
        file_bytes: int = FILE_BYTES,
        history: EpochHistory | None = None,
        silence_ms: int = SILENCE_MS,
        apply_table: ApplyTable | None = None,
        **other: Any,
    ) -> None:
        self.store = open_store(root, sync_flush, file_bytes)
        self.epochs_path = str(root / "config" / "epochs.json")
        if history is not None:
            history.save(Disk(), self.epochs_path)
        self.follower = LogFollower(self.store, gated=True)
        self.cuts: list[int] = []
        self.tables: list[tuple[str, dict[str, Any], int]] = []
        fields: dict[str, Any] = {
            "address": master.address,
            "cluster": CLUSTER,
            "broker": BROKER,
            "replica": replica,
            "token": f"token-{replica}",
            "epoch": master.mastership.epoch,
        }
        self.target: JoinTarget | None = JoinTarget(**{**fields, **other})
        self.receiver = JoiningReceiver(
            self.follower,
            lambda: self.target,
            Disk(),
            self.epochs_path,
            on_cut=self.cuts.append,
            apply_table=apply_table or self.apply,
            report_ms=HEARTBEAT_MS,
            silence_ms=silence_ms,
            retry_ms=50,
        )
        self.store.on_growth = self.receiver.report

    def apply(self, name: str, data: dict[str, Any]) -> Awaitable[None] | None:
        self.tables.append((name, data, self.store.log.position))
        return None

    @property
    def history(self) -> EpochHistory:
        return EpochHistory.load(Disk(), self.epochs_path)

    async def stop(self) -> None:
        await self.receiver.stop()
        self.store.close()


class Links:
    """What a test starts, and what is stopped behind it however it ends."""

    def __init__(self) -> None:
        self.parts: list[Master | Slave] = []

    async def master(self, root: Path, tables: Mapping[str, Any] | None = None, **settings: Any) -> Master:
        master = Master(root, **settings)
        self.parts.append(master)
        for name, data in (tables or {}).items():
            master.shipper.send_table(name, data)
        await master.start()
        return master

    def slave(self, root: Path, master: Master, **settings: Any) -> Slave:
        slave = Slave(root, master, **settings)
        self.parts.append(slave)
        slave.receiver.start()
        return slave


def with_links(test: Callable[[Links], Awaitable[None]]) -> None:
    async def run() -> None:
        links = Links()
        try:
            await test(links)
        finally:
            for part in reversed(links.parts):
                await part.stop()

    asyncio.run(run())


def same_log(master: MessageStore, slave: MessageStore) -> bool:
    start, end = slave.log.start, slave.log.position
    if end != master.log.position:
        return False
    step = master.log.series.segment_bytes
    return all(
        master.log.read(at, min(step, end - at)) == slave.log.read(at, min(step, end - at))
        for at in range(start, end, step)
    )
