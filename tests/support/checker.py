"""What must hold of a broker's messages, come what may: nothing acknowledged is lost, nothing is made up."""

from __future__ import annotations

from random import Random

from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.message import Message
from tests.support.load import Ledger, QueueName
from tests.support.raw_client import RawClient

_NOT_THERE = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR)


class Checker:
    """Reads what is new since its last look; `check` with `whole=True` reads everything again."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seen: dict[str, QueueName] = {}
        self._read_to: dict[QueueName, int] = {}
        self._counts: dict[tuple[QueueName, int], int] = {}
        self._positions: dict[QueueName, int] = {}

    async def check(self, client: RawClient, random: Random, *, whole: bool = False) -> int:
        """Returns how many messages were read."""
        if whole:
            for table in (self._seen, self._read_to, self._counts, self._positions):
                table.clear()
        read = 0
        for name in self._ledger.queues:
            read += await self._check_queue(client, name)
        missing = [unique for unique in self._ledger.acks if unique not in self._seen]
        assert not missing, f"{len(missing)} acknowledged messages are lost: {self._describe(missing)}"
        await self._check_keys(client, random)
        return read

    async def _check_queue(self, client: RawClient, name: QueueName) -> int:
        start = self._read_to.get(name, 0)
        # A topic that the broker was about to make when it died, or a queue of it that had nothing yet.
        if not start and (await client.pull(*name, 0)).code in _NOT_THERE:
            return 0
        messages = await client.read_queue(*name, start)
        for position, message in enumerate(messages):
            assert message.queue_offset == start + position, (
                f"{name}: {message.queue_offset} at {start + position}"
            )
            self._check_message(name, message)
        self._read_to[name] = start + len(messages)
        assert await client.max_offset(*name) == start + len(messages)
        return len(messages)

    def _check_message(self, name: QueueName, message: Message) -> None:
        unique = message.properties["UNIQ_KEY"]
        sent = self._ledger.sent.get(unique)
        where = f"{name} offset {message.queue_offset}"
        assert sent is not None, f"{where}: a message that nobody sent: {message.body[:60]!r}"
        assert (message.topic, message.queue_id) == (sent.topic, sent.queue_id) == name, where
        assert message.body == sent.body, where
        assert unique not in self._seen, f"{where}: {message.body[:60]!r} is there twice"
        self._seen[unique] = name
        assert message.physical_offset > self._positions.get(name, -1), f"{where}: not in log order"
        self._positions[name] = message.physical_offset
        # A sender's messages to one queue keep their order; those never acknowledged may be missing.
        place = (name, sent.sender)
        assert sent.count > self._counts.get(place, -1), f"{where}: {message.body[:60]!r} is out of order"
        self._counts[place] = sent.count
        ack = self._ledger.acks.get(unique)
        if ack is not None:
            found = (message.queue_id, message.queue_offset, message.offset_msg_id)
            assert found == (ack.queue_id, ack.queue_offset, ack.msg_id), f"{where}: acknowledged as {ack}"

    async def _check_keys(self, client: RawClient, random: Random, samples: int = 25) -> None:
        # The newest are where a crash may have torn the index, so half of the samples come from there.
        uniques = list(self._ledger.acks)
        chosen = random.sample(uniques, min(samples, len(uniques))) + uniques[-samples:]
        for unique in chosen:
            sent = self._ledger.sent[unique]
            for key in (sent.key, unique):
                found = [message.properties["UNIQ_KEY"] for message in await client.by_key(sent.topic, key)]
                assert found == [unique], f"key {key} of {sent.topic} finds {found} instead of {unique}"

    def _describe(self, uniques: list[str]) -> str:
        return ", ".join(f"{self._ledger.sent[u].body[:40]!r} {self._ledger.acks[u]}" for u in uniques[:5])
