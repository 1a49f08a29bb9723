"""A network of its own for every process: namespaces joined by a bridge, from which they can be cut and healed.

Needs root and iproute2. A process that is cut off sees what a pulled cable makes: packets vanish, nothing is refused.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = "orb"
NAMESPACES = Path("/run/netns")
# Reserved for benchmarks of networks (RFC 2544): no real machine is there.
SUBNET = "198.18"
HOST = 254


def why_impossible() -> str | None:
    """The reason why this process cannot make networks, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root, and this process is not"
    missing = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2 and util-linux"
    probe = f"{PREFIX}-probe-{os.getpid()}"
    try:
        with Network(probe_only=True) as network:
            network.add(probe)
    except NetworkError as error:
        return str(error)
    return None


class NetworkError(AssertionError):
    """A command that changes the network failed."""


class Network:
    """Nodes by name, each with an address. The tests themselves sit on the bridge and reach whoever is not cut off."""

    def __init__(self, *, probe_only: bool = False) -> None:
        _sweep()
        self._number = _free_subnet()
        kind = "p" if probe_only else "n"
        tag = f"{os.getpid()}{kind}{self._number}"
        self._whole = f"{PREFIX}{tag}"
        self._apart = f"{PREFIX}x{tag}"
        self._nodes: dict[str, int] = {}
        self._tag = tag
        try:
            _ip(
                f"link add {self._whole} type bridge",
                f"addr add {SUBNET}.{self._number}.{HOST}/24 dev {self._whole}",
                f"link set {self._whole} up",
                f"link add {self._apart} type bridge",
                f"link set {self._apart} up",
            )
        except NetworkError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, node: str) -> str:
        """Makes a namespace for it; its address."""
        if node not in self._nodes:
            self._nodes[node] = len(self._nodes) + 1
            space, port = self._space(node), self._port(node)
            _ip(
                f"netns add {space}",
                f"link add {port} type veth peer name eth0 netns {space}",
                f"link set {port} master {self._whole} up",
            )
            _ip(
                "link set lo up",
                f"addr add {self.address(node)}/24 dev eth0",
                "link set eth0 up",
                space=space,
            )
        return self.address(node)

    def address(self, node: str) -> str:
        return f"{SUBNET}.{self._number}.{self._nodes[node]}"

    def under(self, node: str) -> list[str]:
        """What to put before a command so that it runs there; it keeps the process id."""
        return ["nsenter", f"--net={NAMESPACES / self._space(node)}", "--"]

    def part(self, nodes: Sequence[str]) -> None:
        """Puts these on one side and all others on the other; within a side everybody hears everybody."""
        apart = set(nodes)
        _ip(
            *(
                f"link set {self._port(node)} master {self._apart if node in apart else self._whole}"
                for node in self._nodes
            )
        )

    def deafen(self, node: str) -> None:
        """What it sends arrives; nothing reaches it."""
        # First nothing new is learnt about where it is, then what was learnt is forgotten.
        quiet = "flood off mcast_flood off bcast_flood off learning off"
        _ip(
            f"link set {self._port(node)} type bridge_slave {quiet}",
            f"link set {self._port(node)} type bridge_slave fdb_flush",
        )

    def heal(self) -> None:
        loud = "flood on mcast_flood on bcast_flood on learning on"
        for node in self._nodes:
            _ip(
                f"link set {self._port(node)} master {self._whole}",
                f"link set {self._port(node)} type bridge_slave {loud}",
            )

    def close(self) -> None:
        """Processes that are still there keep their namespace until they end; nobody can reach them."""
        for node in self._nodes:
            _try_ip(f"netns del {self._space(node)}")
            _try_ip(f"link del {self._port(node)}")
        self._nodes.clear()
        for bridge in (self._whole, self._apart):
            _try_ip(f"link del {bridge}")

    def _space(self, node: str) -> str:
        return f"{PREFIX}-{self._tag}-{node}"

    def _port(self, node: str) -> str:
        return f"v{self._tag}.{self._nodes[node]}"


def _ip(*commands: str, space: str | None = None) -> None:
    inside = ["-n", space] if space else []
    done = subprocess.run(
        ["ip", *inside, "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, timeout=30
    )
    if done.returncode:
        raise NetworkError(f"this machine makes no networks: ip {'; '.join(commands)}: {done.stderr.strip()}")


def _try_ip(command: str) -> None:
    """For what may be gone already."""
    subprocess.run(["ip", *command.split()], capture_output=True, timeout=30)


def _free_subnet() -> int:
    shown = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, timeout=30).stdout
    for step in range(250):
        number = (os.getpid() + step) % 250
        if f"{SUBNET}.{number}." not in shown:
            return number
    raise NetworkError(f"every subnet of {SUBNET} is in use: remove old bridges named {PREFIX}…")


def _sweep() -> None:
    """Removes what runs that were killed have left: the names tell whose it was."""
    owners: dict[str, str] = {}
    if NAMESPACES.is_dir():
        for space in NAMESPACES.glob(f"{PREFIX}-*"):
            owners[f"netns del {space.name}"] = space.name.removeprefix(f"{PREFIX}-")
    for link in Path("/sys/class/net").iterdir():
        if link.name.startswith(PREFIX):
            owners[f"link del {link.name}"] = link.name.removeprefix(PREFIX).removeprefix("x")
    for command, tag in owners.items():
        pid = tag.replace("p", "n").split("n")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            _try_ip(command)
