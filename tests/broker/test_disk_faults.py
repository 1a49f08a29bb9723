"""A broker on a disk that fails: writes that are refused or torn, a full device, flushes that fail.

Whatever happens, an acknowledgement stays true, offsets stay dense, and the broker says what is wrong.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orbitmq.broker.broker import Broker
from orbitmq.config import BrokerConfig
from orbitmq.server import now_ms
from orbitmq.store.faulty_disk import Fault, FaultyDisk
from orbitmq.wire.batch import encode_batch
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.message import Message
from tests.support.raw_client import RawClient, send_ext

TOPIC = "Faulty"
FOREVER = 1 << 30
FLUSHES = pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
REFUSED = ResponseCode.SERVICE_NOT_AVAILABLE


def configuration(root: Path, flush: str) -> BrokerConfig:
    config, unknown = BrokerConfig.from_properties(
        {
            "storePathRootDir": str(root),
            "brokerIP1": "127.0.0.1",
            "listenHost": "127.0.0.1",
            "listenPort": "0",
            "brokerName": "b",
            "flushDiskType": flush,
            "mappedFileSizeCommitLog": str(64 * 1024),
            "mappedFileSizeConsumeQueue": str(50 * 20),
            "maxHashSlotNum": "50",
            "maxIndexNum": "300",
        }
    )
    assert not unknown
    config.fill_blanks(host_name="b", ip="127.0.0.1")
    return config


class Running:
    """A broker in this process, its disk, and a client of it."""

    def __init__(self, broker: Broker, disk: FaultyDisk, client: RawClient) -> None:
        self.broker = broker
        self.disk = disk
        self.client = client
        self.acked: dict[int, bytes] = {}
        """Bodies by queue offset, of queue 0."""

    def break_disk(self, op: str, path: str, error: int = errno.ENOSPC, **more: int) -> Fault:
        fault = Fault(op, path, error=error, times=more.pop("times", FOREVER), **more)
        self.disk.inject(fault)
        return fault

    def mend_disk(self) -> None:
        self.disk.faults.clear()
        self.broker._heal()

    async def send(self, *bodies: bytes) -> list[Command]:
        """One read's worth of messages; remembers what was acknowledged."""
        commands = [
            request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0, f"UNIQ_KEY\x01{unique(body)}"), body)
            for body in bodies
        ]
        numbers = self.client.write(commands)
        answers = [await self.client.answer(number) for number in numbers]
        for body, answer in zip(bodies, answers, strict=True):
            if answer.code == ResponseCode.SUCCESS:
                self.note(int(answer.ext["queueOffset"]), body)
            else:
                assert answer.code == REFUSED and answer.remark, f"{answer.code}: {answer.remark}"
        return answers

    async def send_batch(self, *bodies: bytes) -> Command:
        body = encode_batch([(0, body, f"UNIQ_KEY\x01{unique(body)}".encode()) for body in bodies])
        answer = await self.client.ask(RequestCode.SEND_BATCH_MESSAGE, send_ext(TOPIC, 0, m="true"), body)
        if answer.code == ResponseCode.SUCCESS:
            for position, one in enumerate(bodies):
                self.note(int(answer.ext["queueOffset"]) + position, one)
        return answer

    def note(self, offset: int, body: bytes) -> None:
        assert offset not in self.acked, f"offset {offset} was given twice"
        self.acked[offset] = body

    async def check(self) -> list[Message]:
        """All that was acknowledged is there, in its place; nothing else is."""
        messages = await self.client.read_queue(TOPIC, 0)
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        assert {m.queue_offset: m.body for m in messages} == self.acked
        for message in messages:
            found = await self.client.by_key(TOPIC, message.msg_id)
            assert [m.physical_offset for m in found] == [message.physical_offset]
        return messages


def unique(body: bytes) -> str:
    return body[:16].hex().upper().ljust(32, "0")


@asynccontextmanager
async def running(root: Path, flush: str, disk: FaultyDisk | None = None) -> AsyncIterator[Running]:
    disk = disk or FaultyDisk()
    broker = Broker(configuration(root, flush), now_ms, disk=disk)
    await broker.start()
    try:
        async with RawClient(broker.address) as client:
            await client.create_topic(TOPIC, 1)
            yield Running(broker, disk, client)
    finally:
        disk.faults.clear()
        await broker.stop()


