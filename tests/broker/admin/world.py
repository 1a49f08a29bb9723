"""A broker for administration tests: real tables and a real store, connections and clock made up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

from orbitmq.broker.admin import HANDLERS, Broker
from orbitmq.broker.clients import ClientManager
from orbitmq.broker.data_version import DataVersion
from orbitmq.broker.delays import DelayOffsets
from orbitmq.broker.groups import GroupTable
from orbitmq.broker.offsets import OffsetTable
from orbitmq.broker.stats import BrokerStats
from orbitmq.broker.topic_config import TopicConfig
from orbitmq.broker.topics import TopicTable
from orbitmq.config import BrokerConfig
from orbitmq.net.connection import Connection
from orbitmq.net.errors import RequestError
from orbitmq.store.cleaner import Cleaned
from orbitmq.store.disk import Disk
from orbitmq.store.inner_message import InnerMessage, PutResult
from orbitmq.store.message_store import MessageStore
from orbitmq.store.retention import Why
from orbitmq.store.settings import StoreSettings
from orbitmq.wire import fastjson
from orbitmq.wire.command import Command, request
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.properties import encode_properties
from tests.broker.fakes import FakeChannel, beat, consumer, subscribe

T0 = 1_700_000_000_000
TOOL = FakeChannel("10.9.9.9:1234")


class Peer(FakeChannel):
    """A client's connection that answers the broker's questions with `answer`."""

    answer: Command | Exception | None = None

    async def request(self, command: Command, timeout_s: float) -> Command:
        self.sent.append(command)
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


class CleaningStore(MessageStore):
    """Remembers which cleaning was asked for; whether files go is the store's own affair."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cleaned: list[bool] = []

    def clean_expired(self, manual: bool) -> Cleaned:
        self.cleaned.append(manual)
        return Cleaned(Why.MANUAL, 3, 2, 1)


class World:
    """What `orbitmq.broker.admin` sees as the broker, and how to fill it."""

    def __init__(self, root: Path, *, index: bool = True, disk: Disk | None = None) -> None:
        self.now = T0
        self.config = BrokerConfig(broker_name="b1", message_index_enable=index)
        self.config_path: str | None = None
        self.config_version = DataVersion()
        settings = StoreSettings(
            str(root),
            commit_log_file_bytes=1 << 20,
            consume_queue_file_bytes=2000,
            index_slots=64,
            index_entries=4096,
            index_enable=index,
            sync_flush=False,
        )
        self.store = CleaningStore(settings, disk or Disk(), lambda: self.now)
        self.store.lock()
        self.store.open()
        self.topics = TopicTable(self.config)
        self.groups = GroupTable(self.config)
        self.offsets = OffsetTable()
        self.delays = DelayOffsets()
        self.clients = ClientManager()
        self.stats = BrokerStats(T0, "DefaultCluster")
        self.address = "127.0.0.1:10911"
        self.registered: list[str | None] = []
        self.configured = 0
        self.serves_reads = True

    def clock(self) -> int:
        return self.now

    def register_soon(self, topic: str | None = None) -> None:
        self.registered.append(topic)

    def config_changed(self) -> None:
        self.configured += 1

    def topic(self, name: str, queues: int = 2) -> TopicConfig:
        made = TopicConfig(name, queues, queues)
        self.topics.put(made, self.now)
        return made

    def put(
        self, topic: str, queue_id: int = 0, body: bytes = b"x", sys_flag: int = 0, **properties: str
    ) -> PutResult:
        """Stores a message, one millisecond later than the last."""
        self.now += 1
        message = InnerMessage(topic, queue_id, body, encode_properties(properties), sys_flag=sys_flag)
        return self.store.put(message.index_properties())

    def online(
        self,
        group: str,
        client_id: str = "c1",
        *topics: str,
        tags: str = "*",
        language: str = "JAVA",
        version: int = 407,
        model: str = "CLUSTERING",
    ) -> Peer:
        peer = Peer(f"10.0.0.{len(client_id)}:{5000 + len(self.clients.consumer_ids(group))}")
        data = consumer(group, *(subscribe(topic, tags) for topic in topics), model=model)
        self.clients.heartbeat(peer, beat(client_id, data), language, version, self.now)
        return peer

    def ask(self, code: int, body: bytes = b"", language: str = "JAVA", **ext: object) -> Command:
        """The answer to a request; a refusal comes as the error reply a client would see."""
        command = request(code, {name: _text(value) for name, value in ext.items()}, body)
        command.opaque = 7
        command.language = language
        try:
            answer = HANDLERS[code](cast(Broker, self), cast(Connection, TOOL), command)
            return answer if isinstance(answer, Command) else asyncio.run(_wait(answer))
        except RequestError as error:
            return command.reply(error.code, error.remark)

    def ok(self, code: int, body: bytes = b"", **ext: object) -> Command:
        answer = self.ask(code, body, **ext)
        assert answer.code == 0, f"{answer.code}: {answer.remark}"
        assert answer.is_response
        assert answer.opaque == 7
        return answer

    def json(self, code: int, body: bytes = b"", **ext: object) -> Any:
        return fastjson.loads(self.ok(code, body, **ext).body)

    def refusal(self, code: int, body: bytes = b"", **ext: object) -> tuple[int, str]:
        answer = self.ask(code, body, **ext)
        assert answer.code != 0
        assert answer.remark
        assert not answer.ext
        return answer.code, answer.remark


async def _wait(answer: Awaitable[Command]) -> Command:
    async with asyncio.timeout(5):
        return await answer


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def mq(topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, "b1", queue_id)
