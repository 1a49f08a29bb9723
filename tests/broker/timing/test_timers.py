"""Timers on a virtual clock: any moment up to 40 days ahead."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from orbitmq.store.durability import Durability
from orbitmq.store.faulty_disk import Fault, FaultyDisk
from orbitmq.store.inner_message import InnerMessage
from orbitmq.wire.properties import encode_properties
from orbitmq.wire.topics import TIMER_TOPIC
from tests.broker.timing.world import DAY_MS, START_MS, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_every_timer_comes_at_its_very_millisecond(world: World) -> None:
    delays = [1, 2, 7, 999, 1_000, 1_001, 8_000, 8_001, 60_000, 3_600_000, DAY_MS, 40 * DAY_MS]
    sent = {world.put_timer(delay): delay for delay in reversed(delays)}
    world.run_until(START_MS + 40 * DAY_MS)
    assert world.delivered_at() == sent


def test_timers_of_one_moment_keep_their_order(world: World) -> None:
    ids = [world.put_timer(5_000) for _ in range(300)]
    world.run_until(START_MS + 5_000)
    assert world.ids() == ids


def test_the_delivered_record_tells_its_times(world: World) -> None:
    draft = world.draft(body=b"hello", TIMER_DELAY_MS="2500", TAGS="t", KEYS="k")
    draft.queue_id, draft.flag, draft.reconsume_times = 2, 5, 1
    world.put(draft)
    (waiting,) = world.messages(TIMER_TOPIC)
    assert waiting.properties["TIMER_OUT_MS"] == str(START_MS + 2_500)
    world.run_until(START_MS + 2_500)
    (message,) = world.messages(queue_id=2)
    assert message.properties == {
        "UNIQ_KEY": "ID00000001",
        "TIMER_DELAY_MS": "2500",
        "TAGS": "t",
        "KEYS": "k",
        "REAL_TOPIC": "TopicA",
        "REAL_QID": "2",
        "TIMER_OUT_MS": str(START_MS + 2_500),
        "TIMER_ENQUEUE_MS": str(START_MS),
        "TIMER_DEQUEUE_MS": str(START_MS + 2_500),
    }
    for name in ("body", "flag", "sys_flag", "reconsume_times", "born_ms", "born_host", "store_host"):
        assert getattr(message, name) == getattr(waiting, name), name


def test_a_time_that_another_broker_rounded_down_is_taken_exactly(world: World) -> None:
    text = {"REAL_TOPIC": "TopicA", "REAL_QID": "0", "TIMER_DELIVER_MS": str(START_MS + 3_700)}
    properties = encode_properties({**text, "TIMER_OUT_MS": str(START_MS + 3_000), "UNIQ_KEY": "a"})
    world.store.put(InnerMessage(TIMER_TOPIC, 0, b"x", properties))
    world.run_until(START_MS + 9_000)
    assert world.delivered_at() == {"a": 3_700}


def test_records_without_a_time_are_left_out(world: World) -> None:
    for text in ({}, {"TIMER_OUT_MS": "x"}, {"TIMER_OUT_MS": "-1"}):
        world.store.put(InnerMessage(TIMER_TOPIC, 0, b"x", encode_properties(text)))
    good = world.put_timer(10)
    world.run_until(START_MS + 10)
    assert world.ids() == [good]


@pytest.mark.parametrize("sync_flush", [True, False])
def test_a_crash_at_any_step_loses_nothing(tmp_path: Path, sync_flush: bool) -> None:
    """Under asynchronous flush the device is behind; a killed process still finds what it wrote."""
    world = World(tmp_path, sync_flush=sync_flush, flush_every=16, near_limit=8)
    ids = [world.put_timer(100 * n) for n in range(1, 60)]
    for moment in range(50, 6_000, 150):
        world.run_until(START_MS + moment)
        world.restart()
    world.run_until(START_MS + 6_000)
    assert world.ids() == ids


def test_many_timers_live_in_runs_and_come_in_order(tmp_path: Path) -> None:
    world = World(tmp_path, flush_every=32, near_limit=32, log_file_bytes=1 << 22)
    delays = [(n * 7919) % 100_003 + 1 for n in range(1_000)]
    sent = {}
    for delay in delays:
        sent[world.put_timer(delay)] = delay
        world.step()
    assert world.engine.agenda.pending == 1_000
    assert 0 < len(world.engine.agenda.runs) < 24
    world.restart()
    world.run_until(START_MS + 50_000)
    world.restart()
    world.run_until(START_MS + 110_000)
    assert world.delivered_at() == sent
    assert len(world.ids()) == 1_000
    world.run_until(START_MS + 120_000)
    assert world.engine.agenda.runs == []
    assert [name for name in world.disk.listdir(tmp_path / "timers") if name.startswith("run-")] == []


def test_a_million_entries_of_memory_are_not_needed(tmp_path: Path) -> None:
    """What waits in memory is bounded, whatever waits in all."""
    world = World(tmp_path, flush_every=200, near_limit=100, log_file_bytes=1 << 22)
    for n in range(1_500):
        world.put_timer(3_600_000 + 10 * n)
    world.step()
    agenda = world.engine.agenda
    assert agenda.pending == 1_500
    assert agenda.far_count <= 200 and len(agenda._heap) == 0 and len(agenda._near) <= 600
    world.run_until(START_MS + 3_600_000 + 15_000)
    assert len(world.ids()) == len(set(world.ids())) == 1_500


def test_a_damaged_index_is_made_anew(tmp_path: Path) -> None:
    world = World(tmp_path, flush_every=8)
    ids = [world.put_timer(1_000 * n) for n in range(1, 41)]
    world.run_until(START_MS + 5_000)
    assert world.engine.agenda.runs
    world.stop()
    for name in world.disk.listdir(tmp_path / "timers"):
        if name.startswith("run-"):
            world.disk.write_file(tmp_path / "timers" / name, b"garbage")
    world.start()
    world.run_until(START_MS + 50_000)
    assert world.ids() == ids


@pytest.mark.parametrize("name", ["runs.json", "checkpoint"])
def test_a_lost_file_of_ours_repeats_at_most(tmp_path: Path, name: str) -> None:
    world = World(tmp_path, flush_every=8)
    ids = [world.put_timer(1_000 * n) for n in range(1, 41)]
    world.run_until(START_MS + 5_000)
    world.stop()
    world.disk.unlink(tmp_path / "timers" / name)
    world.start()
    world.run_until(START_MS + 50_000)
    assert set(world.ids()) == set(ids)
    assert len(world.ids()) == (40 if name == "runs.json" else 45)


def test_a_failing_disk_delays_the_index_and_loses_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk(Fault("pwrite", "run-", after=2, error=errno.EIO, times=5))
    world = World(tmp_path, disk=disk, flush_every=16)
    ids = []
    for n in range(1, 101):
        ids.append(world.put_timer(1_000 * n))
        world.step()
    world.run_until(START_MS + 110_000)
    assert world.ids() == ids


def test_a_failing_log_puts_deliveries_off(tmp_path: Path) -> None:
    disk = FaultyDisk()
    world = World(tmp_path, disk=disk)
    ids = [world.put_timer(1_000), world.put_level(1), world.put_timer(1_001)]
    disk.inject(Fault("pwrite", "commitlog", error=errno.ENOSPC))
    world.run_until(START_MS + 2_000)
    assert world.messages() == []
    world.store.try_to_heal()
    world.step()
    assert sorted(world.ids()) == sorted(ids)


def test_after_a_power_cut_the_checkpoint_is_not_ahead_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last deliveries were not on the device; the newest checkpoint, which claims them, must not count."""
    world = World(tmp_path, sync_flush=False)
    ids = [world.put_timer(1_000), world.put_timer(2_000)]
    world.run_until(START_MS + 1_000)
    world.store.durability.kick()
    world.step()
    end = world.store.log.position
    monkeypatch.setattr(Durability, "kick", lambda self: None)
    world.run_until(START_MS + 2_000)
    assert len(world.messages()) == 2
    monkeypatch.undo()
    world.crash()
    log = tmp_path / "commitlog" / f"{0:020d}"
    fd = world.disk.open_rw(log)
    world.disk.zero_range(fd, end, 1 << 20)
    world.disk.close(fd)
    world.start()
    assert len(world.messages()) == 1
    world.step()
    assert world.ids() == ids


