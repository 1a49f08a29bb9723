"""A real name server and broker inside a test's process, on a clock that the test moves.

    def test_reminder(orbitmq_server):                    # the pytest fixture; or: with Server() as server
        with orbitmq_server.connect() as mq:
            mq.producer("shop").send("reminders", b"pay", deliver_after=timedelta(hours=2))
        assert orbitmq_server.sent("reminders") == []
        orbitmq_server.advance(hours=2)
        assert [message.body for message in orbitmq_server.sent("reminders")] == [b"pay"]

In:   what clients send, as to any server; `advance`, which lets hours pass in a moment.
Out:  what was stored (`sent`), what waits for its time (`waiting`), what a group gave up (`dead`).

Everything runs in a thread of its own, so it serves blocking and asynchronous tests alike. Nothing is synced to the
device: the directory is thrown away with the server.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from orbitmq.broker.broker import Broker
from orbitmq.broker.timing import Timing
from orbitmq.broker.timing.lookup import Spot
from orbitmq.config import BrokerConfig, ConfigError, NamesrvConfig, warnings_for
from orbitmq.loop_thread import LoopThread
from orbitmq.namesrv.service import NameServer
from orbitmq.store.consume_queue import UNIT
from orbitmq.store.disk import Disk, StrPath
from orbitmq.wire.topics import dead_topic

if TYPE_CHECKING:
    from orbitmq import sync
    from orbitmq.client.message import Message

BROKER_NAME: Final = "broker-a"
MIB: Final = 1024 * 1024
WAIT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.005

# Small files, so that a start costs nothing; a retention that no `advance` reaches; nothing waits for a slow disk.
_SETTINGS: Final = {
    "brokerName": BROKER_NAME,
    "listenHost": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "listenPort": "0",
    "mappedFileSizeCommitLog": str(64 * MIB),
    "mappedFileSizeConsumeQueue": str(20 * 50_000),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    "fileReservedTime": str(24 * 365 * 100),
    "enablePropertyFilter": "true",
}


class VirtualClock:
    """The time of this machine, moved forward by whatever a test has let pass."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return _wall_ms() + self.ahead_ms

    def forward_to(self, moment_ms: int) -> None:
        """Time never goes back: an earlier moment leaves the clock as it is."""
        self.ahead_ms = max(self.ahead_ms, moment_ms - _wall_ms())


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message whose time has not come: delayed, scheduled, or about to be tried again."""

    topic: str
    body: bytes
    msg_id: str
    deliver_at: datetime
    retry: bool


class Server:
    """Use it as a context manager. Settings are RocketMQ's keys, as in `broker.conf`: `autoCreateTopicEnable=False`."""

    def __init__(self, directory: StrPath | None = None, **settings: str | int | bool) -> None:
        self.clock = VirtualClock()
        self._made_here = directory is None
        self._directory = Path(directory or tempfile.mkdtemp(prefix="orbitmq-test-"))
        self._settings = {**_SETTINGS, **{name: _text(value) for name, value in settings.items()}}
        self._loop: LoopThread
        self._namesrv: NameServer
        self._broker: Broker | None = None
        self._broker_port = 0
        self.namesrv = ""
        """The address for clients, `127.0.0.1:port`."""

    # --- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when clients can send."""
        self._loop = LoopThread("orbitmq-test-server")
        try:
            self._loop.run(self._start())
        except BaseException:
            self._loop.close()
            raise

    async def _start(self) -> None:
        config, _ = NamesrvConfig.from_properties(
            {
                "listenHost": "127.0.0.1",
                "listenPort": "0",
                "kvConfigPath": str(self._directory / "namesrv" / "kvConfig.json"),
                "configStorePath": str(self._directory / "namesrv" / "namesrv.properties"),
            }
        )
        self._namesrv = NameServer(config)
        self.namesrv = f"127.0.0.1:{await self._namesrv.start()}"
        try:
            await self._start_broker()
        except BaseException:
            await self._namesrv.stop()
            raise

    async def _start_broker(self) -> None:
        properties = {
            **self._settings,
            "storePathRootDir": str(self._directory / "store"),
            "namesrvAddr": self.namesrv,
        }
        if self._broker_port:
            properties["listenPort"] = str(self._broker_port)
        config, unknown = BrokerConfig.from_properties(properties)
        if unknown:
            raise ConfigError("; ".join(warnings_for(unknown, BrokerConfig)))
        config.fill_blanks(ip="127.0.0.1", host_name=BROKER_NAME)
        broker = Broker(config, self.clock, disk=_ForgetfulDisk(), liveness=_wall_ms)
        await broker.start()
        self._broker_port = config.listen_port
        self._broker = broker

    def stop(self) -> None:
        """Stopping twice does no harm."""
        if self._loop.closed:
            return
        try:
            self.stop_broker()
            self._loop.run(self._namesrv.stop())
        finally:
            self._loop.close()
            if self._made_here:
                shutil.rmtree(self._directory, ignore_errors=True)

    def stop_broker(self) -> None:
        """The broker goes away, as in a restart: clients lose their connections, the messages stay on disk."""
        broker, self._broker = self._broker, None
        if broker is not None:
            self._loop.run(broker.stop())

    def start_broker(self) -> None:
        """It comes back at the same address, with its messages."""
        if self._broker is None:
            self._loop.run(self._start_broker())

    @property
    def broker(self) -> Broker:
        """The running broker itself. It belongs to another thread: look at it by `inspect`."""
        if self._broker is None:
            raise RuntimeError("the broker is stopped; call start_broker() first")
        return self._broker

    @property
    def address(self) -> str:
        """The broker's own address."""
        return f"127.0.0.1:{self._broker_port}"

    def inspect(self, look: Callable[[Broker], Any]) -> Any:
        """Calls `look(broker)` in the broker's thread, for what has no method here."""
        return self._loop.call(lambda: look(self.broker))

    def connect(self, **options: Any) -> sync.Client:
        """A blocking client of this server, on its clock; an asynchronous one is `orbitmq.connect(server.namesrv)`."""
        from orbitmq import sync

        return sync.connect(self.namesrv, **{"clock": self.clock, **options})

    # --- time ---------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The server's time, the one to give `deliver_at` relative to."""
        return _moment(self.clock())

    def advance(
        self,
        by: timedelta | float = 0.0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> datetime:
        """Lets time pass; returns the new time. What comes due meanwhile is stored, in its order, before this returns.

        Delayed messages, retries and scheduled ones are delivered at the moment each was due. Open transactions are
        asked for once. Connected clients do not expire.
        """
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        step += timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if step < timedelta(0):
            raise ValueError(f"time does not go back: {step}; start another server for an earlier time")
        self._loop.run(self._advance(round(step / timedelta(milliseconds=1))))
        return self.now()

    async def _advance(self, by_ms: int) -> None:
        target_ms = self.clock() + by_ms
        while True:
            await self._work_off()
            now_ms = self.clock()
            due = [room.next_due_ms(now_ms) for room in self.broker.rooms]
            next_ms = min((moment for moment in due if moment is not None), default=target_ms)
            if next_ms >= target_ms:
                break
            self.clock.forward_to(max(next_ms, now_ms + 1))
        self.clock.forward_to(target_ms)
        await self._work_off()

    async def _work_off(self) -> None:
        """Until nothing is due. The clock only moves when nobody waits for the disk: that wait would seem endless."""
        while True:
            await self._written()
            more = [room.time_has_passed() for room in self.broker.rooms]
            if not any(more):
                break
        await self._written()

    async def _written(self) -> None:
        store = self.broker.store
        while store.settings.sync_flush and store.durability.offset < store.log.position:
            if store.refusal:
                raise RuntimeError(f"the broker cannot write: {store.refusal}")
            flushed = asyncio.get_running_loop().create_future()
            store.when_durable(store.log.position, flushed.set_result)
            store.durability.kick()
            await flushed

    # --- what happened ------------------------------------------------------------------------------------------

    def sent(self, topic: str, *, tag: str | None = None, key: str | None = None) -> list[Message]:
        """The messages that consumers of a topic can see, in the order in which they were stored."""
        found: list[Message] = self.inspect(lambda broker: _stored(broker, topic))
        if tag is not None:
            found = [message for message in found if message.tag == tag]
        if key is not None:
            found = [message for message in found if key in message.keys]
        return found

    def dead(self, group: str) -> list[Message]:
        """The dead letters of a group."""
        return self.sent(dead_topic(group))

    def waiting(self, topic: str | None = None) -> list[Waiting]:
        """What is not delivered yet, in the order of delivery: of one topic (retries: `%RETRY%group`), or all."""
        found = self._loop.run(self._waiting())
        return [message for message in found if topic is None or message.topic == topic]

    async def _waiting(self) -> list[Waiting]:
        await self._work_off()  # what was stored a moment ago may not be in the broker's agenda yet
        return _waiting(self.broker)

    def wait_until(
        self, condition: Callable[[], object], *, timeout: float = WAIT_SECONDS, what: str = "the condition"
    ) -> None:
        """Blocks until `condition()` is true; for effects that other threads bring about."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come true within {timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def wait_sent(self, topic: str, count: int = 1, *, timeout: float = WAIT_SECONDS) -> list[Message]:
        """Blocks until a topic has so many messages, and returns them."""
        self.wait_until(
            lambda: len(self.sent(topic)) >= count,
            timeout=timeout,
            what=f"{count} message(s) in topic '{topic}'",
        )
        return self.sent(topic)

    # --- preparing ----------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """A topic with so many queues, known to the name server when this returns."""
        from orbitmq.client.admin import create_topic
        from orbitmq.client.cluster import Cluster

        async def create() -> None:
            async with Cluster(self.namesrv) as cluster:
                await create_topic(cluster, topic, read_queues=queues, write_queues=queues)

        self._loop.run(create())


class _ForgetfulDisk(Disk):
    """Promises what it does not keep: the files end with the test."""

    def fdatasync(self, fd: int) -> None:
        return

    def fsync_dir(self, path: StrPath) -> None:
        return

    def disk_usage(self, path: StrPath) -> float:
        return 0.0  # a developer's full disk is no reason for the broker to refuse a few test messages


def _stored(broker: Broker, topic: str) -> list[Message]:
    from orbitmq.client.message import Message

    store = broker.store
    places: list[tuple[int, int]] = []
    for queue in store.queues_of(topic).values():
        offset = queue.min_offset
        while offset < queue.max_offset and (units := queue.read_units(offset, 1024)):
            places += [(position, size) for position, size, _ in UNIT.iter_unpack(units)]
            offset += len(units) // UNIT.size
    name = broker.config.broker_name
    return [Message(store.log.read(position, size), 0, name, None) for position, size in sorted(places)]


def _waiting(broker: Broker) -> list[Waiting]:
    timing = next(room for room in broker.rooms if isinstance(room, Timing))
    return [
        Waiting(
            one.waiting.real_topic,
            one.waiting.message.body,
            one.waiting.unique_key or one.waiting.message.offset_msg_id,
            _moment(one.spot.due_ms),
            one.waiting.real_topic.startswith("%RETRY%"),
        )
        for one in timing.engine.lookup.walk(Spot(-1, 0, -1))
    ]


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _moment(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
