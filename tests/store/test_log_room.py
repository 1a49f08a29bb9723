"""Blocks for a fast writer: reserved ahead of it, never in its way."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest

from orbitmq.store import log_room
from orbitmq.store.disk import Disk
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.message_store import MessageStore
from tests.support.stores import Clock, open_small, read_all, small_settings

FILE_BYTES = 32 * 1024
BODY = bytes(3000)


class RoomyDisk(Disk):
    def __init__(self) -> None:
        super().__init__()
        self.used = 0.1
        self.reserved: list[tuple[int, int]] = []
        self.error: OSError | None = None

    def disk_usage(self, path: str | os.PathLike[str]) -> float:
        return self.used

    def fallocate(self, fd: int, offset: int, length: int) -> bool:
        if "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
            self.reserved.append((offset, length))
            if self.error is not None:
                raise self.error
        return super().fallocate(fd, offset, length)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_room, "FAST_BYTES", 6000)
    monkeypatch.setattr(log_room, "LEAST_BYTES", 8192)
    monkeypatch.setattr(log_room, "LOOKS_AHEAD", 1)


@pytest.fixture
def disk() -> RoomyDisk:
    return RoomyDisk()


def grow(store: MessageStore, messages: int) -> None:
    for _ in range(messages):
        store.put(InnerMessage("Alpha", 0, BODY, b""))
    store.tick()


def test_a_slow_log_reserves_nothing(tmp_path: Path, disk: RoomyDisk) -> None:
    with closing(open_small(tmp_path, disk=disk)) as store:
        store.tick()
        for _ in range(5):
            grow(store, 1)
    assert disk.reserved == []


def test_a_fast_log_finds_its_blocks_reserved_file_by_file(tmp_path: Path, disk: RoomyDisk) -> None:
    with closing(open_small(tmp_path, disk=disk)) as store:
        store.tick()
        for _ in range(12):
            grow(store, 3)
        ends = [offset + length for offset, length in disk.reserved]
        assert max(ends) == FILE_BYTES, "up to a file's end and never behind it"
        assert min(offset for offset, _ in disk.reserved) < 8192, "again in the next file"
        assert sum(length for _, length in disk.reserved) < store.log.position + 2 * 8192, "nothing twice"
        assert len(store.log.series.bases) > 3
        assert len(read_all(store)["Alpha", 0]) == 36


def test_a_disk_without_room_is_asked_once_a_file_and_takes_messages_as_before(
    tmp_path: Path, disk: RoomyDisk
) -> None:
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    with closing(open_small(tmp_path, disk=disk)) as store:
        store.tick()
        for _ in range(12):
            grow(store, 3)
        assert len(disk.reserved) == len(
            [base for base in store.log.series.bases if base <= store.log.position]
        )
        assert store.fault is None
        assert len(read_all(store)["Alpha", 0]) == 36


def test_a_disk_that_is_rather_full_is_left_alone(tmp_path: Path, disk: RoomyDisk) -> None:
    disk.used = 0.8
    with closing(open_small(tmp_path, disk=disk)) as store:
        store.tick()
        grow(store, 5)
    assert disk.reserved == []


def test_what_is_only_reserved_is_no_damage_after_a_crash(tmp_path: Path, disk: RoomyDisk) -> None:
    store = open_small(tmp_path, disk=disk)
    store.tick()
    grow(store, 3)
    assert disk.reserved
    grow(store, 1)
    store._opened = False
    store._release()
    again = MessageStore(small_settings(tmp_path), Disk(), Clock())
    report = again.open()
    with closing(again):
        assert not report.damage
        assert len(read_all(again)["Alpha", 0]) == 4
