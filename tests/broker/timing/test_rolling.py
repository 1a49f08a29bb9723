"""Log files are cleaned long before the timers in them are due: a store of tiny files."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbitmq.broker.timing.lookup import State
from orbitmq.store.durability import Durability
from orbitmq.wire.topics import TIMER_TOPIC
from tests.broker.timing.world import DAY_MS, START_MS, World

HOUR_MS = 3_600_000


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, log_file_bytes=4 << 10, flush_every=8)


def fill(world: World, files: int = 2) -> None:
    """Other traffic, so that the log goes on."""
    end = world.store.log.position + files * world.settings.commit_log_file_bytes
    while world.store.log.position < end:
        world.put_others(1)


def clean(world: World) -> int:
    return sum(world.clean() for _ in range(3))


def test_timers_are_written_anew_before_their_file_goes(world: World) -> None:
    sent = {world.put_timer(n * HOUR_MS): n * HOUR_MS for n in range(1, 11)}
    fill(world)
    assert clean(world) >= 2
    assert world.store.log.start > 0
    rolled = world.messages(TIMER_TOPIC)
    assert len(rolled) >= 10 and all("TIMER_ROLL_TIMES" in m.properties for m in rolled)
    world.run_until(START_MS + 11 * HOUR_MS)
    assert world.delivered_at() == sent
    assert len(world.ids()) == 10
    assert "TIMER_ROLL_FROM" not in world.messages()[0].properties


def test_forty_days_take_many_rolls(world: World) -> None:
    msg_id = world.put_timer(40 * DAY_MS)
    for _ in range(13):
        world.run_until(world.clock() + 3 * DAY_MS)
        fill(world)
        assert clean(world) >= 1
    (waiting,) = world.messages(TIMER_TOPIC)
    assert waiting.properties["TIMER_ROLL_TIMES"] == "13"
    assert world.ids() == []
    world.run_until(START_MS + 40 * DAY_MS)
    assert world.delivered_at() == {msg_id: 40 * DAY_MS}


def test_the_cleaner_waits_for_the_roll_and_goes_on_after_it(world: World) -> None:
    world.put_timer(HOUR_MS)
    fill(world)
    assert world.store.cleaner.run(manual=True).log_files == 0
    assert world.store.cleaner.postponed_by_hand
    done = []
    world.engine.roller.on_done = lambda: done.append(world.store.cleaner.run(manual=True).log_files)
    world.step()
    assert done and done[0] >= 1
    assert not world.store.cleaner.postponed_by_hand


def test_a_file_stays_until_the_new_records_are_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, log_file_bytes=4 << 10, sync_flush=False)
    world.put_timer(HOUR_MS)
    fill(world)
    world.store.durability.kick()
    with monkeypatch.context() as patched:
        patched.setattr(Durability, "kick", lambda self: None)
        assert clean(world) == 0
    assert clean(world) >= 1


def test_delivered_and_cancelled_timers_are_not_rolled(world: World) -> None:
    delivered = world.put_timer(1_000)
    cancelled = world.put_timer(HOUR_MS)
    kept = world.put_timer(HOUR_MS)
    world.run_until(START_MS + 1_000)
    assert world.cancel(cancelled) is State.WAITING
    fill(world)
    clean(world)
    assert [m.properties["UNIQ_KEY"] for m in world.messages(TIMER_TOPIC)] == [kept]
    world.run_until(START_MS + 2 * HOUR_MS)
    assert kept in world.ids()
    assert delivered not in world.ids() and cancelled not in world.ids()


def test_a_rolled_timer_can_still_be_cancelled(world: World) -> None:
    msg_id = world.put_timer(HOUR_MS)
    fill(world)
    clean(world)
    assert world.cancel(msg_id) is State.WAITING
    assert world.cancel(msg_id) is State.CANCELLED
    world.restart()
    world.run_until(START_MS + 2 * HOUR_MS)
    assert world.ids() == []


def test_a_crash_between_roll_and_cleaning_repeats_nothing(world: World) -> None:
    ids = [world.put_timer(n * HOUR_MS) for n in range(1, 101)]
    fill(world)
    world.store.cleaner.run(manual=True)
    world.engine.indexer.advance(lambda: False)
    world.engine._advance(world.clock(), [])
    assert world.engine.roller.step(world.clock(), lambda: True)
    assert 0 < world.engine.agenda.rolled < 100
    world.restart()
    world.step()
    clean(world)
    world.restart()
    world.run_until(START_MS + 101 * HOUR_MS)
    assert world.ids() == ids


def test_levels_become_timers_when_their_file_has_to_go(world: World) -> None:
    sent = {world.put_level(level): world.settings.delay_levels_ms[level - 1] for level in (18, 17, 5, 3)}
    retried = world.put_level(4, "%RETRY%g")
    world.run_until(START_MS + 10_000)
    first = world.delivered_at()
    fill(world)
    clean(world)
    assert world.store.log.start > 0
    assert len(list(world.waiting())) == 4
    world.restart()
    world.run_until(START_MS + 3 * HOUR_MS)
    assert {**first, **world.delivered_at()} == sent
    assert world.delivered_at("%RETRY%g") == {retried: 30_000}


def test_a_full_disk_does_not_keep_timers_from_making_room(world: World) -> None:
    world.put_timer(HOUR_MS)
    fill(world)
    world.store.refuse_writes("the disk is fuller than diskSpaceWarningLevelRatio (95%); free space")
    assert clean(world) >= 1
    assert len(list(world.waiting())) == 1


def test_a_record_that_went_without_asking_is_reported_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.put_timer(HOUR_MS)
    good = world.put_timer(2 * HOUR_MS)
    world.step()
    fill(world)
    world.store.cleaner.guards.clear()
    clean(world)
    again = world.put_timer(HOUR_MS)
    world.run_until(START_MS + 3 * HOUR_MS)
    assert world.ids() == [again]
    assert caplog.text.count("cleaned before its time") == 2
    assert good not in world.ids()
