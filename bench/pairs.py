"""A master with a slave, ours and Java's, behind the interface of a single broker; and what the slave costs.

The client measures the process it is told, the master. The slave is watched from here: its CPU time is noted many times
a second, and since the client rests before and after each figure, the time of a figure can be found again.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.brokers import JavaBroker, OrbitBroker, PeerFailed
from orbitmq.client.admin.brokers import broker_runtime
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.sender import Sender
from scripts.serving import OrbitProcess, free_broker_port, set_options

NAME = "broker-a"
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}
LOOK_S = 0.05
# A line is printed when the counts have not moved for 0.5 s; before its figure they had not for 0.3 s.
REST_S = 0.7
# A Java slave tries to connect every 5 s and reports as seldom.
FOLLOWS_WITHIN_S = 60.0


class OrbitPair(OrbitBroker):
    """Name server and master are one process, the slave another."""

    def __init__(self, store: Path, settings: Mapping[str, str]) -> None:
        super().__init__(store / "master", {**settings, "brokerName": NAME})
        options = {"brokerIP1": "127.0.0.1", **settings, "brokerName": NAME, **SLAVE}
        where = ["-n", self.namesrv, "--data", str(store / "slave"), "--port", str(free_broker_port())]
        self._slave = OrbitProcess(
            ["broker", *where, *set_options(options)], ready="OrbitMQ broker ready", start=False
        )
        self.slave_pid = 0

    def start(self) -> None:
        super().start()
        self._slave.start()
        self.slave_pid = self._slave.pid
        asyncio.run(wait_until_it_follows(self.namesrv))

    def stop(self) -> None:
        if self._slave.running:
            self._slave.stop(60)
        super().stop()


class JavaPair(JavaBroker):
    def __init__(self, store: Path, settings: Mapping[str, str]) -> None:
        super().__init__(store / "master", settings)
        self._slave_store = store / "slave"
        self._slave_settings = [f"{key}={value}" for key, value in {**settings, **SLAVE}.items()]
        self.slave_pid = 0

    def start(self) -> None:
        super().start()
        try:
            slave = self._launch(
                "broker",
                str(free_broker_port()),
                str(self._slave_store),
                self.namesrv,
                *self._slave_settings,
            )
            self.slave_pid = int(slave["pid"])
            asyncio.run(wait_until_it_follows(self.namesrv))
        except PeerFailed:
            self.stop()
            raise


Pair = OrbitPair | JavaPair


async def wait_until_it_follows(namesrv: str) -> None:
    """Sends messages of its own until one is confirmed and the slave has the whole log."""
    deadline = time.monotonic() + FOLLOWS_WITHIN_S
    async with Cluster(namesrv) as cluster:
        sender = Sender(cluster)
        problem = "nothing was tried"
        while time.monotonic() < deadline:
            try:
                status = (await sender.send(sender.prepare("PairBegins", b"x"))).status
                behind = await behind_bytes(cluster)
            except (OrbitMQError, KeyError) as error:
                problem = str(error)
            else:
                if status == "SEND_OK" and not behind:
                    return
                problem = f"{status}, and the slave is {behind} bytes behind"
            await asyncio.sleep(0.2)
    raise PeerFailed(f"the slave did not follow within {FOLLOWS_WITHIN_S:g} s: {problem}")


async def behind_bytes(cluster: Cluster) -> int:
    """How much of the master's log the slave does not have."""
    addrs = (await cluster.cluster_map()).brokers[NAME].addrs
    ends = [int((await broker_runtime(cluster, addrs[number]))["commitLogMaxOffset"]) for number in (0, 1)]
    return ends[0] - ends[1]


class SlaveWatch:
    """Use it as a context manager around the client's runs."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._times: list[float] = []
        self._used_s: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> SlaveWatch:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            self._note()

    def _note(self) -> None:
        used_s = cpu_seconds(self._pair.slave_pid)
        self._used_s.append(used_s)
        self._times.append(time.monotonic())

    def completed(self, line: dict[str, Any]) -> dict[str, Any]:
        """The line that the client has just printed, with what the slave used and how far it is."""
        now = time.monotonic()
        before = max(0, bisect_left(self._times, now - REST_S - line["seconds"]) - 1)
        slave = (self._used_s[-1] - self._used_s[before]) / line["seconds"]
        return {
            **line,
            "slave_cores": slave,
            "other_cores": max(0.0, line["other_cores"] - slave),
            "slave_behind_bytes": asyncio.run(self._behind()),
        }

    async def _behind(self) -> int:
        async with Cluster(self._pair.namesrv) as cluster:
            return await behind_bytes(cluster)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
