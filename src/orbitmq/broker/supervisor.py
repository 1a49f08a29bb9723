"""A broker in controller mode: runs it as what the controller says, and opens it anew when that changes.

A role is changed by closing the broker and opening it in the other role, in the same process: the way a store is opened
after a crash is the one that is tested best. Heartbeats go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from orbitmq.broker.broker import Broker
from orbitmq.broker.controlled import ControlledReplication
from orbitmq.broker.membership import Membership, NotWelcome, ReplicaIdentity
from orbitmq.cluster.epochs import EpochHistory
from orbitmq.cluster.replica_file import FILE_NAME as REPLICA_FILE
from orbitmq.cluster.replica_file import note_number, own_replica
from orbitmq.config import BrokerConfig, BrokerRole, ConfigError
from orbitmq.net.controller_line import ControllerLine
from orbitmq.net.listener import bind_socket
from orbitmq.store.cutting import cut_store
from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreError
from orbitmq.store.segment import written_end
from orbitmq.wire.controller_bodies import DECLINED, LEAVING, MASTER, RESIGNED, SLAVE, STARTING, GroupAnswer

log = logging.getLogger("orbitmq.broker")

EPOCHS_FILE: Final = "epochs.json"
CONNECT_S: Final = 1.0
RESIGN_S: Final = 3.0
ROLE_S: Final = 10.0
UNWELCOME_S: Final = 6.0
AGAIN_S: Final = 1.0
GAVE_WAY: Final = (RESIGNED, DECLINED)


class Supervisor:
    """`give_up` ends the process: called when this broker can be neither master nor slave."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Callable[[], int],
        *,
        boot_clock_s: Callable[[], float],
        new_token: Callable[[], str],
        give_up: Callable[[str], None],
        config_path: str | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._boot_clock_s = boot_clock_s
        self._new_token = new_token
        self._give_up = give_up
        self._config_path = config_path
        self._disk = disk or Disk()
        self._replicates = config.broker_role
        self._tables = os.path.join(config.store_path_root_dir, "config")
        self._end = 0
        self._task: asyncio.Task[None] | None = None
        self._switch: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._cut_to: int | None = None
        self._served = False
        self._stopping = False
        self._membership: Membership
        self.broker: Broker | None = None
        self.on_stop_request: Callable[[bool], None] | None = None
        """As of a broker; every one that is opened here passes such requests on."""

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when this broker has a role, or soon after when nobody can give it one."""
        config, disk = self._config, self._disk
        if not config.listen_port:
            with bind_socket(
                config.listen_host, 0
            ) as probe:  # the controller is told before the broker listens
                config.listen_port = probe.getsockname()[1]
        disk.makedirs(self._tables)
        replica_path = os.path.join(self._tables, REPLICA_FILE)
        replica = own_replica(
            disk,
            replica_path,
            config.broker_cluster_name,
            config.broker_name,
            self._new_token,
        )
        self._membership = Membership(
            ReplicaIdentity(replica.cluster, replica.broker, replica.token, self._new_token()),
            ControllerLine(config.controller_addresses, CONNECT_S),
            self._boot_clock_s,
            self._clock,
            replica.number,
        )
        self._say_addresses()
        if not replica.number:
            await self._first_answer()
            note_number(disk, replica_path, replica, self._membership.number)
        await self._open(SLAVE)
        self._task = asyncio.create_task(self._run(), name="membership")
        try:
            async with asyncio.timeout(ROLE_S):
                await self._settled.wait()
        except TimeoutError:
            log.warning("this broker has no role yet: the controller finds nobody who may be master")

    async def stop(self) -> None:
        """A master that stops in order leaves its place to somebody who has everything it acknowledged."""
        self._stopping = True
        if self._switch is not None:
            await asyncio.gather(self._switch, return_exceptions=True)
        membership = self._membership
        was_master = membership.role == MASTER
        if was_master:
            await self._all_copied()
        membership.role = LEAVING
        membership.lease.give_up()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await membership.beat(self.end)
        except NotWelcome as error:
            log.warning("%s", error)
        await self._close(unregister=not was_master)
        await membership.close()

    @property
    def end(self) -> int:
        if self.broker is not None:
            self._end = self.broker.store.log.position
        return self._end

    @property
    def role(self) -> str:
        return self._membership.role

    # --- heartbeats -------------------------------------------------------------------------------------------

    async def _first_answer(self) -> None:
        """A store that no controller has seen yet needs a number: a slave tells name servers who it is.

        A refusal may be about this broker's own last run, which the controller still takes for alive: for a while.
        """
        membership = self._membership
        membership.epoch = self._history.last_epoch
        end = written_end(
            self._disk, self._config.store_path_commit_log, self._config.mapped_file_size_commit_log
        )
        until = self._boot_clock_s() + UNWELCOME_S
        while True:
            try:
                if await membership.beat(end) is not None:
                    return
            except NotWelcome as error:
                if self._boot_clock_s() > until:
                    raise ConfigError(str(error)) from error
            await asyncio.sleep(membership.beat_s)

    async def _run(self) -> None:
        membership = self._membership
        while True:
            began = self._boot_clock_s()
            if membership.role in (SLAVE, STARTING):
                membership.epoch = self._history.cut(self.end).last_epoch
            try:
                answer = await membership.beat(self.end)
            except NotWelcome as error:
                self._give_up(str(error))
                return
            if answer is not None and not self._stopping:
                self._follow(answer)
            await asyncio.sleep(max(0.01, membership.beat_s - (self._boot_clock_s() - began)))

    def _follow(self, answer: GroupAnswer) -> None:
        """What the answer means for the role; one change at a time, the next answer is looked at after it."""
        membership = self._membership
        if self._switch is not None and not self._switch.done():
            return
        if answer.master == answer.replica:
            if membership.role == MASTER and membership.epoch == answer.epoch:
                self._controlled.renewed(answer)
                self._settled.set()
                if answer.resign:
                    self._begin(self._resign())
            elif membership.role not in GAVE_WAY or answer.epoch > membership.epoch:
                membership.claim(answer.epoch)
                log.warning(
                    "this broker becomes master of %s, epoch %d", self._config.broker_name, answer.epoch
                )
                self._begin(self._reopen(MASTER))
        elif membership.role in (MASTER, *GAVE_WAY) and answer.epoch > membership.epoch:
            membership.role = SLAVE
            membership.lease.give_up()
            log.warning("epoch %d has another master: this broker becomes a slave", answer.epoch)
            self._begin(self._reopen(SLAVE))
        elif membership.role in (STARTING, SLAVE):
            membership.role = SLAVE
            if answer.master is not None:
                self._settled.set()

    # --- roles ------------------------------------------------------------------------------------------------

    @property
    def _controlled(self) -> ControlledReplication:
        assert self.broker is not None and isinstance(self.broker.replication, ControlledReplication)
        return self.broker.replication

    @property
    def _epochs_path(self) -> str:
        return os.path.join(self._tables, EPOCHS_FILE)

    def _begin(self, change: Coroutine[Any, Any, None]) -> None:
        self._switch = asyncio.create_task(self._guarded(change), name="change-role")

    async def _guarded(self, change: Coroutine[Any, Any, None]) -> None:
        try:
            await change
            while self._cut_to is not None and not self._stopping:
                await self._cut(self._cut_to)
        except (OSError, StoreError) as error:
            self._give_up(str(error))
        except Exception as error:
            log.exception("changing the role failed")
            self._give_up(f"changing the role failed: {error}")

    async def _reopen(self, role: str) -> None:
        await self._close(unregister=False)
        if role == MASTER:
            try:
                await self._open(MASTER)
                return
            except OSError as error:
                log.error("this broker cannot be master, somebody else has to be: %s", error)
                # Whoever was shown nothing in this epoch can be told to forget it.
                self._membership.role = RESIGNED if self._served else DECLINED
                self._membership.lease.give_up()
        await self._open_when_possible()

    async def _open_when_possible(self) -> None:
        """As a slave. A full disk, say, is no reason to end: the operator makes room, and everything goes on."""
        said = ""
        while not self._stopping:
            try:
                await self._open(SLAVE)
                return
            except OSError as error:
                if str(error) != said:
                    said = str(error)
                    log.error("the store cannot be opened, will be tried again: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def _cut(self, point: int) -> None:
        log.warning(
            "the log is cut from %d to %d: what lies behind was never acknowledged by all, and the master has other "
            "messages there",
            self.end,
            point,
        )
        broker = self.broker
        assert broker is not None
        settings = broker.store.settings
        await self._close(unregister=False)
        cut_store(self._disk, settings, point)
        self._history.cut(point).save(self._disk, self._epochs_path)
        await self._open_when_possible()

    def _must_cut(self, point: int) -> None:
        """The master says that this log and its own differ from there on; perhaps while this slave is being opened."""
        self._cut_to = point
        if not self._stopping and (self._switch is None or self._switch.done()):
            self._begin(self._cut(point))

    async def _resign(self) -> None:
        await self._all_copied()
        self._membership.role = RESIGNED
        self._membership.lease.give_up()

    async def _all_copied(self) -> None:
        """No more writes, and everybody who may be next has all there is; or not in time, then an election decides."""
        if self.broker is None:
            return
        try:
            async with asyncio.timeout(RESIGN_S):
                await self._controlled.all_copied()
        except TimeoutError:
            log.warning("not all copies are complete: the in-sync set's oldest members decide what is kept")

    async def _open(self, role: str) -> None:
        config = self._config
        self._cut_to = None
        if role == MASTER:
            config.broker_role, config.broker_id = self._replicates, 0
        else:
            config.broker_role, config.broker_id = BrokerRole.SLAVE, self._membership.number
        broker = Broker(
            config,
            self._clock,
            disk=self._disk,
            config_path=self._config_path,
            replication=lambda owner: ControlledReplication(
                owner, self._membership, self._epochs_path, self._must_cut
            ),
        )
        broker.on_stop_request = self._stop_asked_for
        try:
            await broker.start()
        finally:
            self._served = broker.served
        self.broker = broker
        self._say_addresses()

    def _stop_asked_for(self, restart: bool) -> None:
        if self.on_stop_request is not None:
            self.on_stop_request(restart)

    async def _close(self, *, unregister: bool) -> None:
        broker, end = self.broker, self.end
        self.broker, self._end = None, end
        if broker is not None:
            await broker.stop(unregister=unregister)

    def _say_addresses(self) -> None:
        config, membership = self._config, self._membership
        membership.address = f"{config.broker_ip1}:{config.listen_port}"
        ha_port = config.ha_listen_port or config.listen_port + 1
        membership.ha_address = f"{config.broker_ip2 or config.broker_ip1}:{ha_port}"

    @property
    def _history(self) -> EpochHistory:
        """From the file: a slave's link writes there what the master told it."""
        return EpochHistory.load(self._disk, self._epochs_path)