def test_a_clock_that_goes_back_loses_nothing(world: World) -> None:
    first = world.put_timer(5_000)
    world.run_until(START_MS + 5_000)
    world.clock.now_ms -= 3_000
    second = world.put_timer(1_000)
    world.step()
    world.restart()
    world.run_until(START_MS + 9_000)
    assert world.ids() == [first, second]


def test_a_late_timer_is_delivered_at_once(world: World) -> None:
    """It became visible only after its time, for instance because the flush took long."""
    world.put_timer(500_000)
    world.run_until(START_MS + 10_000)
    draft = world.draft(TIMER_DELIVER_MS=str(START_MS + 10_001))
    world.clock.now_ms = START_MS + 10_000
    from orbitmq.broker.timing import rules

    rules.divert(draft, world.clock(), world.settings.delay_levels_ms, 1 << 40)
    world.run_until(START_MS + 20_000)
    world.store.put(draft.finish())
    world.step()
    assert world.delivered_at() == {"ID00000002": 20_000}
    world.restart()
    world.run_until(START_MS + 30_000)
    assert len(world.ids()) == 1


def test_the_wheel_of_a_wiped_store_is_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path, flush_every=4)
    for n in range(1, 20):
        world.put_timer(1_000 * n)
    world.run_until(START_MS + 3_000)
    world.stop()
    for name in world.disk.listdir(tmp_path / "commitlog"):
        world.disk.unlink(tmp_path / "commitlog" / name)
    world.start()
    msg_id = world.put_timer(100)
    world.run_until(START_MS + 60_000)
    assert world.ids() == [msg_id]
