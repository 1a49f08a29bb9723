"""Taking a broker out of use without losing a message: producers leave, the door is closed, groups read the rest.

First the name servers stop naming it, and producers that ask for routes anew go elsewhere. When nothing arrives any
more, or producers have had their time, the broker itself refuses messages (NO_PERMISSION), which clients answer by
another broker. Then the groups read what is left. Each step shows in the broker's own settings, so a run that was
interrupted is continued by the same call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Final

import msgspec

from orbitmq.client.admin.brokers import broker_runtime
from orbitmq.client.admin.leftover import Behind, behind_on
from orbitmq.client.admin.permission import (
    find_group,
    find_master,
    leave_routes,
    only_homes,
    permission_of,
    set_permission,
)
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError, Refused
from orbitmq.wire.codes import Perm

# Clients ask for the route every 30 s; until then they may write where they wrote before.
SETTLE_S: Final = 35.0
POLL_S: Final = 1.0
# So long nothing may arrive before the door is closed ahead of time.
QUIET_S: Final = 3.0
MAX_NAMED: Final = 5


class Step(StrEnum):
    LEAVE = "producers leave"
    CLOSE = "the broker refuses messages"
    READ = "groups read the rest"
    DONE = "done"


class DrainProgress(msgspec.Struct, frozen=True, kw_only=True):
    broker: str
    step: Step
    in_per_s: float | None
    """Messages that arrive, over the time since the last look; None at the first."""
    settling_s: float
    left: int
    """Messages that some group has still to read; of several groups in one queue the slowest counts."""
    behind: list[Behind]
    done: bool = False


class StillInUse(OrbitMQError):
    """The time was over before the broker was empty. Nothing is lost; run it again."""

    def __init__(self, progress: DrainProgress) -> None:
        if progress.behind:
            groups = ", ".join(sorted({item.group for item in progress.behind}))
            what = f"broker '{progress.broker}' still has {progress.left:,} messages that {groups} must read"
        else:
            what = f"producers may still write to broker '{progress.broker}'"
        super().__init__(
            what,
            hint="run the same command again to go on, pass --ignore GROUP for a group that will not come back, or "
            f"`orbitmq cluster drain {progress.broker} --undo` to go back",
        )
        self.progress = progress


def next_step(*, takes_messages: bool, quiet: bool, settled: bool, behind: bool) -> Step:
    """What has to happen next."""
    if takes_messages:
        return Step.CLOSE if quiet or settled else Step.LEAVE
    return Step.READ if behind else Step.DONE


class Drain:
    """One run. `on_progress` hears of every look at the broker.

    `wait_at_least_s` keeps a quiet broker's door open so long: for producers that have only just heard of the others.
    """

    def __init__(
        self,
        cluster: Cluster,
        broker: str,
        *,
        force: bool = False,
        ignore: Collection[str] = (),
        wait_for_groups: bool = True,
        settle_s: float = SETTLE_S,
        wait_at_least_s: float = 0.0,
        timeout_s: float | None = None,
        poll_s: float = POLL_S,
        quiet_s: float = QUIET_S,
        on_progress: Callable[[DrainProgress], None] = lambda progress: None,
    ) -> None:
        self._cluster = cluster
        self._broker = broker
        self._force = force
        self._ignore = frozenset(ignore)
        self._wait_for_groups = wait_for_groups
        self._settle_s = settle_s
        self._at_least_s = wait_at_least_s
        self._timeout_s = timeout_s
        self._poll_s = poll_s
        self._quiet_s = min(quiet_s, settle_s)
        self._on_progress = on_progress
        self._traffic = Traffic(cluster)

    async def run(self) -> DrainProgress:
        now = asyncio.get_running_loop().time
        name = (await find_group(self._cluster, self._broker)).name
        await self._refuse_last_home(name)
        if await permission_of(self._cluster, await find_master(self._cluster, name)) & Perm.WRITE:
            await leave_routes(self._cluster, name)
        began = now()
        while True:
            # Asked each time: with a controller another member may be master by now, and its door is still open.
            master = await find_master(self._cluster, name)
            perm = await permission_of(self._cluster, master)
            progress = await self._look(name, master, bool(perm & Perm.WRITE), now() - began)
            self._on_progress(progress)
            if progress.step is Step.DONE:
                return msgspec.structs.replace(progress, done=True)
            if progress.step is Step.CLOSE:
                await set_permission(self._cluster, master, perm & ~Perm.WRITE)
                continue
            if self._timeout_s is not None and now() - began >= self._timeout_s:
                raise StillInUse(progress)
            await asyncio.sleep(self._poll_s)

    async def _look(self, name: str, master: str, takes_messages: bool, waited_s: float) -> DrainProgress:
        await self._traffic.look(master)
        behind: list[Behind] = []
        if not takes_messages and self._wait_for_groups:
            behind = await behind_on(self._cluster, master, self._ignore)
        settled = waited_s >= self._settle_s
        step = next_step(
            takes_messages=takes_messages,
            quiet=self._traffic.quiet_for_s >= self._quiet_s and waited_s >= self._at_least_s,
            settled=settled,
            behind=bool(behind),
        )
        worst: dict[tuple[str, int], int] = {}
        for item in behind:
            place = (item.topic, item.queue_id)
            worst[place] = max(worst.get(place, 0), item.behind or 0)
        return DrainProgress(
            broker=name,
            step=step,
            in_per_s=self._traffic.in_per_s,
            settling_s=max(0.0, self._settle_s - waited_s) if step is Step.LEAVE else 0.0,
            left=sum(worst.values()),
            behind=behind,
        )

    async def _refuse_last_home(self, name: str) -> None:
        if self._force:
            return
        topics = await only_homes(self._cluster, name)
        if topics:
            shown = ", ".join(topics[:MAX_NAMED])
            more = f" and {len(topics) - MAX_NAMED} more" if len(topics) > MAX_NAMED else ""
            raise Refused(
                f"'{name}' is the only broker that takes messages for {shown}{more}; producers would be stranded",
                hint="make these topics on another broker (`orbitmq cluster expand`), or pass --force",
            )


class Traffic:
    """How much a broker stores, from its own count of messages."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._count: tuple[str, str, int] | None = None
        """Of which process: one that starts over counts from 0 again."""
        self._at = 0.0
        self._changed_at = 0.0
        self.in_per_s: float | None = None

    async def look(self, addr: str) -> None:
        figures = await broker_runtime(self._cluster, addr)
        total = figures.get("putMessageTimesTotal", "")
        if not total.isdigit():
            raise OrbitMQError(
                f"{addr} does not tell how many messages it got", hint="check that the address is a broker"
            )
        now = asyncio.get_running_loop().time()
        count = (addr, figures.get("bootTimestamp", ""), int(total))
        before = self._count
        if count != before:
            self._changed_at = now
        same_process = before is not None and before[:2] == count[:2]
        self.in_per_s = (
            (count[2] - before[2]) / max(now - self._at, 0.001)
            if same_process and before is not None
            else None
        )
        self._count, self._at = count, now

    @property
    def quiet_for_s(self) -> float:
        return self._at - self._changed_at
