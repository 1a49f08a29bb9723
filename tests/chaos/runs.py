"""A fault run: a cluster under load, faults done to it and mended, and the judgement at the end."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.chaos.checker import Verdict, judge, longest_silence
from tests.chaos.faults import Fault, SmallDisk
from tests.chaos.harness import GROUP, ChaosCluster, Shape, eventually
from tests.chaos.history import History
from tests.chaos.loading import DRAIN_LIMIT_S, TOPIC, Diary, LoadProcess, read_histories
from tests.chaos.replicas import compare

SETTLED_S = 1.0
"""How long a new master is left in peace before the old one comes back."""
INSIDE = "inside"
"""The load that shares the fate of a master that is cut off."""


class Struck(NamedTuple):
    faults: tuple[Fault, ...]
    at: float
    mended: float
    was_whole: bool
    """Whether the cluster had got over what came before."""


class Run:
    """Use it as a context manager; `finish` judges."""

    def __init__(self, directory: Path, shape: Shape, *, small_disks_mib: int = 0, queues: int = 4) -> None:
        self.cluster = ChaosCluster(directory, shape)
        self.struck: list[Struck] = []
        self.history = History()
        self.drained_s = 0.0
        """How long it took until the consumers had everything."""
        self._whole = True
        self._queues = queues
        self._small_disks_mib = small_disks_mib
        self._stack = ExitStack()
        self._loads: list[LoadProcess] = []
        self._diary: Diary

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            cluster = self.cluster
            if self._small_disks_mib:
                for name in cluster.broker_names:
                    disk = SmallDisk(cluster.store(name), self._small_disks_mib)
                    stack.callback(disk.remove)
            stack.enter_context(cluster)
            self._diary = Diary(cluster.directory)
            stack.callback(self._diary.close)
            cluster.create_topic(TOPIC, self._queues)
            probes = [node.addr for node in cluster.brokers]
            plans: dict[str, dict[str, Any]] = {"load": {"probes": probes}}
            if cluster.network is not None:
                cluster.beside_master.append(INSIDE)
                plans[INSIDE] = {"probes": probes, "senders": 1, "free_senders": 0, "special_rate": 0.0}
                plans[INSIDE] |= {"consumers": 1, "stay_s": 0.0, "group": INSIDE}
            for name, plan in plans.items():
                load = LoadProcess(cluster, name, queues=self._queues, **plan)
                stack.callback(load.end)
                self._loads.append(load)
            self.work()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._small_disks_mib:
            for node in self.cluster.brokers:  # they vanish with their disks, and somebody will want to look
                kept = self.cluster.directory / "evidence" / node.name
                shutil.copytree(self.cluster.store(node.name), kept, dirs_exist_ok=True)
        self._stack.__exit__(kind, error, trace)

    def work(self, count: int = 100) -> None:
        """Until the producers have had so many more messages acknowledged."""
        load = self._loads[0]
        wanted = load.acks + count
        eventually(
            lambda: load.acks >= wanted, f"{count} messages are acknowledged", self.cluster.explain, 60
        )

    def strike(self, *faults: Fault, hold_s: float = 0.0, heal: bool = True) -> None:
        """Does them one right after the other for at least so long, and mends them, the last one first.

        With `heal` it then waits until the cluster is whole and works. Without, the next fault finds what is left.
        """
        cluster = self.cluster
        old = cluster.master()
        at = self._diary.note(" and ".join(fault.name for fault in faults))
        mends = [fault.strike(cluster) for fault in faults]
        if self._whole and len(faults) == 1 and faults[0].takes_master and old is not None:
            cluster.wait_other_master(old)
            hold_s = max(hold_s, time.monotonic() - at + SETTLED_S)
        time.sleep(max(0.0, at + hold_s - time.monotonic()))
        self._diary.note("mending")
        for mend in reversed(mends):
            mend()
        self.struck.append(Struck(faults, at, self._diary.note("mended"), self._whole))
        self._whole = heal
        if heal:
            cluster.wait_whole()
            self.work()

    def finish(self, drain_s: float = DRAIN_LIMIT_S) -> Verdict:
        """Ends the load, reads everything, stops everything and judges; fails with all that is wrong."""
        cluster = self.cluster
        for load in self._loads:
            load.quiet()
        cluster.wait_whole()
        start = time.monotonic()
        last = self._loads[0].send_last()
        undrained = [missing for load in self._loads if (missing := load.wait_for(last, drain_s))]
        if len(last) < self._queues:
            undrained.append(f"queue {len(last)} takes no message")
        self.drained_s = time.monotonic() - start
        for load in self._loads:
            load.stop()
        cluster.wait_whole(same_ends=True)
        cluster.stop_brokers()
        self.history = read_histories(self._diary, *self._loads)
        verdict = judge(self.history)
        problems = verdict.problems
        problems += [f"not everything could be read: {text}" for text in undrained]
        problems += compare(
            self.history, {node.name: cluster.store(node.name) for node in cluster.brokers}, TOPIC
        )
        for node in cluster.nodes:
            if "Traceback" in node.printed:
                problems.append(f"{node.name} printed a traceback")
        cluster.save_output()
        story = [f"{event.at:.3f} {event.what}" for event in self.history.events]
        text = "\n".join(
            [*problems, str(verdict), str(verdict.answers), *story, f"evidence: {cluster.directory}"]
        )
        assert not problems, text
        return verdict

    def without_master_s(self, struck: Struck) -> float:
        """The longest time around a fault in which nobody took messages."""
        return longest_silence(self.history, GROUP, struck.at, struck.mended, any_stored=True)

    def without_ack_s(self, struck: Struck) -> float:
        return longest_silence(self.history, GROUP, struck.at, struck.mended)
