"""A few name servers and brokers in a thread of the test's process: quick, and found at real addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from orbitmq.broker.broker import Broker
from orbitmq.client.cluster import Cluster
from orbitmq.config import BrokerConfig, NamesrvConfig
from orbitmq.loop_thread import LoopThread
from orbitmq.namesrv.service import NameServer
from orbitmq.server import now_ms
from orbitmq.store.disk import Disk, StrPath

T = TypeVar("T")

SMALL = {
    "listenHost": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 5_000),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
}


class QuickDisk(Disk):
    """Its files end with the test: nothing has to reach a device."""

    def fdatasync(self, fd: int) -> None:
        return

    def fsync_dir(self, path: StrPath) -> None:
        return


class SmallCluster:
    """Brokers are known by their directory: "broker-a", and "broker-a.1" for its slave number 1."""

    def __init__(
        self, directory: Path, brokers: Sequence[str], *, namesrvs: int = 1, **settings: str
    ) -> None:
        self._directory = directory
        self._settings = {**SMALL, **settings}
        self._names = list(brokers)
        self._namesrv_count = namesrvs
        self._namesrvs: list[NameServer] = []
        self._ports: dict[str, int] = {}
        self.stops: list[tuple[str, bool]] = []
        """Requests to stop or to start over, which are followed."""
        self.brokers: dict[str, Broker] = {}
        self.namesrv = ""
        self._loop: LoopThread

    def __enter__(self) -> Self:
        self._loop = LoopThread("small-cluster")
        try:
            self._loop.run(self._start())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._loop.run(self._stop())
        finally:
            self._loop.close()

    def add(self, name: str, **settings: str) -> Broker:
        return self._loop.run(self._add(name, settings))

    def stop(self, name: str) -> None:
        self._loop.run(self.brokers.pop(name).stop())

    def address(self, name: str) -> str:
        return self.brokers[name].address

    def call(self, look: Callable[[], T]) -> T:
        """In the thread that owns the brokers."""
        return self._loop.call(look)

    def ask(self, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """With a connection to this cluster, in the test's own thread."""

        async def body() -> T:
            async with Cluster(self.namesrv) as cluster:
                return await work(cluster)

        return asyncio.run(body())

    async def _start(self) -> None:
        for number in range(self._namesrv_count):
            folder = self._directory / f"namesrv-{number}"
            config, _ = NamesrvConfig.from_properties(
                {
                    "listenHost": "127.0.0.1",
                    "listenPort": "0",
                    "kvConfigPath": str(folder / "kvConfig.json"),
                    "configStorePath": str(folder / "namesrv.properties"),
                }
            )
            self._namesrvs.append(NameServer(config))
            await self._namesrvs[-1].start()
        self.namesrv = ";".join(f"127.0.0.1:{server.port}" for server in self._namesrvs)
        for name in self._names:
            await self._add(name, {})

    async def _add(self, name: str, settings: dict[str, str]) -> Broker:
        group, _, number = name.partition(".")
        role = {"brokerRole": "SLAVE", "brokerId": number} if number else {}
        config, unknown = BrokerConfig.from_properties(
            {
                **self._settings,
                **role,
                **settings,
                "brokerName": group,
                "listenPort": str(self._ports.get(name, 0)),
                "namesrvAddr": self.namesrv,
                "storePathRootDir": str(self._directory / name),
            }
        )
        assert not unknown
        config.fill_blanks(ip="127.0.0.1")
        broker = self.brokers[name] = Broker(config, now_ms, disk=QuickDisk())
        broker.on_stop_request = lambda restart: self._asked_to_stop(name, restart)
        await broker.start()
        self._ports[name] = config.listen_port
        return broker

    def _asked_to_stop(self, name: str, restart: bool) -> None:
        self.stops.append((name, restart))
        self._ending = asyncio.ensure_future(self._follow_stop(name, restart))

    async def _follow_stop(self, name: str, restart: bool) -> None:
        await self.brokers.pop(name).stop()
        if restart:
            await self._add(name, {})

    async def _stop(self) -> None:
        for broker in self.brokers.values():
            await broker.stop()
        for server in self._namesrvs:
            await server.stop()
