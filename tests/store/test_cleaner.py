"""Old log files go, and everything that pointed there follows; whatever happens meanwhile, the store opens
again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.store import reading
from orbitmq.store.cleaner import DISK_FULL, Hold
from orbitmq.store.flush import Runner
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.message_store import MessageStore
from orbitmq.store.retention import RetentionRules, Why
from orbitmq.store.settings import StoreSettings
from orbitmq.wire.message import decode_records
from orbitmq.wire.properties import encode_properties
from tests.store.test_deleting import SlowRunner
from tests.support.steered_disk import HOUR_MS, SteeredDisk
from tests.support.stores import told

NOON_MS = int(time.mktime((2026, 11, 15, 12, 0, 0, 0, 0, -1)) * 1000)
FOUR_MS = int(time.mktime((2026, 11, 15, 4, 0, 0, 0, 0, -1)) * 1000)
FILE_BYTES = 8192
BODY = b"x" * 1000
"""Seven records to a file."""


def open_store(
    root: Path, disk: SteeredDisk, rules: RetentionRules | None = None, runner: Runner | None = None
) -> MessageStore:
    options = StoreSettings(
        str(root),
        commit_log_file_bytes=FILE_BYTES,
        consume_queue_file_bytes=10 * 20,
        index_slots=16,
        index_entries=20,
        sync_flush=False,
    )
    store = MessageStore(options, disk, disk.clock, runner, retention=rules)
    store.open()
    return store


def put(store: MessageStore, count: int, topic: str = "T", queue_id: int = 0) -> None:
    for _ in range(count):
        offset = store.queue(topic, queue_id).next_offset
        properties = encode_properties({"KEYS": f"{topic}-{queue_id}-{offset}", "TAGS": "A"})
        store.put(InnerMessage(topic, queue_id, BODY, properties).index_properties())
    store.durability.kick()
    store.tick()


def read_all(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[int]:
    """Offsets of every message a consumer can get, from the queue's minimum on."""
    queue = store.queue(topic, queue_id)
    offset, found = queue.min_offset, []
    while offset < queue.max_offset:
        result = store.reader.read(queue, offset, 32)
        found += [message.queue_offset for chunk in result.chunks for message in decode_records(chunk)]
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def files_in(path: Path) -> list[str]:
    return sorted(os.listdir(path))


class Now:
    ms = NOON_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def disk(now: Now) -> SteeredDisk:
    return SteeredDisk(now)


def test_expired_files_go_at_the_hour_and_not_before(tmp_path: Path, now: Now, disk: SteeredDisk) -> None:
    store = open_store(tmp_path, disk)
    put(store, 30)
    disk.age_ms = 73 * HOUR_MS
    assert store.cleaner.run().why is Why.NOT_DUE
    assert store.log.start == 0
    now.ms = FOUR_MS
    disk.age_ms = 71 * HOUR_MS
    assert store.cleaner.run().log_files == 0
    disk.age_ms = 73 * HOUR_MS
    assert store.cleaner.run().log_files == 4
    assert store.log.start == 4 * FILE_BYTES
    store.close()


def test_queues_and_index_follow_the_log(tmp_path: Path, disk: SteeredDisk) -> None:
    store = open_store(tmp_path, disk)
    put(store, 60)
    assert store.query_keys("T", "T-0-3", 0, 1 << 62, 10)
    disk.age_ms = 100 * HOUR_MS
    cleaned = store.cleaner.run(manual=True)
    assert cleaned == (Why.MANUAL, 8, 5, 2)
    queue = store.queue("T", 0)
    assert (queue.min_offset, queue.max_offset) == (56, 60)
    assert files_in(tmp_path / "consumequeue" / "T" / "0") == [f"{50 * 20:020d}"]
    assert read_all(store) == [56, 57, 58, 59]
    assert store.query_keys("T", "T-0-3", 0, 1 << 62, 10) == []
    assert store.query_keys("T", "T-0-57", 0, 1 << 62, 10)
    below = store.reader.read(queue, 5, 32)
    assert (below.status, below.next_offset) == (reading.OFFSET_TOO_SMALL, 56)
    store.close()
    store = open_store(tmp_path, disk)
    assert read_all(store) == [56, 57, 58, 59]
    store.close()


def test_a_queue_nobody_wrote_to_for_long_is_empty_and_goes_on_counting(
    tmp_path: Path, disk: SteeredDisk
) -> None:
    store = open_store(tmp_path, disk)
    put(store, 15, "Idle")
    put(store, 30, "Busy")
    disk.age_ms = 100 * HOUR_MS
    store.cleaner.run(manual=True)
    for _ in range(2):
        idle = store.queue("Idle", 0)
        assert (idle.min_offset, idle.max_offset) == (15, 15)
        assert store.reader.read(idle, 3, 32)[:2] == (reading.OFFSET_TOO_SMALL, 15)
        store.close()
        store = open_store(tmp_path, disk)
    put(store, 1, "Idle")
    assert read_all(store, "Idle") == [15]
    store.close()


