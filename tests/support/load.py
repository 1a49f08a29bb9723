"""Load as many clients make it, and the memory of what was sent and what was acknowledged.

Every message has an id of its own and carries its sender and that sender's count for its queue, so that a
reader can tell what is missing, doubled, out of order or made up.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from random import Random

from orbitmq.wire.batch import encode_batch
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import CODEC_BINARY, Command, request
from orbitmq.wire.properties import encode_properties
from tests.support.raw_client import RawClient, send_ext

QueueName = tuple[str, int]
UNIQUE_CHARS = 32


@dataclass(frozen=True, slots=True)
class Sent:
    topic: str
    queue_id: int
    sender: int
    count: int
    """How many messages this sender sent to this queue before."""
    body: bytes
    key: str


@dataclass(frozen=True, slots=True)
class Ack:
    queue_id: int
    queue_offset: int
    msg_id: str


@dataclass
class Ledger:
    """Shared by all senders of a store's life, over any number of crashes."""

    sent: dict[str, Sent] = field(default_factory=dict)
    acks: dict[str, Ack] = field(default_factory=dict)
    counts: dict[tuple[int, QueueName], int] = field(default_factory=dict)
    senders: int = 0

    @property
    def queues(self) -> list[QueueName]:
        return sorted({(sent.topic, sent.queue_id) for sent in self.sent.values()})


class Sender:
    """Sends bursts over one connection until it breaks or is cancelled; waits for each burst's answers.

    A broker with many threads does not keep the order of requests within a connection: there, bursts are off.
    """

    def __init__(
        self, addr: str, ledger: Ledger, topics: dict[str, int], random: Random, *, bursts: bool = True
    ) -> None:
        self._bursts = bursts
        self._client = RawClient(addr)
        self._ledger = ledger
        self._topics = topics
        self._random = random
        self._number = ledger.senders
        ledger.senders += 1
        self._stopping = False

    async def run(self) -> None:
        await self._client.connect()
        try:
            while not self._stopping:
                await self._burst()
        except (ConnectionError, TimeoutError):
            return
        finally:
            await self._client.close()

    def stop(self) -> None:
        """After the answers to what is under way."""
        self._stopping = True

    async def _burst(self) -> None:
        random = self._random
        commands, contents = [], []
        for _ in range(random.choice((1, 1, 2, 8, 24)) if self._bursts else 1):
            topic = random.choice(list(self._topics))
            queue_id = random.randrange(self._topics[topic])
            batch = random.random() < 0.2
            ids = [self._new(topic, queue_id) for _ in range(random.randrange(2, 12) if batch else 1)]
            commands.append(self._batch(ids) if batch else self._single(ids[0]))
            contents.append(ids)
        for number, ids in zip(self._client.write(commands), contents, strict=True):
            self._take(await self._client.answer(number), ids)

    def _new(self, topic: str, queue_id: int) -> str:
        ledger, random = self._ledger, self._random
        place = (self._number, (topic, queue_id))
        count = ledger.counts.get(place, 0)
        ledger.counts[place] = count + 1
        name = f"{self._number}.{topic}.{queue_id}.{count}"
        unique = hashlib.md5(name.encode()).hexdigest().upper()
        size = random.choice((1, 20, 20, 200, 1000, 1000, 5000)) if random.random() < 0.98 else 100_000
        body = name.encode() + b":" + random.randbytes(1) * size
        ledger.sent[unique] = Sent(topic, queue_id, self._number, count, body, f"key-{name}")
        return unique

    def _properties(self, unique: str) -> bytes:
        properties = {"KEYS": self._ledger.sent[unique].key, "UNIQ_KEY": unique, "WAIT": "true"}
        if self._random.random() < 0.5:
            properties["TAGS"] = self._random.choice(("A", "B"))
        return encode_properties(properties)

    def _single(self, unique: str) -> Command:
        sent = self._ledger.sent[unique]
        text = self._properties(unique).decode()
        letters = send_ext(sent.topic, sent.queue_id, text)
        if self._random.random() < 0.2:
            return request(RequestCode.SEND_MESSAGE, _plain_names(letters), sent.body)
        command = request(RequestCode.SEND_MESSAGE_V2, letters, sent.body)
        if self._random.random() < 0.2:
            command.codec = CODEC_BINARY
        return command

    def _batch(self, ids: list[str]) -> Command:
        first = self._ledger.sent[ids[0]]
        body = encode_batch([(0, self._ledger.sent[i].body, self._properties(i)) for i in ids])
        return request(
            RequestCode.SEND_BATCH_MESSAGE,
            send_ext(first.topic, first.queue_id, "WAIT\x01true", m="true"),
            body,
        )

    def _take(self, answer: Command, ids: list[str]) -> None:
        assert answer.code == ResponseCode.SUCCESS, f"send refused: {answer.code} {answer.remark}"
        queue_id, first = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
        msg_ids = answer.ext["msgId"].split(",")
        assert len(msg_ids) == len(ids), f"{len(ids)} messages were sent, {len(msg_ids)} ids came back"
        for position, (unique, msg_id) in enumerate(zip(ids, msg_ids, strict=True)):
            self._ledger.acks[unique] = Ack(queue_id, first + position, msg_id)


_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "m": "batch",
}


def _plain_names(letters: dict[str, str]) -> dict[str, str]:
    return {_NAMES[letter]: value for letter, value in letters.items()}


async def load_until(
    addr: str, ledger: Ledger, topics: dict[str, int], random: Random, seconds: float, senders: int = 4
) -> list[asyncio.Task[None]]:
    """Starts senders and lets them work for a while; they are still at it when this returns."""
    tasks = [asyncio.create_task(Sender(addr, ledger, topics, random).run()) for _ in range(senders)]
    await asyncio.sleep(seconds)
    return tasks


async def finish(tasks: list[asyncio.Task[None]]) -> None:
    """Ends the senders. An answer that was not a clean acknowledgement is raised here."""
    done, pending = await asyncio.wait(tasks, timeout=2)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        task.result()