def play(root: Path, flush: str, scene: Callable[[Running], Awaitable[None]]) -> None:
    """The scene, then the same store as a crash would have left it, and as an orderly stop leaves it."""

    async def act() -> dict[int, bytes]:
        async with running(root / "store", flush) as stage:
            await scene(stage)
            await stage.check()
            ignored = shutil.ignore_patterns("*.tmp")  # a table may just be saved
            shutil.copytree(root / "store", root / "crashed", ignore=ignored)
            return stage.acked

    async def look(name: str, acked: dict[int, bytes]) -> None:
        async with running(root / name, flush) as stage:
            stage.acked = acked
            await stage.check()
            (answer,) = await stage.send(b"after all")
            assert answer.code == ResponseCode.SUCCESS
            await stage.check()

    acked = asyncio.run(act())
    for name in ("crashed", "store"):
        asyncio.run(look(name, dict(acked)))


@FLUSHES
@pytest.mark.parametrize("keep_bytes", [0, 50, 200, 1000])
def test_a_log_that_takes_no_writes_refuses_and_recovers(tmp_path: Path, flush: str, keep_bytes: int) -> None:
    async def scene(stage: Running) -> None:
        await stage.send(b"before 1", b"before 2")
        stage.break_disk("pwrite", "commitlog", keep_bytes=keep_bytes)
        answers = await stage.send(*[b"lost %d" % n + b"x" * 90 for n in range(10)])
        assert {answer.code for answer in answers} == {REFUSED}
        assert "No space left" in (answers[0].remark or "")
        assert (await stage.send_batch(b"lost too", b"and this")).code == REFUSED
        assert [m.body for m in await stage.check()] == [b"before 1", b"before 2"]
        stage.mend_disk()
        # Shorter than what was torn: the rest of that must not look like messages to anyone.
        answers = await stage.send(b"short")
        assert answers[0].code == ResponseCode.SUCCESS
        await stage.send(*[b"after %d" % n for n in range(5)])

    play(tmp_path, flush, scene)


@FLUSHES
@pytest.mark.parametrize("op", ["ftruncate", "open_rw", "pwrite", "fsync_dir"])
def test_the_next_log_file_cannot_be_made(tmp_path: Path, flush: str, op: str) -> None:
    """The file is needed in the middle of a read with many messages; before it is, everything works."""

    async def scene(stage: Running) -> None:
        stage.broker.store._prepare_next_segment = lambda: None  # type: ignore[method-assign]
        await stage.send(*[b"first %d" % n + b"x" * 5000 for n in range(10)])
        path = "commitlog" if op == "fsync_dir" else f"{64 * 1024:020d}"
        stage.break_disk(op, path)
        await stage.send(*[b"second %d" % n + b"x" * 5000 for n in range(6)])
        assert (await stage.send(b"third"))[0].code == REFUSED
        await stage.check()
        stage.mend_disk()
        answers = await stage.send(*[b"fourth %d" % n + b"x" * 5000 for n in range(6)])
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}

    play(tmp_path, flush, scene)


@FLUSHES
def test_queue_files_that_take_no_writes(tmp_path: Path, flush: str) -> None:
    """The message is in the log, so it counts; new ones are refused until the queue can be written."""

    async def scene(stage: Running) -> None:
        await stage.send(b"before")
        stage.break_disk("pwrite", "consumequeue")
        await stage.send(*[b"during %d" % n for n in range(80)])
        await wait_until(lambda: stage.broker.store.fault is not None)
        (answer,) = await stage.send(b"refused")
        assert answer.code == REFUSED
        assert "No space left" in (answer.remark or "")
        await stage.check()
        stage.mend_disk()
        assert (await stage.send(b"after"))[0].code == ResponseCode.SUCCESS

    play(tmp_path, flush, scene)


