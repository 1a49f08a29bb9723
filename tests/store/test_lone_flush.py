"""A flush that one sender waits for: on the loop while device and loop are quick, in the disk thread otherwise."""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from orbitmq.store.disk import Disk
from orbitmq.store.durability import Durable
from orbitmq.store.flush import ThreadRunner
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.lone_flush import MOST_BYTES, QUICK_S, WINDOW_S, LoneFlush
from orbitmq.store.message_store import MessageStore
from tests.support.stores import open_small, read_all


class Times:
    """Wall and CPU time as a test tells them."""

    def __init__(self) -> None:
        self.wall = self.cpu = 100.0

    def lone(self) -> LoneFlush:
        return LoneFlush(lambda: self.wall, lambda: self.cpu)

    def pass_window(self, busy_share: float) -> None:
        self.wall += WINDOW_S * 1.01
        self.cpu += WINDOW_S * busy_share


def quick_ones_until_welcome(lone: LoneFlush, times: Times) -> int:
    for count in range(10_000):
        times.pass_window(0.1)
        if lone.is_welcome(100):
            return count
        lone.took(QUICK_S / 2)
    raise AssertionError("never")


def test_a_device_earns_trust_with_quick_flushes() -> None:
    times = Times()
    lone = times.lone()
    assert 8 < quick_ones_until_welcome(lone, times) < 64
    assert not lone.is_welcome(MOST_BYTES + 1)


def test_a_slow_flush_is_remembered_the_longer_the_slower_it_was() -> None:
    times = Times()
    lone = times.lone()
    quick_ones_until_welcome(lone, times)
    for _ in range(100):
        lone.took(QUICK_S / 2)
    needed = []
    for seconds in (QUICK_S * 4, QUICK_S * 40, 1.0, 30.0):
        lone.took(seconds)
        needed.append(quick_ones_until_welcome(lone, times))
    assert needed[0] == 0, "a hiccup is forgiven"
    assert needed == sorted(set(needed))
    assert 50 < needed[2] < 200
    assert needed[3] < 300


def test_a_busy_loop_leaves_flushes_to_the_thread() -> None:
    times = Times()
    lone = times.lone()
    quick_ones_until_welcome(lone, times)
    times.pass_window(0.9)
    assert not lone.is_welcome(100)
    times.pass_window(0.3)
    assert lone.is_welcome(100)
    times.wall += WINDOW_S / 2  # the last verdict holds until a whole window has passed
    times.cpu += WINDOW_S
    assert lone.is_welcome(100)


class NotedDisk(Disk):
    """Notes the thread of every flush; takes as long as it is told to, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []
        self.seconds = 0.0
        self.error: OSError | None = None

    def fdatasync(self, fd: int) -> None:
        self.threads.append(threading.current_thread().name)
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error


Use = Callable[[MessageStore, NotedDisk], Awaitable[None]]


def on_a_loop(root: Path, use: Use) -> None:
    """A store behind a real loop and disk thread; its loop counts as idle, however busy the machine is."""

    async def run() -> None:
        disk = NotedDisk()
        runner = ThreadRunner(asyncio.get_running_loop())
        store = open_small(root, disk=disk, sync_flush=True, runner=runner)
        wall = itertools.count(0.0, WINDOW_S)
        store.durability.lone = LoneFlush(lambda: next(wall), lambda: 0.0)
        disk.threads.clear()
        try:
            await use(store, disk)
        finally:
            disk.error = None
            store.close()

    asyncio.run(run())


def message(body: bytes = b"x") -> InnerMessage:
    return InnerMessage("T", 0, body, b"").index_properties()


async def put(store: MessageStore, count: int = 1) -> list[Durable]:
    """So many senders in one turn of the loop, and what they were told."""
    told: list[Durable] = []
    for _ in range(count):
        stored = store.put(message())
        store.when_durable(stored.position + stored.size, told.append)
    async with asyncio.timeout(20):
        while len(told) < count:
            await asyncio.sleep(0.0005)
    return told


async def earn_trust(store: MessageStore, disk: NotedDisk) -> None:
    async with asyncio.timeout(60):
        while HERE not in disk.threads[-1:] or not store.durability.lone.is_welcome(1):
            assert await put(store) == [Durable.YES]
    disk.threads.clear()


HERE, DISK = "MainThread", "orbitmq-disk"


def test_lone_senders_are_flushed_on_the_loop_and_several_in_the_thread(tmp_path: Path) -> None:
    async def use(store: MessageStore, disk: NotedDisk) -> None:
        await put(store)
        assert disk.threads == [DISK], "a new device has to show first how quick it is"
        await earn_trust(store, disk)
        assert await put(store) == [Durable.YES]
        assert disk.threads == [HERE]
        assert await put(store, 5) == [Durable.YES] * 5
        assert disk.threads == [HERE, DISK], "five senders of one turn share one flush"

    on_a_loop(tmp_path, use)


def test_a_device_that_becomes_slow_holds_the_loop_once(tmp_path: Path) -> None:
    async def use(store: MessageStore, disk: NotedDisk) -> None:
        await earn_trust(store, disk)
        disk.seconds = 0.05
        for _ in range(5):
            assert await put(store) == [Durable.YES]
        assert disk.threads == [HERE, DISK, DISK, DISK, DISK]

    on_a_loop(tmp_path, use)


def test_a_failure_on_the_loop_is_as_final_as_one_in_the_thread(tmp_path: Path) -> None:
    async def use(store: MessageStore, disk: NotedDisk) -> None:
        await earn_trust(store, disk)
        disk.error = OSError(errno.EIO, "Input/output error")
        assert await put(store) == [Durable.FAILED]
        assert disk.threads == [HERE]
        disk.error = None
        assert await put(store) == [Durable.FAILED]
        assert "read-only until it is restarted" in store.refusal

    on_a_loop(tmp_path, use)


def test_while_the_thread_flushes_the_log_too_nothing_is_flushed_on_the_loop(tmp_path: Path) -> None:
    async def use(store: MessageStore, disk: NotedDisk) -> None:
        await earn_trust(store, disk)
        goes_on, ended = threading.Event(), asyncio.Event()
        store.durability.submit(lambda: bool(goes_on.wait(20)) and None, lambda error: ended.set())
        told: list[Durable] = []
        stored = store.put(message())
        store.when_durable(stored.position + stored.size, told.append)
        await asyncio.sleep(0.02)
        assert not told
        goes_on.set()
        await ended.wait()
        await asyncio.sleep(0.02)
        assert told == [Durable.YES]
        assert disk.threads == [DISK]
        await put(store)
        assert disk.threads == [DISK, HERE]

    on_a_loop(tmp_path, use)


def test_a_store_closed_in_the_turn_of_a_send_has_it_on_the_device(tmp_path: Path) -> None:
    async def use(store: MessageStore, disk: NotedDisk) -> None:
        store.put(message(b"last"))
        assert not disk.threads
        store.close()
        assert disk.threads
        await asyncio.sleep(0.05)  # nothing that was still planned touches the closed files

    on_a_loop(tmp_path, use)
    again = open_small(tmp_path)
    assert [m.body for m in read_all(again)["T", 0]] == [b"last"]
    again.close()
