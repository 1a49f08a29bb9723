"""A broker for tests of transactions and retries: real store, tables and rooms; clock and clients made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

from orbitmq.broker.clients import ClientManager
from orbitmq.broker.gateway import Gateway
from orbitmq.broker.groups import GroupTable
from orbitmq.broker.offsets import OffsetTable
from orbitmq.broker.retry import Retries
from orbitmq.broker.room import Room
from orbitmq.broker.send import Draft, SendHandler
from orbitmq.broker.stats import BrokerStats
from orbitmq.broker.timers import Timers
from orbitmq.broker.topics import TopicTable
from orbitmq.broker.transaction import Transactions
from orbitmq.config import BrokerConfig
from orbitmq.net.errors import RequestError
from orbitmq.net.service import error_reply
from orbitmq.store.cutting import cut_store
from orbitmq.store.fault import Fault
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.message_store import MessageStore
from orbitmq.store.settings import StoreSettings
from orbitmq.wire.codes import RequestCode, ResponseCode, SysFlag
from orbitmq.wire.command import Command, decode, request
from orbitmq.wire.errors import WireError
from orbitmq.wire.message import Message, decode_record
from orbitmq.wire.message_id import pack_host
from orbitmq.wire.properties import Prop, encode_properties
from orbitmq.wire.topics import OP_TOPIC, TRANSACTION_GROUP
from tests.broker.fakes import FakeChannel, beat
from tests.support.send_sides import HastyDisk

T0 = 1_700_000_000_000
COMMIT, ROLLBACK, UNKNOWN = SysFlag.TX_COMMIT, SysFlag.TX_ROLLBACK, SysFlag.TX_NONE
HOST = "127.0.0.1:10911"
UNANSWERED = Command(code=-1)


class Peer(FakeChannel):
    """A client's connection; what the broker answers later arrives in `replies`."""

    def __init__(self, peer: str = "10.0.0.1:5000") -> None:
        super().__init__(peer)
        self.peer_bytes = pack_host(peer)
        self.replies: list[Command] = []

    def send(self, frame: bytes) -> None:
        self.replies.append(decode(frame[4:]))


class NoTimers(Timers):
    def every(self, *_: Any) -> None:
        """Tests call what would be repeated."""


class DelayRoom(Room):
    """Notes what would wait, instead of the real room of delays."""

    def __init__(self) -> None:
        self.delayed: list[str] = []
        self.stored: list[tuple[int, int]] = []
        self.broken = False

    def divert_delay(self, draft: Draft) -> None:
        level = draft.properties.get(Prop.DELAY, "0")
        if self.broken or not level.isdigit():
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "no such delay")
        if level != "0":
            self.delayed.append(level)
            draft.after_store.append(lambda *place: self.stored.append(place))


