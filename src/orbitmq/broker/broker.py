"""The broker: its tables, its store, its ports and its clockwork, put together.

Decisions live in the rooms; here they only meet. Everything runs on the event loop's thread except disk jobs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from orbitmq.broker import client_handlers
from orbitmq.broker.clients import ClientManager
from orbitmq.broker.data_version import DataVersion
from orbitmq.broker.delays import DelayOffsets
from orbitmq.broker.events import offset_moved_event
from orbitmq.broker.filter.filter_table import FilterTable
from orbitmq.broker.filter.room import Filters
from orbitmq.broker.gateway import Gateway
from orbitmq.broker.groups import GroupTable
from orbitmq.broker.locks import QueueLocks
from orbitmq.broker.offsets import OffsetTable
from orbitmq.broker.persist import DELAYS, FILTERS, GROUPS, OFFSETS, TOPICS, ConfigStore
from orbitmq.broker.registration import BrokerIdentity, Registrar
from orbitmq.broker.replication import Replication
from orbitmq.broker.reply.room import Replies
from orbitmq.broker.retry import Retries
from orbitmq.broker.room import Room
from orbitmq.broker.send import SendHandler
from orbitmq.broker.spreading import Spreading
from orbitmq.broker.stats import BrokerStats
from orbitmq.broker.timers import Timers
from orbitmq.broker.timing import Timing
from orbitmq.broker.topics import TopicTable
from orbitmq.broker.transaction import Transactions
from orbitmq.broker.unconsumed import first_unconsumed
from orbitmq.config import BrokerConfig
from orbitmq.net.connection import Connection
from orbitmq.net.errors import RequestError
from orbitmq.net.limits import Limits
from orbitmq.net.listener import Listener, bind_socket
from orbitmq.store.cleaner import DISK_FULL
from orbitmq.store.disk import Disk
from orbitmq.store.flush import ThreadRunner
from orbitmq.store.message_store import MessageStore
from orbitmq.store.reading import ReadLimits, ReadResult
from orbitmq.store.retention import RetentionRules
from orbitmq.store.settings import StoreSettings
from orbitmq.wire import topics as names
from orbitmq.wire.bodies import SubscriptionData
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.message_id import pack_host

if TYPE_CHECKING:
    import socket

log = logging.getLogger("orbitmq.broker")

Clock = Callable[[], int]

SAVE_DELAY_S = 0.05

# Asked in this order: a message retried too often is dead whatever else it says, a prepared one is not delayed.
ROOMS: tuple[Callable[[Broker], Room], ...] = (Retries, Transactions, Timing, Replies, Filters, Spreading)


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        *,
        disk: Disk | None = None,
        config_path: str | None = None,
        random: Random | None = None,
        liveness: Clock | None = None,
        replication: Callable[[Broker], Replication] = Replication,
    ) -> None:
        """`liveness` tells how long a client has been silent: another clock than the messages' where that one jumps.

        `replication` makes this broker's part in its group: with fixed roles, unless a controller decides.
        """
        self.config = config
        self.config_path = config_path
        self.config_version = DataVersion()
        self.clock = clock
        self.liveness = liveness or clock
        self.disk = disk or Disk()
        self.random = random or Random()
        self.started_ms = clock()
        self.topics = TopicTable(config)
        self.groups = GroupTable(config)
        self.offsets = OffsetTable()
        self.delays = DelayOffsets()
        self.filters = FilterTable()
        self.clients = ClientManager()
        self.locks = QueueLocks()
        self.stats = BrokerStats(self.started_ms, config.broker_cluster_name)
        self.tables = ConfigStore(self.disk, os.path.join(config.store_path_root_dir, "config"))
        for name, table in (
            (TOPICS, self.topics),
            (GROUPS, self.groups),
            (OFFSETS, self.offsets),
            (DELAYS, self.delays),
            (FILTERS, self.filters),
        ):
            self.tables.add(name, table)
        self.store: MessageStore
        self.gateway: Gateway
        self.rooms: list[Room] = []
        self.registrar: Registrar
        self._runner: ThreadRunner
        self._listener: Listener | None = None
        self._listener_below: Listener | None = None
        self.replication = replication(self)
        self.served = False
        """Whether a client can have got an answer."""
        self.on_stop_request: Callable[[bool], None] | None = None
        """Set by whoever owns this process: ends it, and starts it over when called with True."""
        self._timers = Timers()
        self._saving = False
        self._save_timer: asyncio.TimerHandle | None = None
        self._save_waiters: list[asyncio.Future[None]] = []

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recovers the store before the first connection is accepted; registers when clients can be served."""
        config = self.config
        self._runner = ThreadRunner(asyncio.get_running_loop())
        sends = SendHandler(self, self.random)
        bound = bind_socket(config.listen_host, config.listen_port)
        try:
            config.listen_port = bound.getsockname()[1]
            await self.replication.claim()
            self.store = MessageStore(
                self._store_settings(),
                self.disk,
                self.clock,
                self._runner,
                self._read_limits(),
                self._retention(),
            )
            self.store.lock()
            self.tables.load()
            self._restore_topics(self.store.open(self._is_known).tail_topics)
        except BaseException:
            self._runner.close()
            bound.close()
            raise
        try:
            await self._begin_to_serve(bound, sends)
        except BaseException:
            await self._abandon(bound)
            raise

    async def _begin_to_serve(self, bound: socket.socket, sends: SendHandler) -> None:
        config = self.config
        self.replication.opened()
        self.store.cleaner.holders.append(lambda: first_unconsumed(self))
        self.gateway = Gateway(self, sends)
        self.rooms = [make(self) for make in ROOMS]
        for room in self.rooms:
            self.gateway.handlers.update(room.handlers())
            sends.diverters.append(room.divert)
        self.store.dispatcher.arrived = self.gateway.pulls.arrived
        self.store.dispatcher.all_arrived = self.gateway.pulls.together.release
        self.topics.on_change.append(self._topic_changed)
        self.groups.on_change.append(lambda name, group: self._save_soon())
        listener = self._listener = Listener(self.gateway, self._limits())
        for room in self.rooms:
            room.start(self._timers)
        self.replication.bind()
        self.served = True
        await listener.start_on(bound)
        await self._listen_below()
        self.registrar = Registrar(
            config.namesrv_addresses,
            BrokerIdentity(
                config.broker_cluster_name,
                config.broker_name,
                config.broker_id,
                self.address,
                self.ha_address,
            ),
            lambda: self.topics.wrapper(broker_perm=config.broker_permission),
            period_s=min(60.0, max(10.0, config.register_name_server_period / 1000)),
            timeout_s=config.register_broker_timeout_mills / 1000,
            compressed=config.compressed_register,
            force_register=config.force_register,
            may_register=lambda: self.replication.may_register,
        )
        await self.replication.start()
        await self.registrar.start()
        self._start_timers()

    async def _abandon(self, bound: socket.socket) -> None:
        """A start that failed leaves nothing open: whoever tries again finds ports and store free."""
        await self._timers.stop()
        await self.replication.stop()
        for listener in (self._listener, self._listener_below):
            if listener is not None:
                await listener.stop()
        for room in self.rooms:
            room.stop()
        self.store.close()
        bound.close()

    async def _listen_below(self) -> None:
        """Java slaves, and clients with the "VIP channel" on, talk to the port two below. Not having it is no error."""
        config = self.config
        try:
            below = bind_socket(config.listen_host, max(1, config.listen_port - 2))
        except OSError as error:
            log.info("not listening for Java slaves and old clients as well: %s", error)
            return
        self._listener_below = Listener(self.gateway, self._limits())
        await self._listener_below.start_on(below)

    def _start_timers(self) -> None:
        every = self._timers.every
        every(0.1, self.store.look, "store")
        every(0.5, self.store.write_queues, "queues")
        every(0.5, lambda: self.gateway.pulls.expire(self.clock()), "held-pulls")
        every(1.0, lambda: self.stats.tick(self.clock()), "stats")
        every(10.0, lambda: client_handlers.expire(self, self.liveness()), "clients")
        every(lambda: self.config.flush_consumer_offset_interval / 1000, self.save_tables, "save-tables")
        every(5.0, self._heal, "heal")
        every(lambda: self.config.clean_resource_interval / 1000, self.store.cleaner.run, "cleaning")

    async def stop(self, *, unregister: bool = True) -> None:
        """Clients are sent away first, then everything reaches the disk. Nothing acknowledged is left behind.

        Without `unregister`, name servers only see the connection close: somebody else has the place already.
        """
        await self._timers.stop()
        if self._save_timer is not None:
            self._save_timer.cancel()
        await self.registrar.stop(unregister=unregister)
        listeners = [each for each in (self._listener, self._listener_below) if each is not None]
        for listener in listeners:
            listener.stop_accepting()
        self.gateway.pulls.release_all()
        await self.gateway.stop_tasks()
        for listener in listeners:
            await listener.stop()
        await self.replication.stop()
        for room in self.rooms:
            room.stop()
        self.store.close()
        self.tables.save()

    # --- addresses --------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"{self.config.broker_ip1}:{self.config.listen_port}"

    @property
    def ha_address(self) -> str:
        config = self.config
        return f"{config.broker_ip2 or config.broker_ip1}:{config.ha_listen_port or config.listen_port + 1}"

    def _limits(self) -> Limits:
        config = self.config
        return Limits(
            max_frame_bytes=config.max_frame_bytes,
            max_connections=config.max_connections,
            max_partial_bytes=config.max_in_flight_bytes,
            idle_seconds=config.connection_idle_seconds,
        )

    def _read_limits(self) -> ReadLimits:
        config = self.config
        return ReadLimits(
            config.max_transfer_bytes_on_message_in_memory,
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_disk,
            config.max_transfer_count_on_message_in_disk,
        )

    def _retention(self) -> RetentionRules:
        config = self.config
        return RetentionRules(
            config.file_reserved_time * 3_600_000,
            config.delete_hours(),
            config.disk_max_used_space_ratio / 100,
            config.disk_space_clean_forcibly_ratio / 100,
            config.disk_space_warning_level_ratio / 100,
            config.clean_file_forcibly_enable,
        )

    def _store_settings(self) -> StoreSettings:
        config = self.config
        return StoreSettings(
            config.store_path_root_dir,
            config.store_path_commit_log,
            pack_host(self.address),
            config.mapped_file_size_commit_log,
            config.mapped_file_size_consume_queue,
            config.max_hash_slot_num,
            config.max_index_num,
            config.message_index_enable,
            config.sync_flush,
            config.sync_flush_timeout,
            config.flush_interval_commit_log,
            delay_levels_ms=config.delay_levels_ms(),
            in_memory_ratio=self._in_memory_percent() / 100,
        )

    def _in_memory_percent(self) -> int:
        """A slave calls messages old earlier than its master does, else readers would be sent to and fro."""
        percent = self.config.access_message_in_memory_max_ratio
        return max(0, percent - 10) if self.config.is_slave else percent

    # --- what the rooms ask of each other ---------------------------------------------------------------------

    def _is_known(self, topic: str) -> bool:
        """Internal topics may have queues and no settings."""
        return self.topics.get(topic) is not None or names.is_system_topic(topic)

    def _restore_topics(self, queues: dict[str, int]) -> None:
        """A topic may have got messages and the broker died before its settings were saved: it comes back."""
        for name, count in queues.items():
            if not self._is_known(name):
                log.warning(
                    "topic %s has messages but no settings; it is made again with %d queues", name, count
                )
                self.topics.create_internal(name, count, self.clock())

    def register_soon(self, topic: str | None = None) -> None:
        """Tells the name servers: about one topic that changed, or about everything."""
        if topic is None:
            self.registrar.register_soon()
        else:
            self.registrar.register_topic_soon(self.topics.wrapper([topic], self.config.broker_permission))

    def _topic_changed(self, name: str, topic: object | None) -> None:
        if topic is None:
            self.gateway.pulls.topic_deleted(name)
        self._save_soon()

    def _save_soon(self) -> None:
        """A changed topic or group is worth saving now; several that change together are saved together."""
        if self._save_timer is None:
            self._save_timer = asyncio.get_running_loop().call_later(SAVE_DELAY_S, self._save_changes)

    def saved(self) -> asyncio.Future[None]:
        """Done when everything changed so far is in the files; OSError when it cannot be brought there."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if not self._save_waiters:
            loop.call_soon(self.save_tables)  # whoever else changes something in this turn is saved along
        self._save_waiters.append(waiter)
        return waiter

    def _save_changes(self) -> None:
        self._save_timer = None
        self.save_tables()

    def save_tables(self) -> None:
        """Encodes what changed here and writes it in the disk thread; a busy disk does not hold up clients."""
        if self._saving:
            return  # who waits is served when this one is done
        pending = self.tables.snapshot()
        waiters, self._save_waiters = self._save_waiters, []
        if not pending:
            _tell(waiters, None)
            return
        self._saving = True

        def job() -> None:
            for item in pending:
                self.tables.write(item)

        def done(error: BaseException | None) -> None:
            self._saving = False
            if error is not None:
                log.error("topics, groups or offsets could not be saved, will be tried again: %s", error)
            _tell(waiters, error)
            if self._save_waiters:
                self.save_tables()

        self._runner.submit(job, done)

    def _heal(self) -> None:
        if self.store.fault is not None and not self.store.fault.reason.startswith(DISK_FULL):
            self.store.try_to_heal()

    def connection_lost(self, conn: Connection) -> None:
        client_handlers.connection_lost(self, conn)

    def check_filter(self, subscription: SubscriptionData) -> None:
        """Raises when a subscription's expression cannot be used."""
        self.gateway.pulls.compile_filter(subscription)

    def offset_moved(self, group: str, topic: str, queue_id: int, asked: int, now: int) -> None:
        """Tells whoever watches OFFSET_MOVED_EVENT that a consumer asked for messages that are not there."""
        log.warning(
            "group %s asked for offset %d of %s queue %d, which is not there; it goes on at %d",
            group,
            asked,
            topic,
            queue_id,
            now,
        )
        if not self.store.refusal and not self.config.is_slave:
            try:
                self.store.put(offset_moved_event(self, group, topic, queue_id, asked, now))
            except OSError as error:  # the store has noted it; the pull was answered all the same
                log.warning("nobody could be told that an offset moved: %s", error)

    def suggested_broker_id(self, group: str, result: ReadResult) -> int:
        """Which broker of the group a consumer should ask next; the master, unless slaves may serve slow readers."""
        if self.replication.master_is_gone:
            return self.config.broker_id
        settings = self.groups.get(group) if self.config.slave_read_enable else None
        if settings is None:
            return 0
        first = int.from_bytes(result.chunks[0][28:36], "big") if result.chunks else self.store.log.position
        if self.store.in_memory(first):
            return settings.broker_id
        return settings.which_broker_when_consume_slowly

    @property
    def serves_reads(self) -> bool:
        """A slave leaves its master's readers alone, unless it may help, or nobody else is there."""
        if not self.config.is_slave or self.replication.master_is_gone:
            return True
        return self.config.slave_read_enable and self.replication.slave_may_serve

    def config_changed(self) -> None:
        self.gateway.hot_send.configure()
        self.store.reader.limits = self._read_limits()
        self.store.cleaner.rules = self._retention()


def _tell(waiters: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(
                RequestError(
                    ResponseCode.SYSTEM_ERROR, f"it is done, but could not be saved and may not last: {error}"
                )
            )
