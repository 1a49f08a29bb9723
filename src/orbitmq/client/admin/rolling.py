"""Restarting brokers one after the other, so that messages are taken and read all the time.

Slaves go first, then masters. A master whose group has a controller hands over to a slave that has everything, and is a
slave itself when it restarts. Any other master is drained before: producers go to the other masters meanwhile. One
whose topics have no other home is only restarted, since closing it would make its producers wait longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from orbitmq.client.admin.brokers import broker_config
from orbitmq.client.admin.draining import SETTLE_S, Drain, DrainProgress
from orbitmq.client.admin.permission import find_group, only_homes, open_for_writes, permission_of
from orbitmq.client.admin.stopping import log_end, stop_broker, until_back
from orbitmq.client.cluster import Cluster
from orbitmq.client.controller import ControllerClient
from orbitmq.client.errors import NotFound, OrbitMQError
from orbitmq.client.routes import BrokerData, ClusterMap
from orbitmq.wire.codes import Perm
from orbitmq.wire.controller_bodies import ReplicaView

POLL_S: Final = 0.1
HAND_OVER_S: Final = 30.0
SYNC_S: Final = 600.0
REOPEN_S: Final = 30.0
RETURN_S: Final = 60.0


class Restarted(msgspec.Struct, frozen=True, kw_only=True):
    broker: str
    addr: str
    was_master: bool
    handed_over: bool
    away_s: float
    """From the request until it was back, known to the name servers, and complete."""


class RestartProgress(msgspec.Struct, frozen=True, kw_only=True):
    done: list[Restarted]
    now: str
    doing: str
    left: list[str]
    """The addresses whose turn has not come, without the one that is being restarted."""


async def restart_order(cluster: Cluster, brokers: Sequence[str] = ()) -> list[str]:
    """The addresses to restart: of these broker names (or addresses), or of all. Slaves come first."""
    return in_order(await cluster.cluster_map(), brokers)


def in_order(known: ClusterMap, brokers: Sequence[str]) -> list[str]:
    members = [
        (broker_id == 0, broker.name, broker_id, addr)
        for broker in known.brokers.values()
        for broker_id, addr in broker.addrs.items()
        if not brokers or broker.name in brokers or addr in brokers
    ]
    named = {name for _, name, _, addr in members} | {addr for _, _, _, addr in members}
    for wanted in brokers:
        if wanted not in named:
            names = ", ".join(sorted(known.brokers)) or "none"
            raise NotFound(f"no broker is called '{wanted}'", hint=f"registered brokers: {names}")
    return [addr for *_, addr in sorted(members)]


class RollingRestart:
    """One run over these addresses, in this order. `on_progress` hears of every step."""

    def __init__(
        self,
        cluster: Cluster,
        order: Sequence[str],
        *,
        settle_s: float = SETTLE_S,
        on_progress: Callable[[RestartProgress], None] = lambda progress: None,
    ) -> None:
        self._cluster = cluster
        self._left = list(order)
        self._settle_s = settle_s
        self._on_progress = on_progress
        self._now = ""
        self._reopened_at: float | None = None
        self.done: list[Restarted] = []

    async def run(self) -> list[Restarted]:
        while self._left:
            self._now = self._left.pop(0)
            await self._restart(self._now)
        return self.done

    async def _restart(self, addr: str) -> None:
        group = await self._group_of(addr)
        was_master, handed_over = group.master == addr, False
        if was_master:
            handed_over = await self._hand_over(group.name, addr)
        began = asyncio.get_running_loop().time()
        if was_master and not handed_over:
            began = await self._restart_master(group.name, addr)
        else:
            await self._restart_process(group.name, addr)
        self.done.append(
            Restarted(
                broker=group.name,
                addr=addr,
                was_master=was_master,
                handed_over=handed_over,
                away_s=round(asyncio.get_running_loop().time() - began, 3),
            )
        )
        self._tell("is back")

    async def _group_of(self, addr: str) -> BrokerData:
        """Waits for it: one that shares a server with the one before, or changes its role now, is on its way back."""
        deadline = asyncio.get_running_loop().time() + RETURN_S
        while asyncio.get_running_loop().time() < deadline:
            group = await self._registered(addr)
            if group is not None and group.master is not None:
                return group
            await asyncio.sleep(POLL_S)
        return await find_group(self._cluster, addr)

    async def _registered(self, broker: str) -> BrokerData | None:
        """None in the moments in which nobody of the group is: while members change their roles."""
        try:
            return await find_group(self._cluster, broker)
        except NotFound:
            return None

    # --- masters ------------------------------------------------------------------------------------------------

    async def _restart_master(self, name: str, addr: str) -> float:
        """Producers go elsewhere meanwhile, if there is an elsewhere; when the restart itself began."""
        cluster, now = self._cluster, asyncio.get_running_loop().time
        before = await permission_of(cluster, addr)
        drained = bool(before & Perm.WRITE) and not await only_homes(cluster, name)
        try:
            if drained:
                await self._drain(name)
            began = now()
            await self._restart_process(name, addr)
        except BaseException:
            if drained:
                await self._reopen_after_all(name, before)
            raise
        if await permission_of(cluster, addr) != before or drained:
            await open_for_writes(cluster, await find_group(cluster, name), before)
            self._reopened_at = now()
        return began

    async def _drain(self, name: str) -> None:
        """The producers of this one may have heard last that the one before was closed: they need time to hear anew."""
        reopened_s = (
            self._settle_s
            if self._reopened_at is None
            else asyncio.get_running_loop().time() - self._reopened_at
        )

        def look(progress: DrainProgress) -> None:
            arriving = "" if progress.in_per_s is None else f": {progress.in_per_s:,.0f} messages/s arrive"
            self._tell("waits until producers have left" + arriving)

        await Drain(
            self._cluster,
            name,
            force=True,
            wait_for_groups=False,
            settle_s=self._settle_s,
            wait_at_least_s=max(0.0, self._settle_s - reopened_s),
            on_progress=look,
        ).run()

    async def _reopen_after_all(self, name: str, perm: int) -> None:
        """Interrupted or failed: what this run closed, it opens."""
        try:
            async with asyncio.timeout(REOPEN_S):
                while True:
                    try:
                        await open_for_writes(self._cluster, await find_group(self._cluster, name), perm)
                        return
                    except OrbitMQError:  # it is away; soon it is back
                        await asyncio.sleep(POLL_S)
        except TimeoutError:
            self._tell(f"may be closed for messages: `orbitmq cluster drain {name} --undo` opens it")

    async def _hand_over(self, name: str, addr: str) -> bool:
        """Whether a controller has made another member master."""
        controllers = await self._controllers_of(addr)
        if not controllers:
            return False
        replicas = await self._replicas(name, controllers)
        heirs = [each for each in replicas if each.alive and each.in_sync and each.address != addr]
        if not heirs:
            return False
        self._tell("hands over to another member")
        async with ControllerClient(controllers, self._cluster.timeout_s) as client:
            await client.hand_over(name, heirs[0].replica)
        deadline = asyncio.get_running_loop().time() + HAND_OVER_S
        while asyncio.get_running_loop().time() < deadline:
            group = await self._registered(name)
            if group is not None and group.master not in (None, addr) and addr in group.addrs.values():
                return True
            await asyncio.sleep(POLL_S)
        raise OrbitMQError(
            f"broker '{name}' has not handed over within {HAND_OVER_S:g} s",
            hint="see `orbitmq cluster list` and the controller's log; nothing was restarted",
        )

    async def _controllers_of(self, addr: str) -> list[str]:
        settings = await broker_config(self._cluster, addr)
        if settings.get("enableControllerMode") != "true":
            return []
        return [each.strip() for each in settings.get("controllerAddr", "").split(";") if each.strip()]

    async def _replicas(self, name: str, controllers: list[str]) -> list[ReplicaView]:
        async with ControllerClient(controllers, self._cluster.timeout_s) as client:
            groups = (await client.state()).groups
        return next((group.replicas for group in groups if group.broker == name), [])

    # --- any process ----------------------------------------------------------------------------------------------

    async def _restart_process(self, name: str, addr: str) -> None:
        controllers = await self._controllers_of(addr)
        self._tell("restarts")
        ended_run = await stop_broker(self._cluster, addr, restart=True)
        await until_back(self._cluster, addr, ended_run)
        self._tell("is back and catches up")
        await self._until_complete(name, addr, controllers)

    async def _until_complete(self, name: str, addr: str, controllers: list[str]) -> None:
        """Until master and slaves have the same log, and the controller counts on this one."""
        deadline = asyncio.get_running_loop().time() + SYNC_S
        while not await self._is_complete(name, addr, controllers):
            if asyncio.get_running_loop().time() > deadline:
                raise OrbitMQError(
                    f"the copies of broker '{name}' are not complete after {SYNC_S:g} s",
                    hint="look at the logs of its slaves; nothing else was restarted",
                )
            await asyncio.sleep(POLL_S)

    async def _is_complete(self, name: str, addr: str, controllers: list[str]) -> bool:
        group = await self._registered(name)
        if group is None or group.master is None:
            return False
        try:
            end = await log_end(self._cluster, group.master)
            slaves = [other for other in group.addrs.values() if other != group.master]
            if any([await log_end(self._cluster, slave) < end for slave in slaves]):
                return False
            if controllers:
                replicas = await self._replicas(name, controllers)
                return any(each.address == addr and each.in_sync for each in replicas)
        except OrbitMQError:  # one of them is not up yet
            return False
        return True

    def _tell(self, doing: str) -> None:
        self._on_progress(
            RestartProgress(done=list(self.done), now=self._now, doing=doing, left=list(self._left))
        )