class World:
    """Looks like a Broker to the rooms."""

    def __init__(
        self, root: Path, *, now: int = T0, offsets: OffsetTable | None = None, **settings: Any
    ) -> None:
        self.root = root
        self.now = now
        self.config = BrokerConfig(broker_name="b1", **settings)
        self.offsets = offsets or OffsetTable()
        self.topics = TopicTable(self.config)
        self.groups = GroupTable(self.config)
        self.registered: list[str | None] = []
        self.saved: list[str] = []
        self.random = Random(1)
        self.peer = Peer()
        self.open()

    @property
    def tables(self) -> World:
        return self

    def save(self, name: str) -> None:
        self.saved.append(name)

    def clock(self) -> int:
        return self.now

    def register_soon(self, topic: str | None = None) -> None:
        self.registered.append(topic)

    def open(self, refusal: str = "") -> None:
        settings = StoreSettings(
            str(self.root),
            store_host=pack_host(HOST),
            commit_log_file_bytes=1 << 20,
            consume_queue_file_bytes=2000,
            index_slots=500,
            index_entries=400,
            sync_flush=self.config.sync_flush,
        )
        self.store = MessageStore(settings, HastyDisk(), self.clock)
        self.store.open()
        if refusal:
            self.store.fault = Fault(refusal, heals=False)
        self.stats = BrokerStats(self.now, "c")
        self.clients = ClientManager()
        self.transactions = Transactions(cast(Any, self))
        self.retries = Retries(cast(Any, self))
        self.delays = DelayRoom()
        self.rooms: list[Room] = [self.retries, self.transactions, self.delays]
        self.sends = SendHandler(cast(Any, self), self.random)
        self.sends.diverters = [room.divert for room in self.rooms]
        self.gateway = Gateway(cast(Any, self), self.sends)
        self.handlers = {**self.transactions.handlers(), **self.retries.handlers()}
        self.transactions.start(NoTimers())

    def close(self) -> None:
        self.transactions.stop()
        self.store.close()

    def restart(self, *, saved: bool = True, refusal: str = "") -> None:
        """A clean stop and a start, by default with the progress saved. `refusal`: why the store takes no writes."""
        table = {key: dict(value) for key, value in self.offsets.table.items()}
        self.close()
        if not saved:
            self.offsets.table = table
        self.open(refusal)

    def ask(self, command: Command, peer: Peer | None = None) -> Command:
        """The answer, as the service would send it."""
        peer = peer or self.peer
        before = len(peer.replies)
        try:
            if command.code == RequestCode.SEND_MESSAGE:
                reply = self.sends.handle(cast(Any, peer), command)
            else:
                reply = cast("Command | None", self.handlers[command.code](cast(Any, peer), command))
        except (RequestError, WireError) as error:
            return error_reply(command, error)
        if reply is not None:
            return reply
        return peer.replies[-1] if len(peer.replies) > before else UNANSWERED

    def send(
        self,
        topic: str = "TopicA",
        body: bytes = b"body",
        *,
        sys_flag: int = 0,
        queue_id: int = 0,
        born_ms: int | None = None,
        version: int = 407,
        peer: Peer | None = None,
        header: dict[str, str] | None = None,
        **properties: str,
    ) -> Command:
        ext = {
            "producerGroup": "pg",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": str(queue_id),
            "sysFlag": str(sys_flag),
            "bornTimestamp": str(self.now if born_ms is None else born_ms),
            "flag": "5",
            "properties": encode_properties({"WAIT": "true", **properties}).decode(),
            **(header or {}),
        }
        command = request(RequestCode.SEND_MESSAGE, ext, body)
        command.version = version
        return self.ask(command, peer)

    def prepare(self, key: str = "T1", *, group: str = "pg", **more: Any) -> tuple[int, int]:
        """Sends a half message; (queue offset, log offset) as the producer learns them."""
        fields = {Prop.TRANSACTION_PREPARED: "true", Prop.PRODUCER_GROUP: group, Prop.UNIQ_KEY: key}
        reply = self.send(sys_flag=SysFlag.TX_PREPARED, **{**fields, **more})
        assert reply.code == 0, reply.remark
        return int(reply.ext["queueOffset"]), int(reply.ext["msgId"][16:], 16)

    def end(
        self,
        place: tuple[int, int],
        decision: int,
        *,
        group: str = "pg",
        peer: Peer | None = None,
        oneway: bool = False,
    ) -> Command:
        ext = {
            "producerGroup": group,
            "tranStateTableOffset": str(place[0]),
            "commitLogOffset": str(place[1]),
            "commitOrRollback": str(decision),
            "fromTransactionCheck": "false",
            "msgId": "T1",
        }
        return self.ask(request(RequestCode.END_TRANSACTION, ext, oneway=oneway), peer)

    def join(self, *groups: str, peer: Peer | None = None, client_id: str = "c1") -> Peer:
        """A producer comes online."""
        peer = peer or Peer()
        self.clients.heartbeat(peer, beat(client_id, producers=groups), "JAVA", 407, self.now)
        return peer

    def round(self, wait_ms: int = 60_000) -> None:
        """Lets the time of one round of questions pass."""
        self.now += wait_ms
        self.transactions.tick()

    def records(self, topic: str, queue_id: int = 0) -> list[Message]:
        queue = self.store.find_queue(topic, queue_id)
        found = []
        if queue is not None:
            for offset in range(queue.min_offset, queue.max_offset):
                unit = queue.unit(offset)
                assert unit is not None
                record = self.store.read_record(unit[0])
                assert record is not None
                found.append(decode_record(record))
        return found

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [message.body for message in self.records(topic, queue_id)]

    def put(self, topic: str, body: bytes = b"x", **properties: str) -> int:
        """A message straight into the store; its log offset."""
        message = InnerMessage(topic, 0, body, encode_properties(properties), born_ms=self.now)
        return self.store.put(message.index_properties()).position

    def progress(self) -> tuple[int, int]:
        return tuple(  # type: ignore[return-value]
            self.offsets.query(TRANSACTION_GROUP, topic, 0)
            for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
        )


def record_end(store: MessageStore, log_offset: int) -> int:
    """Where the message ends that begins there, or in the next file when the rest of this one was left empty."""
    record = store.read_record(log_offset)
    if record is None:
        file_bytes = store.log.series.segment_bytes
        log_offset += file_bytes - log_offset % file_bytes
        record = store.read_record(log_offset)
    assert record is not None and decode_record(record).topic != OP_TOPIC
    return log_offset + len(record)


def leave_torn(world: World, commit: Callable[[], object], messages: int, *, refusal: str = "") -> None:
    """Commits, and starts again as after a crash that left only so many messages of what was written then."""
    log = world.store.log
    before, offsets = log.position, {key: dict(value) for key, value in world.offsets.table.items()}
    commit()
    cut_at = before
    for _ in range(messages):
        cut_at = record_end(world.store, cut_at)
    world.close()
    world.offsets.table = offsets
    disk = HastyDisk()
    cut_store(disk, world.store.settings, cut_at)
    world.open(refusal)


def checks(peer: Peer) -> list[dict[str, str]]:
    """The questions a producer got."""
    return [command.ext for command in peer.sent if command.code == RequestCode.CHECK_TRANSACTION_STATE]


def place(question: dict[str, str]) -> tuple[int, int]:
    """Where the half message is that a question is about."""
    return int(question["tranStateTableOffset"]), int(question["commitLogOffset"])
