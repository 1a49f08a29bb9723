"""A cluster of real processes that faults are done to, on loopback or each in a network of its own."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from orbitmq.wire import bodies
from orbitmq.wire.codes import OrbitCode, ResponseCode
from orbitmq.wire.controller_bodies import ControllerState, GroupView
from scripts.serving import OrbitProcess, free_broker_port, free_port, set_options
from tests.chaos.etcd import EtcdNode
from tests.chaos.network import Network
from tests.chaos.replicas import LOG_FILE_BYTES
from tests.support.raw_client import RawClient

GROUP = "broker-a"
CLUSTER = "ChaosCluster"
LEASE_MS = 2000
WHOLE_LIMIT_S = 60.0
Setting = str | int | bool
T = TypeVar("T")
# Small files, so that a run rolls over several of them and a log is cut across their borders.
SIZES: dict[str, Setting] = {
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "mappedFileSizeConsumeQueue": 200 * 20,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}


class Node(OrbitProcess):
    """One server with a name, an address and a place in the network."""

    def __init__(
        self, name: str, addr: str, args: Sequence[str], *, ready: str, under: Sequence[str]
    ) -> None:
        self.name = name
        self.addr = addr
        self.frozen = False
        # A process that a signal ends (a full disk under a map is SIGBUS) shall say where it was.
        super().__init__(args, ready=ready, start=False, under=[*under, "env", "PYTHONFAULTHANDLER=1"])

    def _read_output(self, process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
        """With times, so that it can be laid beside the histories."""
        assert process.stdout is not None
        for line in process.stdout:
            self.output.append(f"{time.monotonic():.3f} {line}")
            lines.put(line.rstrip("\n"))
        lines.put(None)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.frozen = False

    @property
    def ended(self) -> int | None:
        """The exit code, or minus the signal, of a process that is not there any more."""
        return None if self._process is None else self._process.poll()

    def end(self) -> None:
        """Whatever state it is in; the cluster is being put away."""
        if self._process is not None:
            self.kill()


@dataclass(frozen=True)
class Shape:
    """What a cluster is made of. Without controllers the roles are fixed: the first broker is the master."""

    brokers: int = 2
    namesrvs: int = 1
    controllers: int = 1
    etcd: int = 0
    sync: bool = True
    lease_ms: int = LEASE_MS
    settings: dict[str, Setting] = field(default_factory=dict)
    apart: bool = False
    """Each process in a network of its own."""


class ChaosCluster:
    def __init__(self, directory: Path, shape: Shape) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.shape = shape
        self.network = Network() if shape.apart else None
        self._ports: dict[str, int] = {}
        self.namesrvs: list[Node] = []
        self.controllers: list[Node] = []
        self.brokers: list[Node] = []
        self.etcd: list[EtcdNode] = []
        self.beside_master: list[str] = []
        """Processes that stay with a master that is cut off from all others."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.save_output()
        self.close()

    # --- starting ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        shape = self.shape
        self.etcd = [self._etcd_node(number) for number in range(shape.etcd)]
        for etcd in self.etcd:
            etcd.start(self.etcd)
        for etcd in self.etcd:
            etcd.wait_ready()
        self.namesrvs = [self._namesrv(number) for number in range(shape.namesrvs)]
        self.controllers = [self._controller(number) for number in range(shape.controllers)]
        for node in (*self.namesrvs, *self.controllers):
            node.start(wait=False)
        for node in (*self.namesrvs, *self.controllers):
            node.wait_ready()
        self.brokers = [self._broker(number) for number in range(shape.brokers)]
        for node in self.brokers:
            node.start(wait=False)
        for node in self.brokers:
            node.wait_ready()
        self.wait_whole()

    def place(self, name: str, port: int | None = None) -> tuple[str, list[str]]:
        """Address and command prefix for a process of this name."""
        if self.network is not None:
            return f"{self.network.add(name)}:{port or 10911}", self.network.under(name)
        if name not in self._ports:
            self._ports[name] = free_broker_port() if port is None else free_port()
        return f"127.0.0.1:{self._ports[name]}", []

    def _etcd_node(self, number: int) -> EtcdNode:
        name = f"etcd{number + 1}"
        client, under = self.place(name, 2379)
        host = client.rpartition(":")[0]
        peer_port = 2380 if self.network else free_port()
        return EtcdNode(name, client, f"{host}:{peer_port}", self.directory / name, under)

    def _namesrv(self, number: int) -> Node:
        name = f"ns{number + 1}"
        addr, under = self.place(name, 9876)
        args = ["namesrv", "--port", addr.rpartition(":")[2], "--data", str(self.directory / name)]
        return Node(name, addr, args, ready="OrbitMQ name server ready", under=under)

    def _controller(self, number: int) -> Node:
        name = f"ctl{number + 1}"
        addr, under = self.place(name, 9878)
        args = ["controller", "--port", addr.rpartition(":")[2], "--data", str(self.directory / name)]
        args += ["--lease-ms", str(self.shape.lease_ms)]
        if self.etcd:
            args += ["--etcd", ";".join(node.client_addr for node in self.etcd)]
        return Node(name, addr, args, ready="OrbitMQ controller ready", under=under)

    def _broker(self, number: int) -> Node:
        name = self.broker_names[number]
        addr, under = self.place(name)
        host, _, port = addr.rpartition(":")
        kind = "SYNC" if self.shape.sync else "ASYNC"
        chosen: dict[str, Setting] = {**SIZES, "brokerIP1": host, "brokerName": GROUP}
        chosen |= {"brokerClusterName": CLUSTER, "brokerRole": f"{kind}_MASTER"}
        chosen |= {"flushConsumerOffsetInterval": 1000, "registerNameServerPeriod": 10_000}
        chosen |= {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
        # A full disk would otherwise be emptied of the oldest messages, read or not.
        chosen |= {"cleanFileForciblyEnable": False}
        if self.shape.controllers:
            chosen |= {"enableControllerMode": True, "controllerAddr": self.addresses(self.controllers)}
        elif number:
            chosen |= {"brokerRole": "SLAVE", "brokerId": number}
        args = ["broker", "-n", self.namesrv, "--data", str(self.store(name)), "--port", port]
        args += set_options({**chosen, **self.shape.settings})
        return Node(name, addr, args, ready="OrbitMQ broker ready", under=under)

    # --- looking ----------------------------------------------------------------------------------------------

    @staticmethod
    def addresses(nodes: Sequence[Node]) -> str:
        return ";".join(node.addr for node in nodes)

    @property
    def broker_names(self) -> list[str]:
        return [f"a{number + 1}" for number in range(self.shape.brokers)]

    @property
    def namesrv(self) -> str:
        return self.addresses(self.namesrvs)

    def store(self, name: str) -> Path:
        return self.directory / name / "store"

    def group(self) -> GroupView | None:
        """The broker group as the active controller sees it; None when nobody says."""
        for node in self.controllers:
            if node.running and not node.frozen:
                state = asyncio.run(_controller_state(node.addr))
                if state is not None and state.groups:
                    return state.groups[0]
        return None

    def master(self) -> Node | None:
        if not self.controllers:
            return self.brokers[0]
        view = self.group()
        addresses = {replica.replica: replica.address for replica in view.replicas} if view else {}
        addr = addresses.get(view.master or 0) if view else None
        return next((node for node in self.brokers if node.addr == addr), None)

    def require_master(self) -> Node:
        master = eventually(self.master, "there is a master", self.explain)
        assert master is not None
        return master

    def active_controller(self) -> Node:
        """The one that answers for the others."""

        def active() -> Node | None:
            running = [node for node in self.controllers if node.running and not node.frozen]
            return next((node for node in running if asyncio.run(_controller_state(node.addr))), None)

        found = eventually(active, "a controller is active", self.explain)
        assert found is not None
        return found

    def etcd_leader(self) -> EtcdNode:
        found = eventually(
            lambda: next((node for node in self.etcd if node.leads()), None),
            "etcd has a leader",
            self.explain,
        )
        assert found is not None
        return found

    def slave(self) -> Node:
        master = self.require_master()
        return next(node for node in self.brokers if node is not master)

    def wait_other_master(self, old: Node, limit_s: float = 20.0) -> float:
        """How long it takes until the controller has another one."""
        start = time.monotonic()
        eventually(
            lambda: self.master() not in (None, old), f"a master besides {old.name}", self.explain, limit_s
        )
        return time.monotonic() - start

    def wait_in_sync(self, count: int) -> None:
        """Until the in-sync set has so many members."""

        def reached() -> bool:
            view = self.group()
            return view is not None and len(view.in_sync) == count

        eventually(reached, f"{count} are in sync", self.explain)

    def wait_whole(self, limit_s: float = WHOLE_LIMIT_S, *, same_ends: bool = False) -> None:
        """Until every broker is alive and in sync. `same_ends`: and has the whole log, which no longer grows."""

        def whole() -> bool:
            view = self.group()
            return (
                view is not None
                and view.master is not None
                and len(view.in_sync) == len(self.brokers)
                and all(replica.alive for replica in view.replicas)
                and (not same_ends or len({replica.end for replica in view.replicas}) == 1)
            )

        if not self.controllers:
            return
        for node in self.brokers:
            assert node.running, f"{node.name} ended by itself with {node.ended}:\n{node.printed[-3000:]}"
        eventually(whole, "the cluster is whole", self.explain, limit_s)

    def explain(self) -> str:
        tails = [f"--- {node.name}\n" + "".join(node.output[-15:]) for node in self.nodes]
        return f"{self.group()}\n" + "\n".join(tails)

    @property
    def nodes(self) -> list[Node]:
        return [*self.namesrvs, *self.controllers, *self.brokers]

    def create_topic(self, topic: str, queues: int) -> None:
        addr = self.require_master().addr

        async def create() -> None:
            async with RawClient(addr) as client:
                await client.create_topic(topic, queues)

        asyncio.run(create())

    # --- ending -----------------------------------------------------------------------------------------------

    def stop_brokers(self) -> None:
        """In good order, slaves first, so that nobody takes over from the one that stops last."""
        master = self.master()
        for node in sorted(self.brokers, key=lambda node: node is master):
            if node.running:
                assert node.stop() == 0, f"{node.name} did not stop well:\n{node.printed[-3000:]}"

    def save_output(self) -> None:
        for node in self.nodes:
            (self.directory / f"{node.name}.out").write_text(node.printed)

    def close(self) -> None:
        for node in self.nodes:
            node.end()
        for etcd in self.etcd:
            etcd.end()
        if self.network is not None:
            self.network.close()


async def _controller_state(addr: str) -> ControllerState | None:
    try:
        async with asyncio.timeout(1), RawClient(addr) as client:
            answer = await client.ask(OrbitCode.CONTROLLER_STATE)
    except OSError:
        return None
    if answer.code != ResponseCode.SUCCESS:
        return None
    return bodies.decode(ControllerState, answer.body)


def eventually(
    condition: Callable[[], T], what: str, explain: Callable[[], str] = str, limit_s: float = 20.0
) -> T:
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}\n{explain()}"
        time.sleep(0.05)
    return found