def test_a_full_disk_takes_the_oldest_and_at_last_refuses_until_there_is_room(
    tmp_path: Path, disk: SteeredDisk
) -> None:
    store = open_store(tmp_path, disk)
    put(store, 100)
    disk.used = 0.80
    assert store.cleaner.run() == (Why.DISK, 0, 0, 0)  # nothing has expired
    disk.used = 0.86
    assert store.cleaner.run()[:2] == (Why.FORCED, 10)
    assert store.refusal == ""
    disk.used = 0.91
    store.cleaner.run()
    assert store.refusal.startswith(DISK_FULL)
    assert "91%" in store.refusal
    disk.used = 0.5
    store.cleaner.run()
    assert store.refusal == ""
    put(store, 1)
    assert read_all(store)[-1] == 100
    store.close()


def test_without_force_a_full_disk_deletes_nothing_young(tmp_path: Path, disk: SteeredDisk) -> None:
    store = open_store(tmp_path, disk, RetentionRules(may_force=False))
    put(store, 30)
    disk.used = 0.95
    assert store.cleaner.run()[:2] == (Why.DISK, 0)
    assert store.refusal
    store.close()


def test_what_is_held_stays_unless_forced(
    tmp_path: Path, disk: SteeredDisk, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, disk)
    put(store, 60)
    disk.age_ms = 100 * HOUR_MS
    unit = store.queue("T", 0).unit(20)
    assert unit is not None
    store.cleaner.holders.append(lambda: Hold(unit[0], "group g has not read it"))
    assert store.cleaner.run(manual=True).log_files == 2
    assert store.cleaner.run(manual=True).log_files == 0
    assert caplog.text.count("group g has not read it") == 1
    assert 20 in read_all(store)
    disk.used = 0.86
    assert store.cleaner.run().log_files == 6
    store.close()


def test_files_that_a_guard_still_needs_stay_even_when_forced(tmp_path: Path, disk: SteeredDisk) -> None:
    store = open_store(tmp_path, disk)
    put(store, 60)
    store.cleaner.guards.append(lambda end: end <= 3 * FILE_BYTES)
    disk.used = 0.86
    assert store.cleaner.run().log_files == 3
    assert store.cleaner.run().log_files == 0
    store.close()


@pytest.mark.parametrize("unlinks", [0, 1, 3])
def test_a_deletion_that_fails_leaves_no_hole(tmp_path: Path, disk: SteeredDisk, unlinks: int) -> None:
    store = open_store(tmp_path, disk)
    put(store, 60)
    disk.age_ms = 100 * HOUR_MS
    disk.unlinks_left = unlinks
    store.cleaner._remove(store.log.series.bases[:5])  # only the log: as if the process died before the rest
    disk.unlinks_left = 1_000_000
    store._opened = False
    store._release()
    again = open_store(tmp_path, disk)
    assert again.log.start == unlinks * FILE_BYTES
    assert read_all(again) == list(range(unlinks * 7, 60))
    again.close()


def test_queue_files_left_by_a_crash_are_dropped_by_the_next_round(tmp_path: Path, disk: SteeredDisk) -> None:
    store = open_store(tmp_path, disk)
    put(store, 60)
    store.cleaner._remove(store.log.series.bases[:5])
    store._opened = False
    store._release()
    again = open_store(tmp_path, disk)
    assert len(files_in(tmp_path / "consumequeue" / "T" / "0")) == 6
    again.cleaner.run()
    assert files_in(tmp_path / "consumequeue" / "T" / "0") == [f"{n * 200:020d}" for n in (3, 4, 5)]
    assert read_all(again) == list(range(35, 60))
    again.close()


