"""The broker's part in a group of master and slaves: what it starts for its role."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.broker.following import TableFollower
from orbitmq.broker.master_check import CheckedReceiver, MasterCheck
from orbitmq.broker.neighbours import refuse_a_taken_place
from orbitmq.cluster.confirm import Confirmations
from orbitmq.cluster.receive import Receiver
from orbitmq.cluster.ship import Shipper
from orbitmq.config import BrokerRole
from orbitmq.net.listener import bind_socket
from orbitmq.store.follower import LogFollower
from orbitmq.wire.topics import is_system_topic

if TYPE_CHECKING:
    import socket

    from orbitmq.broker.broker import Broker

_LEAST_QUEUES: Final = 4
# Under ASYNC_MASTER a slave is so much behind at most, when it keeps up. Java's master looks every 100 ms.
ASYNC_LINGER_MS: Final = 5
log = logging.getLogger("orbitmq.broker")


class Replication:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.shipper: Shipper | None = None
        self.receiver: Receiver | None = None
        self._check: MasterCheck | None = None
        self._tables: TableFollower | None = None
        self._bound: socket.socket | None = None

    async def claim(self) -> None:
        """Before the store is opened: ConfigError when somebody else has this broker's place in its group."""
        if not self._broker.config.enable_controller_mode:
            await refuse_a_taken_place(self._broker.config, self._broker.address)

    def opened(self) -> None:
        """The store is open, and nobody can send yet."""

    @property
    def may_register(self) -> bool:
        """Whether clients may be told that this broker has its role."""
        return True

    def bind(self) -> None:
        """Before the broker registers: the port is part of what it tells the name servers."""
        config = self._broker.config
        chosen = config.ha_listen_port not in (0, config.listen_port + 1)
        config.ha_listen_port = config.ha_listen_port or config.listen_port + 1
        try:
            self._bound = bind_socket(config.listen_host, config.ha_listen_port)
        except OSError as error:
            if chosen or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            self._bound = bind_socket(config.listen_host, 0)
            taken, config.ha_listen_port = config.ha_listen_port, self._bound.getsockname()[1]
            log.info("port %d for slaves is taken, %d is used instead", taken, config.ha_listen_port)

    async def start(self) -> None:
        broker = self._broker
        config = broker.config
        if config.is_slave:
            registrar = broker.registrar
            check = self._check = MasterCheck(broker, lambda: registrar.master_addr)
            self.receiver = CheckedReceiver(
                LogFollower(broker.store, self._new_queue),
                lambda: config.ha_master_address or registrar.ha_server_addr,
                check,
                report_ms=config.ha_send_heartbeat_interval,
                silence_ms=config.ha_housekeeping_interval,
                # Name servers tell a slave where its master is when it registers.
                ask_where=registrar.register_soon,
            )
            broker.store.on_growth = self.receiver.report
            self.receiver.start()
            self._tables = TableFollower(broker, lambda: check.address)
            self._tables.start()
            return
        confirmations = Confirmations(broker.clock, config.slave_timeout, config.ha_slave_fallbehind_max)
        self.shipper = Shipper(
            broker.store,
            confirmations,
            asyncio.get_running_loop().time,
            block_bytes=config.ha_transfer_batch_size,
            heartbeat_ms=config.ha_send_heartbeat_interval,
            silence_ms=config.ha_housekeeping_interval,
            linger_ms=0 if config.broker_role is BrokerRole.SYNC_MASTER else ASYNC_LINGER_MS,
        )
        if config.broker_role is BrokerRole.SYNC_MASTER:
            broker.store.copies = confirmations
        assert self._bound is not None
        await self.shipper.start_on(self._bound)
        self._bound = None

    def _new_queue(self, topic: str, queue_id: int) -> None:
        """The log may be ahead of the tables, and the master gone before it tells: readers must find the topic."""
        broker = self._broker
        if broker.topics.get(topic) is None and not is_system_topic(topic):
            broker.topics.create_internal(topic, max(_LEAST_QUEUES, queue_id + 1), broker.clock())

    @property
    def master_is_gone(self) -> bool:
        """Of a slave: nobody else can serve its queues now."""
        return self.receiver is not None and self.receiver.link is None and self.slave_may_serve

    @property
    def slave_may_serve(self) -> bool:
        """Of a slave: whether readers may see all it has. A store that is not its group's is shown to nobody."""
        return self._check is None or not self._check.foreign

    async def tables_copied(self) -> None:
        """Whoever waits for a changed topic or group need not wait for slaves: they ask for it now and then."""

    async def stop(self) -> None:
        self._broker.store.on_growth = None
        if self._bound is not None:
            self._bound.close()
            self._bound = None
        if self._tables is not None:
            await self._tables.stop()
        if self.receiver is not None:
            await self.receiver.stop()
        if self.shipper is not None:
            await self.shipper.stop()
