"""One store directory, used in turn by this broker and by the real Java broker, each stopped in order and killed.

Whoever opens it reads everything the other wrote, byte for byte, finds it by key, and goes on with the next offset.
Needs Java and Maven (the jars come from Maven Central): run by `make peer`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from orbitmq.store.verify import verify_store
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.message import Message
from tests.peer.java_peer import JavaPeer, drain
from tests.peer.kinds import TOPIC as KINDS
from tests.peer.kinds import write_kinds
from tests.support.checker import Checker
from tests.support.load import Ledger, Sender
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.peer

# The same for both: a file of another length is refused by either.
SIZES: dict[str, str | int] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 100 * 20,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}
TOPICS = {"Few": 1, "Many": 4}
MOST_AT_ONCE = 10_000
"""Messages of one load: everything written is read again by every broker that follows, on a machine of any speed."""
Contents = dict[tuple[str, int], list[Message]]


class Directory:
    """The store, both brokers on it (one at a time), and what the world was promised about it."""

    def __init__(self, root: Path) -> None:
        self.orbit = ServerProcess(root, start=False, **SIZES)
        self.path = self.orbit.data
        # Java pauses while it warms up; it must not shed load for that.
        patient = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}
        self.java = JavaPeer(self.path, {**SIZES, **patient})
        self.ledger = Ledger()
        self.checker = Checker(self.ledger)
        self.random = Random(11)

    def load(self, addr: str, seconds: float) -> None:
        async def run() -> None:
            bursts = addr == self.orbit.broker_addr
            senders = [Sender(addr, self.ledger, TOPICS, self.random, bursts=bursts) for _ in range(3)]
            tasks = [asyncio.create_task(sender.run()) for sender in senders]
            until = asyncio.get_running_loop().time() + seconds
            while asyncio.get_running_loop().time() < until and len(self.ledger.acks) < before + MOST_AT_ONCE:
                await asyncio.sleep(0.005)
            for sender in senders:
                sender.stop()
            await asyncio.gather(*tasks)

        before = len(self.ledger.acks)
        asyncio.run(run())
        assert len(self.ledger.acks) > before + 100

    def check(self, addr: str) -> None:
        async def run() -> None:
            async with RawClient(addr) as client:
                await self.checker.check(client, self.random, whole=True)

        asyncio.run(run())

    def wait_for_files_of(self, topic: str) -> None:
        """Our queues are brought to their files twice a second; a quick machine is done with its load before that."""
        until = time.monotonic() + 10
        while not any((self.path / "consumequeue" / topic).glob("*")):
            assert time.monotonic() < until, f"{topic} has no files"
            time.sleep(0.05)

    def contents(self, addr: str) -> Contents:
        """Every queue that has a directory and may be read, as pulls give it."""

        async def run() -> Contents:
            found: Contents = {}
            async with RawClient(addr) as client:
                for directory in sorted((self.path / "consumequeue").glob("*/*")):
                    name = (directory.parent.name, int(directory.name))
                    first = await client.pull(*name, 0)
                    if first.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
                        found[name] = await client.read_queue(*name)
            return found

        return asyncio.run(run())

    def find_kinds(self, addr: str) -> None:
        """By key, by id, and by the time at which they were stored."""

        async def run() -> None:
            async with RawClient(addr) as client:
                for key in ("k1", "k3", "packed", "b7", "日本", "PLAIN".ljust(32, "0"), "C" * 32):
                    (message,) = await client.by_key(KINDS, key)
                    viewed = await client.ok(
                        RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(message.physical_offset)}
                    )
                    assert viewed.body
                assert not await client.by_key(KINDS, "R" * 32), "a rolled back message can be found"

        asyncio.run(run())


@pytest.fixture
def directory() -> Iterator[Directory]:
    # Short: the path goes into Java's configuration and command lines.
    with tempfile.TemporaryDirectory(prefix="orbitmq-peer-") as root:
        directory = Directory(Path(root))
        with directory.java:
            yield directory
            if directory.orbit.running:
                directory.orbit.kill()


def same_or_more(before: Contents, after: Contents) -> None:
    """Nothing that was there has changed; the other broker may have delivered more meanwhile."""
    for name, messages in before.items():
        assert after.get(name, [])[: len(messages)] == messages, f"{name} differs"


def test_both_brokers_take_turns_on_one_directory(directory: Directory) -> None:
    orbit, java = directory.orbit, directory.java

    # Ours writes all it can and is killed.
    orbit.start()
    asyncio.run(prepare(orbit.broker_addr))
    asyncio.run(write_kinds(orbit.broker_addr))
    directory.load(orbit.broker_addr, 1.0)
    directory.wait_for_files_of("%RETRY%kinds-group")
    ours = directory.contents(orbit.broker_addr)
    assert {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%kinds-group", KINDS} <= {
        t for t, _ in ours
    }
    orbit.kill()

    # Java opens what a crash left, reads it all, writes more, and is killed as well.
    java.start()
    directory.check(java.broker_addr)
    directory.find_kinds(java.broker_addr)
    same_or_more(ours, directory.contents(java.broker_addr))
    check_with_the_official_client(directory, ours)
    directory.load(java.broker_addr, 2.0)
    theirs = directory.contents(java.broker_addr)
    java.kill()

    # Ours opens what Java's crash left, and is stopped in good order.
    orbit.start()
    directory.check(orbit.broker_addr)
    directory.find_kinds(orbit.broker_addr)
    same_or_more(theirs, directory.contents(orbit.broker_addr))
    directory.load(orbit.broker_addr, 1.0)
    ours = directory.contents(orbit.broker_addr)
    assert orbit.stop() == 0

    # Java takes it over in good order, and hands it back so.
    java.start()
    directory.check(java.broker_addr)
    same_or_more(ours, directory.contents(java.broker_addr))
    directory.load(java.broker_addr, 1.0)
    theirs = directory.contents(java.broker_addr)
    java.stop()
    assert not (directory.path / "abort").exists()

    report = verify_store(directory.path)
    assert report.ok, "\n".join(map(str, report.findings))
    orbit.start()
    directory.check(orbit.broker_addr)
    directory.find_kinds(orbit.broker_addr)
    same_or_more(theirs, directory.contents(orbit.broker_addr))
    assert "damaged" not in orbit.printed, orbit.printed
    assert "Traceback" not in orbit.printed, orbit.printed
    assert orbit.stop() == 0


def check_with_the_official_client(directory: Directory, contents: Contents) -> None:
    """The Java client gets the same messages out of the Java broker that we wrote and read."""
    drained = {
        (m.topic, m.queue_id, m.queue_offset): m for m in drain(directory.java.namesrv, [KINDS, *TOPICS])
    }
    wanted = [m for (topic, _), messages in contents.items() if topic in (KINDS, *TOPICS) for m in messages]
    assert len(wanted) > 100
    for message in wanted:
        got = drained[message.topic, message.queue_id, message.queue_offset]
        assert got.body == message.decoded_body()
        assert (got.msg_id, got.tags, got.keys) == (message.offset_msg_id, message.tags, message.keys)


def test_a_topic_deleted_by_java_does_not_come_back(directory: Directory) -> None:
    java, orbit = directory.java, directory.orbit

    async def use(addr: str, *, delete: bool) -> None:
        async with RawClient(addr) as client:
            await client.create_topic("Gone", 1)
            await client.create_topic("Stays", 1)
            for topic in ("Gone", "Stays"):
                await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext(topic, 0), b"x")
            if delete:
                await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})

    async def look(addr: str) -> None:
        async with RawClient(addr) as client:
            assert (await client.pull("Gone", 0, 0)).code == ResponseCode.TOPIC_NOT_EXIST
            assert len(await client.read_queue("Stays", 0)) == 1

    java.start()
    asyncio.run(use(java.broker_addr, delete=True))
    java.stop()
    orbit.start()
    asyncio.run(look(orbit.broker_addr))
    assert orbit.stop() == 0


def test_neither_starts_while_the_other_runs(directory: Directory) -> None:
    java, orbit = directory.java, directory.orbit
    java.start()
    orbit.start(wait=False)
    assert orbit.wait_stopped() == 1
    assert "in use by another broker" in orbit.printed
    java.stop()
    orbit.start()
    with pytest.raises(AssertionError):
        java.start()
    assert orbit.running
    assert orbit.stop() == 0


async def prepare(addr: str) -> None:
    async with RawClient(addr) as client:
        for topic, queues in TOPICS.items():
            await client.create_topic(topic, queues)