def test_many_queues_follow_step_by_step(
    tmp_path: Path, disk: SteeredDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.store.cleaner.QUEUES_PER_STEP", 3)
    store = open_store(tmp_path, disk)
    for queue_id in range(8):
        put(store, 7, "T", queue_id)
    disk.age_ms = 100 * HOUR_MS
    store.cleaner.run(manual=True)
    behind = [queue.queue_id for queue in store.all_queues() if queue.min_offset == 0]
    assert len(behind) == 5
    assert store.reader.read(store.queue("T", behind[0]), 0, 32).status == reading.MESSAGE_WAS_REMOVING
    for _ in range(2):
        store.tick()
    assert sum(queue.max_offset - queue.min_offset for queue in store.all_queues()) == 7
    store.close()


def test_a_crash_behind_a_cleaning_finds_queues_that_reach_the_log(tmp_path: Path, disk: SteeredDisk) -> None:
    """Units wait in memory for the next tick; those of files that go must not, or the queue has a gap."""
    store = open_store(tmp_path, disk)
    put(store, 3)
    for _ in range(27):
        store.put(InnerMessage("T", 0, BODY, b""))
    store.durability.kick()
    disk.age_ms = 100 * HOUR_MS
    assert store.cleaner.run(manual=True).log_files == 4
    store._opened = False
    store._release()
    with told() as lines:
        store = open_store(tmp_path, disk)
    assert not [line for line in lines if "damaged" in line or "lost" in line]
    assert read_all(store) == [28, 29]
    store.close()


def test_a_queue_that_ends_before_the_log_begins_goes_on_where_it_does(
    tmp_path: Path, disk: SteeredDisk
) -> None:
    """A power cut can take units of messages whose log files are gone: what is left is no damage."""
    store = open_store(tmp_path, disk)
    put(store, 3)
    for _ in range(27):
        store.put(InnerMessage("T", 0, BODY, b""))
    store.durability.kick()
    store._opened = False
    store._release()
    for name in files_in(tmp_path / "commitlog")[:4]:
        (tmp_path / "commitlog" / name).unlink()
    with told() as lines:
        store = open_store(tmp_path, disk)
    assert not [line for line in lines if "damaged" in line or "lost" in line]
    assert read_all(store) == [28, 29]
    assert store.queue("T", 0).next_offset == 30
    put(store, 1)
    store.close()
    store = open_store(tmp_path, disk)
    assert read_all(store) == [28, 29, 30]
    store.close()


def test_files_go_when_the_queues_are_on_the_device(tmp_path: Path, disk: SteeredDisk) -> None:
    runner = SlowRunner()
    store = open_store(tmp_path, disk, runner=runner)
    put(store, 20)
    runner.work()
    disk.age_ms = 100 * HOUR_MS
    assert store.cleaner.run(manual=True).log_files == 0
    assert store.cleaner.run(manual=True).log_files == 0
    assert len(runner.jobs) == 1, "one look at the device is enough for both"
    runner.work()
    assert len(files_in(tmp_path / "commitlog")) == 1, "what was asked for happens by itself"
    assert read_all(store) == list(range(14, 20))
    store.close()


def test_whoever_wants_to_clean_is_told_when_what_is_there_now_is_on_the_device(
    tmp_path: Path, disk: SteeredDisk
) -> None:
    runner = SlowRunner()
    store = open_store(tmp_path, disk, runner=runner)
    told: list[str] = []
    put(store, 10)
    store.when_cleanable(lambda: told.append("first"))
    put(store, 10)
    store.when_cleanable(lambda: told.append("second"))
    assert told == []
    while not told:
        job, done = runner.jobs.pop(0)
        job()
        done(None)
    assert told == ["first"], "the second came when that one was under way"
    runner.work()
    assert told == ["first", "second"]
    store.when_cleanable(lambda: told.append("at once"))
    assert told[-1] == "at once"
    runner.work()
    store.close()


def test_a_device_that_takes_nothing_more_is_cleaned_all_the_same(
    tmp_path: Path, disk: SteeredDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, disk)
    put(store, 20)

    def full(path: object, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(disk, "write_atomic", full)
    disk.used = 0.99
    assert store.cleaner.run().log_files == 2
    monkeypatch.undo()
    store.close()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["put A", "put B", "clean", "force", "reopen", "crash"]), max_size=25))
def test_after_any_history_exactly_the_log_is_readable(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    root = tmp_path_factory.mktemp("history")
    disk = SteeredDisk(Now())
    store = open_store(root, disk)
    total = {"A": 0, "B": 0}
    for step in steps:
        if step.startswith("put"):
            put(store, 9, step[-1])
            total[step[-1]] += 9
        elif step in ("clean", "force"):
            disk.age_ms = 100 * HOUR_MS if step == "clean" else 0
            disk.used = 0.1 if step == "clean" else 0.86
            store.cleaner.run(manual=True)
            disk.used = 0.1
        else:
            if step == "crash":
                store._opened = False
                store._release()
            store.close()
            store = open_store(root, disk)
        for topic, count in total.items():
            queue = store.queue(topic, 0)
            unit = queue.unit(queue.min_offset)
            assert queue.max_offset == count
            assert read_all(store, topic) == list(range(queue.min_offset, count))
            assert unit is None or unit[0] >= store.log.start
    store.close()
