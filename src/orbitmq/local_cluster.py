"""Whole clusters on one machine: which processes there are, at which ports, with which settings.

`orbitmq cluster up DIR` keeps the ports in `DIR/cluster.json`: a cluster that is started again is found where it was.
`orbitmq server --brokers N` has further brokers beside the one in its own process.
"""

from __future__ import annotations

import json
import os
import socket
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from orbitmq.child_processes import Spec

HOST: Final = "127.0.0.1"
FILE: Final = "cluster.json"
# A broker also listens at the port two below (old clients, Java slaves) and, for slaves, at the one above.
BROKER_OFFSETS: Final = (-2, 0, 1)
PORTS_PER_BROKER: Final = 10

NAMESRV_READY: Final = "OrbitMQ name server ready"
CONTROLLER_READY: Final = "OrbitMQ controller ready"
BROKER_READY: Final = "OrbitMQ broker ready"

SYNC: Final = "sync"
ASYNC: Final = "async"
ROLES: Final = {SYNC: "SYNC_MASTER", ASYNC: "ASYNC_MASTER"}


class BadPlan(ValueError):
    """A cluster that cannot be: says why, and what to change."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What was asked for. `slaves` is the number of slaves of each master."""

    masters: int = 2
    slaves: int = 1
    controllers: int = 1
    namesrvs: int = 2
    replication: str = SYNC
    etcd: str | None = None
    lease_ms: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of every broker, by RocketMQ's keys; they win over what the shape says."""

    def check(self) -> None:
        if self.replication not in ROLES:
            raise BadPlan(f"replication '{self.replication}' is not known: use sync or async")
        for what, count, least in (
            ("masters", self.masters, 1),
            ("slaves", self.slaves, 0),
            ("controllers", self.controllers, 0),
            ("name servers", self.namesrvs, 1),
        ):
            if count < least:
                raise BadPlan(f"{count} {what} make no cluster: at least {least} is needed")
        if self.controllers > 1 and not self.etcd:
            raise BadPlan(
                f"{self.controllers} controllers need a common memory: start etcd and pass --etcd HOST:PORT, "
                "or use one controller, which keeps its own"
            )
        if self.etcd and not self.controllers:
            raise BadPlan(
                "--etcd is the memory of controllers, and there are none: pass --controllers 1 or more"
            )


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the cluster."""

    name: str
    kind: str
    address: str
    spec: Spec


class Ports:
    """Free ports, each kept under the name of its process."""

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        self.by_name: dict[str, int] = dict(known or {})

    def of(self, name: str, offsets: Sequence[int] = (0,)) -> int:
        if name not in self.by_name:
            taken = {port + step for port in self.by_name.values() for step in BROKER_OFFSETS}
            self.by_name[name] = free_port(offsets, taken)
        return self.by_name[name]


def free_port(offsets: Sequence[int], taken: set[int]) -> int:
    """A port that is free now, as are those at the given distances from it."""
    for _ in range(200):
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
            wanted = {port + step for step in offsets}
            if not wanted & taken and all(_is_free(each) for each in wanted - {port}):
                return port
    raise OSError("no free port with free neighbours was found")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def plan(shape: Shape, directory: Path, ports: Ports) -> list[list[Member]]:
    """The processes in the order of their start: name servers, controllers, first brokers of each group, the others."""
    shape.check()
    namesrvs = [_namesrv(number, directory, ports) for number in range(1, shape.namesrvs + 1)]
    controllers = [_controller(shape, number, directory, ports) for number in range(1, shape.controllers + 1)]
    namesrv_addr = ";".join(member.address for member in namesrvs)
    controller_addr = ";".join(member.address for member in controllers)

    def broker(group: int, replica: int) -> Member:
        settings = _settings(shape, replica, controller_addr)
        return _broker(group_name(group), replica, directory, ports, namesrv_addr, settings)

    groups = range(shape.masters)
    masters = [broker(group, 0) for group in groups]
    slaves = [broker(group, replica) for group in groups for replica in range(1, shape.slaves + 1)]
    if controllers and any((directory / member.name).exists() for member in masters):
        # Not for the first time: only the controller knows who may be master now, and waits for that one.
        masters, slaves = masters + slaves, []
    return [stage for stage in (namesrvs, controllers, masters, slaves) if stage]


def group_name(number: int) -> str:
    """broker-a to broker-z, then broker-27."""
    letters = string.ascii_lowercase
    return f"broker-{letters[number] if number < len(letters) else number + 1}"


def _settings(shape: Shape, replica: int, controller_addr: str) -> dict[str, str]:
    chosen = {"brokerIP1": HOST, "listenHost": HOST, "brokerRole": ROLES[shape.replication]}
    if controller_addr:
        chosen |= {"enableControllerMode": "true", "controllerAddr": controller_addr}
    elif replica:
        chosen |= {"brokerRole": "SLAVE", "brokerId": str(replica)}
    return {**chosen, **shape.settings}


def _namesrv(number: int, directory: Path, ports: Ports) -> Member:
    name = f"namesrv-{number}"
    port = ports.of(name)
    args = ("namesrv", "--port", str(port), "--data", str(directory / name), "--set", f"listenHost={HOST}")
    return Member(name, "name-server", f"{HOST}:{port}", Spec(name, args, NAMESRV_READY))


def _controller(shape: Shape, number: int, directory: Path, ports: Ports) -> Member:
    name = f"controller-{number}"
    port = ports.of(name)
    args = ["controller", "--port", str(port), "--data", str(directory / name)]
    if shape.etcd:
        args += ["--etcd", shape.etcd]
    if shape.lease_ms is not None:
        args += ["--lease-ms", str(shape.lease_ms)]
    return Member(name, "controller", f"{HOST}:{port}", Spec(name, tuple(args), CONTROLLER_READY))


def _broker(
    group: str, replica: int, directory: Path, ports: Ports, namesrv_addr: str, settings: Mapping[str, str]
) -> Member:
    name = f"{group}-{replica + 1}"
    port = ports.of(name, BROKER_OFFSETS)
    args = ["broker", "-n", namesrv_addr, "--data", str(directory / name), "--port", str(port)]
    for key, value in {"brokerName": group, **settings}.items():
        args += ["--set", f"{key}={value}"]
    return Member(name, "broker", f"{HOST}:{port}", Spec(name, tuple(args), BROKER_READY))


def load_ports(directory: Path) -> Ports:
    """The ports of the last time; none where there was none."""
    path = directory / FILE
    try:
        data: Any = json.loads(path.read_text("utf-8"))
        known = {str(name): int(port) for name, port in data["ports"].items()}
    except FileNotFoundError:
        return Ports()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadPlan(
            f"{path} is not understood ({error!r}): correct it, or delete it to get other ports"
        ) from error
    return Ports(known)


def save(directory: Path, ports: Ports, namesrv: str, processes: Sequence[Mapping[str, object]]) -> None:
    """For the next start, and for programs that want to know what runs."""
    directory.mkdir(parents=True, exist_ok=True)
    data = {"namesrv": namesrv, "ports": ports.by_name, "processes": list(processes)}
    fresh = directory / (FILE + ".tmp")
    fresh.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
    fresh.replace(directory / FILE)


def further_brokers(
    count: int, given: Mapping[str, str], *, name: str, ip: str, port: int, data: str, namesrv: str
) -> list[Spec]:
    """The brokers of `orbitmq server --brokers N` after the first: like it, with own ports and directories."""
    specs = []
    for number in range(2, count + 1):
        folder = os.path.join(data, f"broker-{number}")
        settings = {
            **given,
            "brokerName": f"{name}-{number}",
            "brokerIP1": ip,
            "listenPort": str(port + (number - 1) * PORTS_PER_BROKER if port else 0),
            "haListenPort": "0",
            "consolePort": "0",
            "namesrvAddr": namesrv,
            "storePathRootDir": folder,
            "storePathCommitLog": os.path.join(folder, "commitlog"),
        }
        args = ["broker"]
        for key, value in settings.items():
            args += ["--set", f"{key}={value}"]
        specs.append(Spec(f"broker-{number}", tuple(args), BROKER_READY))
    return specs
