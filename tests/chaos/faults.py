"""What can be done to a cluster, and undone: each fault has a name, strikes, and is mended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.harness import ChaosCluster, Node, Shape

Mend = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    name: str
    strike: Callable[[ChaosCluster], Mend]
    """Does it, and gives back what undoes it."""
    takes_master: bool = False
    """Somebody else must become master meanwhile."""
    apart: bool = False
    """Needs networks that can be cut."""
    etcd: bool = False
    small_disks: bool = False
    brokers: int = 2
    """So many are needed at least."""


def kill_master(cluster: ChaosCluster) -> Mend:
    return _killed(cluster.require_master())


def kill_slave(cluster: ChaosCluster) -> Mend:
    return _killed(cluster.slave())


def stop_master(cluster: ChaosCluster) -> Mend:
    """In good order: it hands over before it goes."""
    node = cluster.require_master()
    assert node.stop() == 0, f"{node.name} did not stop well:\n{node.printed[-3000:]}"
    return node.start


def freeze_master(cluster: ChaosCluster) -> Mend:
    return _frozen(cluster.require_master())


def freeze_slave(cluster: ChaosCluster) -> Mend:
    return _frozen(cluster.slave())


def cut_off_master(cluster: ChaosCluster) -> Mend:
    """Alone with the clients that sit beside it, who go on sending to it."""
    return _cut(cluster, [cluster.require_master().name, *cluster.beside_master])


def cut_off_slave(cluster: ChaosCluster) -> Mend:
    return _cut(cluster, [cluster.slave().name])


def cut_off_controllers(cluster: ChaosCluster) -> Mend:
    names = [node.name for node in cluster.controllers] + [node.name for node in cluster.etcd]
    return _cut(cluster, names)


def deafen_master(cluster: ChaosCluster) -> Mend:
    """Its packets arrive, the answers do not."""
    assert cluster.network is not None
    cluster.network.deafen(cluster.require_master().name)
    return cluster.network.heal


def kill_controller(cluster: ChaosCluster) -> Mend:
    """The active one, if there are several."""
    active = cluster.active_controller()
    return _killed(active)


def kill_all_controllers(cluster: ChaosCluster) -> Mend:
    return _all_killed([node for node in cluster.controllers if node.running])


def kill_namesrvs(cluster: ChaosCluster) -> Mend:
    return _all_killed(cluster.namesrvs)


def kill_all_brokers(cluster: ChaosCluster) -> Mend:
    return _all_killed(cluster.brokers)


def kill_etcd_leader(cluster: ChaosCluster) -> Mend:
    node = cluster.etcd_leader()
    node.kill()
    return node.start


def fill_slave_disk(cluster: ChaosCluster) -> Mend:
    filler = cluster.store(cluster.slave().name) / "filler"
    filled = subprocess.run(
        ["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], capture_output=True, text=True, timeout=60
    )
    assert "No space left" in filled.stderr, f"the slave's disk is not small: {filled.stderr}"
    return filler.unlink


def leave_stale_slave_alone(cluster: ChaosCluster) -> Mend:
    """One slave misses what the others acknowledge; then it is the only one alive, and must not become master."""
    stale = cluster.slave()
    others = [node for node in cluster.brokers if node is not stale]
    stale.freeze()
    cluster.wait_in_sync(len(others))
    time.sleep(1.0)
    mend = _all_killed(others)
    stale.thaw()
    until = time.monotonic() + 2.5 * cluster.shape.lease_ms / 1000
    while time.monotonic() < until:
        assert cluster.master() is not stale, (
            f"a slave became master that had missed messages\n{cluster.explain()}"
        )
        time.sleep(0.1)
    return mend


def _killed(node: Node) -> Mend:
    node.kill()
    return node.start


def _all_killed(nodes: Sequence[Node]) -> Mend:
    for node in nodes:
        node.kill()

    def mend() -> None:
        for node in nodes:
            node.start(wait=False)
        for node in nodes:
            node.wait_ready()

    return mend


def _frozen(node: Node) -> Mend:
    node.freeze()
    return node.thaw


def _cut(cluster: ChaosCluster, names: list[str]) -> Mend:
    assert cluster.network is not None
    cluster.network.part(names)
    return cluster.network.heal


KILL_MASTER = Fault("kill the master", kill_master, takes_master=True)
KILL_SLAVE = Fault("kill a slave", kill_slave)
STOP_MASTER = Fault("stop the master", stop_master, takes_master=True)
FREEZE_MASTER = Fault("freeze the master past its lease", freeze_master, takes_master=True)
FREEZE_SLAVE = Fault("freeze a slave", freeze_slave)
CUT_OFF_MASTER = Fault("cut off the master", cut_off_master, takes_master=True, apart=True)
CUT_OFF_SLAVE = Fault("cut off a slave", cut_off_slave, apart=True)
CUT_OFF_CONTROLLERS = Fault("cut off the controllers", cut_off_controllers, apart=True)
DEAFEN_MASTER = Fault("deafen the master", deafen_master, takes_master=True, apart=True)
KILL_CONTROLLER = Fault("kill the active controller", kill_controller)
KILL_CONTROLLERS = Fault("kill all controllers", kill_all_controllers)
KILL_NAMESRVS = Fault("kill the name servers", kill_namesrvs)
KILL_BROKERS = Fault("kill all brokers", kill_all_brokers)
KILL_ETCD_LEADER = Fault("kill etcd's leader", kill_etcd_leader, etcd=True)
FILL_DISK = Fault("fill the slave's disk", fill_slave_disk, small_disks=True)

STALE_SLAVE_ALONE = Fault("leave a stale slave alone", leave_stale_slave_alone, brokers=3)

FAULTS: tuple[tuple[Fault, ...], ...] = (
    (KILL_MASTER,),
    (KILL_SLAVE,),
    (STOP_MASTER,),
    (FREEZE_MASTER,),
    (FREEZE_SLAVE,),
    (CUT_OFF_MASTER,),
    (CUT_OFF_SLAVE,),
    (CUT_OFF_CONTROLLERS,),
    (DEAFEN_MASTER,),
    (KILL_CONTROLLER,),
    (KILL_CONTROLLERS,),
    (KILL_NAMESRVS,),
    (KILL_BROKERS,),
    (KILL_ETCD_LEADER,),
    (FILL_DISK,),
    (STALE_SLAVE_ALONE,),
    # At the same time; who is struck first is found by asking the controllers, so they come last.
    (KILL_SLAVE, KILL_MASTER),
    (KILL_MASTER, KILL_CONTROLLER),
    (FREEZE_MASTER, KILL_CONTROLLERS),
    (CUT_OFF_MASTER, KILL_CONTROLLER),
    (KILL_MASTER, KILL_ETCD_LEADER),
    (KILL_MASTER, KILL_NAMESRVS),
    (FILL_DISK, KILL_MASTER),
)


def possible(faults: tuple[Fault, ...], shape: Shape, *, small_disks: bool) -> bool:
    return all(
        shape.apart >= fault.apart
        and bool(shape.etcd) >= fault.etcd
        and shape.brokers >= fault.brokers
        and small_disks >= fault.small_disks
        for fault in faults
    )


class SmallDisk:
    """A file system of a few MiB in a file, mounted where a broker keeps its store.

    Not one in memory: there, reading a hole of a mapped file takes room, and a full disk ends the reader (SIGBUS).
    """

    def __init__(self, path: Path, size_mib: int) -> None:
        self.path = path
        self._image = path.with_name("disk.img")
        path.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as image:
            image.truncate(size_mib << 20)
        for command in (
            ["mkfs.ext4", "-q", "-F", str(self._image)],
            ["mount", "-o", "loop", str(self._image), str(path)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"a small disk cannot be made: {' '.join(command)}: {done.stderr}"

    def remove(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, timeout=60)
        self._image.unlink(missing_ok=True)