@FLUSHES
@pytest.mark.parametrize("op", ["fallocate", "ftruncate"])
def test_an_index_that_cannot_grow(tmp_path: Path, flush: str, op: str) -> None:
    async def scene(stage: Running) -> None:
        await stage.send(*[b"before %d" % n for n in range(290)])
        await wait_until(lambda: not stage.broker.store.dispatcher.behind)
        stage.break_disk(op, "index")
        await stage.send(*[b"during %d" % n for n in range(50)])
        await wait_until(lambda: stage.broker.store.fault is not None)
        assert (await stage.send(b"refused"))[0].code == REFUSED
        stage.mend_disk()
        assert (await stage.send(b"after"))[0].code == ResponseCode.SUCCESS

    play(tmp_path, flush, scene)


def test_a_failed_flush_is_final(tmp_path: Path) -> None:
    async def act() -> dict[int, bytes]:
        async with running(tmp_path / "store", "SYNC_FLUSH") as stage:
            await stage.send(b"safe 1", b"safe 2")
            fault = stage.break_disk("fdatasync", "commitlog", errno.EIO, times=1)
            answers = await stage.send(b"lost 1", b"lost 2")
            assert [answer.code for answer in answers] == [REFUSED, REFUSED]
            assert fault.times == 0
            # The disk works again, but what it dropped meanwhile nobody knows.
            stage.mend_disk()
            (answer,) = await stage.send(b"lost 3")
            assert answer.code == REFUSED
            assert "restart" in (answer.remark or "")
            messages = await stage.client.read_queue(TOPIC, 0)
            assert [m.body for m in messages] == [b"safe 1", b"safe 2"]
            return stage.acked

    async def look(acked: dict[int, bytes]) -> None:
        async with running(tmp_path / "store", "SYNC_FLUSH") as stage:
            messages = await stage.client.read_queue(TOPIC, 0)
            assert acked.items() <= {m.queue_offset: m.body for m in messages}.items()
            (answer,) = await stage.send(b"after")
            assert answer.ext["queueOffset"] == str(len(messages))

    asyncio.run(look(asyncio.run(act())))


def test_a_flush_that_fails_behind_asynchronous_acks_makes_the_broker_read_only(tmp_path: Path) -> None:
    async def act() -> None:
        async with running(tmp_path / "store", "ASYNC_FLUSH") as stage:
            stage.break_disk("fdatasync", "commitlog", errno.EIO)
            assert (await stage.send(b"taken"))[0].code == ResponseCode.SUCCESS
            await wait_until(lambda: stage.broker.store.durability.failed)
            stage.mend_disk()
            (answer,) = await stage.send(b"refused")
            assert answer.code == REFUSED
            assert "read-only" in (answer.remark or "")
            assert [m.body for m in await stage.check()] == [b"taken"]

    asyncio.run(act())


def test_a_flush_that_takes_too_long_is_told(tmp_path: Path) -> None:
    """Stored, but perhaps not safe: the client learns both."""

    async def act() -> None:
        async with running(tmp_path / "store", "SYNC_FLUSH") as stage:
            stage.broker.store.durability._timeout_ms = 300
            release = threading.Event()
            sync = stage.disk.fdatasync

            def slow(fd: int) -> None:
                release.wait(10)
                sync(fd)

            stage.disk.fdatasync = slow  # type: ignore[method-assign]
            answer = await stage.client.ask(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0), b"late")
            assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")
            release.set()
            await wait_until(lambda: stage.broker.store.find_queue(TOPIC, 0).max_offset == 1)  # type: ignore[union-attr]

    asyncio.run(act())


def test_a_log_that_cannot_take_back_half_a_message_stops_taking_any(tmp_path: Path) -> None:
    async def act() -> None:
        async with running(tmp_path / "store", "ASYNC_FLUSH") as stage:
            await stage.send(b"before")
            stage.break_disk("pwrite", "commitlog", keep_bytes=40)
            stage.break_disk("zero_range", "commitlog", errno.EIO)
            await stage.send(b"torn")
            stage.mend_disk()
            (answer,) = await stage.send(b"refused")
            assert answer.code == REFUSED
            assert "restart" in (answer.remark or "")
            await stage.check()

    asyncio.run(act())


async def wait_until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0.02)
