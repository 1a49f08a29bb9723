"""The broker's part in a group whose roles a controller decides: what it starts as master and as slave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from orbitmq.broker.following import take_table
from orbitmq.broker.membership import Membership
from orbitmq.broker.persist import DELAYS, FILTERS, GROUPS, OFFSETS, TOPICS
from orbitmq.broker.replication import Replication
from orbitmq.cluster.epochs import EpochHistory
from orbitmq.cluster.group_ship import GroupShipper
from orbitmq.cluster.in_sync import InSync
from orbitmq.cluster.join import JoiningReceiver, JoinTarget
from orbitmq.cluster.mastership import Mastership
from orbitmq.config import BrokerRole
from orbitmq.store.fault import Fault
from orbitmq.store.follower import LogFollower
from orbitmq.wire.controller_bodies import GroupAnswer

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

log = logging.getLogger("orbitmq.broker")

HEARTBEAT_MS: Final = 200
SILENCE_MS: Final = 1_000
WISH_S: Final = 0.1
TABLES_S: Final = 0.2
TABLE_TIMEOUT_MS: Final = 3_000
HELD_S: Final = 0.01
SHIPPED_TABLES: Final = (TOPICS, GROUPS, OFFSETS, DELAYS, FILTERS)

NO_LEASE: Final = (
    "no controller has confirmed for a whole lease that this broker is master: it takes no messages"
)
NOT_YET: Final = "this broker is about to become master and takes no messages yet"
RESIGNING: Final = "this broker hands its place over and takes no messages any more"


class ControlledReplication(Replication):
    """One per role and life of the broker. `must_cut` is told when this log has what the master's has not."""

    def __init__(
        self,
        broker: Broker,
        membership: Membership,
        epochs_path: str,
        must_cut: Callable[[int], None],
    ) -> None:
        super().__init__(broker)
        self._membership = membership
        self._epochs_path = epochs_path
        self._must_cut = must_cut
        self._tasks: list[asyncio.Task[None]] = []
        self._fault: Fault | None = None
        self._sent: dict[str, int] = {}
        self._opened_at = 0
        self._history = EpochHistory()
        self._group: GroupShipper | None = None
        self._joining: JoiningReceiver | None = None
        self.in_sync: InSync | None = None

    # --- as the broker starts and stops -----------------------------------------------------------------------

    def opened(self) -> None:
        broker = self._broker
        self._opened_at = broker.store.log.position
        if broker.config.is_slave:
            return
        self._refuse(NOT_YET)
        # On the device before the first append: whoever compares logs later finds where this epoch begins.
        history = EpochHistory.load(broker.disk, self._epochs_path).forget_before(broker.store.log.start)
        self._history = history.begin(self._membership.epoch, self._opened_at)
        self._history.save(broker.disk, self._epochs_path)

    async def start(self) -> None:
        if self._broker.config.is_slave:
            self._join()
        else:
            await self._lead()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.in_sync is not None:
            self.in_sync.close()
        if self._joining is not None:
            await self._joining.stop()
        if self._group is not None:
            await self._group.stop()
        self._broker.store.copies = None
        self._accept()
        await super().stop()

    # --- the right to be master -------------------------------------------------------------------------------

    @property
    def may_register(self) -> bool:
        return self._broker.config.is_slave or self._membership.lease.valid

    def check_lease(self) -> None:
        """Before every read from a client: a process that was frozen must notice before it takes a message."""
        if self._fault is None and not self._membership.lease.valid:
            self._refuse(NO_LEASE)
            log.error("%s", NO_LEASE)

    def renewed(self, answer: GroupAnswer) -> None:
        """The controller has confirmed this master; its word about the set counts, too."""
        if self.in_sync is None:
            return
        self.in_sync.granted(frozenset(answer.in_sync), answer.version)
        if self._fault is not None and self._fault.reason == NO_LEASE and self._membership.lease.valid:
            self._accept()
            self._broker.store.writes_begin()
            log.warning("the controller has confirmed this master again: it takes messages")
            self._broker.register_soon()

    def _refuse(self, reason: str) -> None:
        store = self._broker.store
        self._fault = Fault(reason, heals=False)
        if store.fault is None or store.fault.heals:
            store.fault = self._fault

    def _accept(self) -> None:
        store = self._broker.store
        if store.fault is self._fault:
            store.fault = None
        self._fault = None

    async def all_copied(self) -> None:
        """Takes no more messages; done when everybody in the ack set has all there is."""
        in_sync = self.in_sync
        if in_sync is None:
            return
        self._refuse(RESIGNING)
        while not in_sync.everything_held(self._broker.store.log.position):
            await asyncio.sleep(HELD_S)
        await self._ship_tables()

    # --- as master --------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        broker, membership = self._broker, self._membership
        config, store = broker.config, broker.store
        known, loop = membership.known, asyncio.get_running_loop()
        assert known is not None and self._bound is not None
        copies = config.broker_role is BrokerRole.SYNC_MASTER
        in_sync = InSync(
            membership.number,
            {membership.number, *known.in_sync},
            known.version,
            store.log.position,
            lambda: int(loop.time() * 1000),
            min_in_sync=config.in_sync_replicas,
            timeout_ms=config.slave_timeout,
            not_caught_up_ms=config.ha_max_time_slave_not_catchup,
            wait_for_copies=copies,
        )
        if copies:
            store.copies = in_sync
            store.copied_to = in_sync.visible_offset
            in_sync.listen(store.copied)
        self.in_sync = in_sync
        self._group = GroupShipper(
            store,
            Mastership(
                config.broker_cluster_name,
                config.broker_name,
                membership.number,
                membership.epoch,
                self._history,
            ),
            in_sync,
            loop.time,
            block_bytes=config.ha_transfer_batch_size,
            heartbeat_ms=HEARTBEAT_MS,
            silence_ms=SILENCE_MS,
            table_timeout_ms=TABLE_TIMEOUT_MS,
        )
        self._send_changed_tables()
        await self._group.start_on(self._bound)
        self._bound = None
        self._tasks = [
            asyncio.create_task(self._keep_set(), name="in-sync-set"),
            asyncio.create_task(self._keep_tables(), name="ship-tables"),
        ]
        broker.gateway.before_read = self.check_lease
        self._accept()
        self.check_lease()
        store.writes_begin()

    async def _keep_set(self) -> None:
        """Asks the controller for another set whenever somebody has caught up, or has not for too long."""
        in_sync = self.in_sync
        assert in_sync is not None
        wished = asyncio.Event()
        in_sync.on_wish = wished.set
        while True:
            wish = in_sync.wish()
            if wish is not None:
                in_sync.asked(wish)
                outcome = await self._membership.alter(wish, in_sync.version)
                if outcome is not None:
                    granted, answer = outcome
                    settle = in_sync.granted if granted else in_sync.refused
                    settle(frozenset(answer.in_sync), answer.version)
                    log.info("the in-sync set is now %s", sorted(in_sync.members))
                    if granted:
                        continue
            self.check_lease()
            wished.clear()
            try:
                async with asyncio.timeout(WISH_S):
                    await wished.wait()
            except TimeoutError:
                continue

    async def _keep_tables(self) -> None:
        while True:
            await asyncio.sleep(TABLES_S)
            self._send_changed_tables()

    def _send_changed_tables(self) -> None:
        """Topics, groups, offsets, delays and filters as they are now, if they changed."""
        group, tables = self._group, self._broker.tables
        assert group is not None
        for name in SHIPPED_TABLES:
            changes = tables.changes(name)
            if self._sent.get(name) != changes:
                self._sent[name] = changes
                group.send_table(name, tables.text(name))

    async def tables_copied(self) -> None:
        """Whoever changes a topic hears of success when a slave that becomes master would know it, too."""
        if self._group is not None:
            await self._ship_tables()

    async def _ship_tables(self) -> None:
        group = self._group
        assert group is not None
        self._send_changed_tables()
        if not await group.tables_saved():
            log.warning("not every slave has saved the changed tables in time")

    # --- as slave ---------------------------------------------------------------------------------------------

    def _join(self) -> None:
        broker = self._broker
        self._joining = JoiningReceiver(
            LogFollower(broker.store, self._new_queue, gated=True),
            self._target,
            broker.disk,
            self._epochs_path,
            on_cut=self._must_cut,
            apply_table=self._take_table,
            report_ms=HEARTBEAT_MS,
            silence_ms=SILENCE_MS,
        )
        broker.store.on_growth = self._joining.report
        self._joining.start()

    def _target(self) -> JoinTarget | None:
        membership, known = self._membership, self._membership.known
        if known is None or known.master in (None, membership.number) or not known.master_ha_address:
            return None
        who = membership.identity
        return JoinTarget(
            known.master_ha_address, who.cluster, who.broker, membership.number, who.token, known.epoch
        )

    async def _take_table(self, name: str, data: dict[str, Any]) -> None:
        take_table(self._broker, name, data)
        await self._broker.saved()

    @property
    def master_is_gone(self) -> bool:
        """Never a reason to serve reads here: another master is elected within seconds."""
        return False

    @property
    def slave_may_serve(self) -> bool:
        """What recovery has shown of the log's end may not have been acknowledged by all; the master's word tells."""
        joining = self._joining
        return joining is not None and joining.link is not None and joining.confirm_offset >= self._opened_at
