"""Cancelling and listing what waits, on a virtual clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbitmq.broker.timing.cancelled import Cancelled
from orbitmq.broker.timing.lookup import Spot, State
from orbitmq.wire.topics import TIMER_TOPIC
from tests.broker.timing.world import START_MS, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, flush_every=4)


@pytest.mark.parametrize("crash", [False, True])
def test_a_cancelled_message_is_never_delivered(world: World, crash: bool) -> None:
    timers = [world.put_timer(60_000 + n) for n in range(10)]
    delays = [world.put_level(5) for _ in range(10)]
    world.step()
    for msg_id in timers[::2] + delays[::2]:
        assert world.cancel(msg_id) is State.WAITING
        assert world.cancel(msg_id) is State.CANCELLED
    if crash:
        world.restart()
    world.run_until(START_MS + 30_000)
    if crash:
        world.restart()
    world.run_until(START_MS + 61_000)
    assert sorted(world.ids()) == sorted(timers[1::2] + delays[1::2])
    assert len(world.engine.cancelled) == 0
    for msg_id in timers[::2] + delays[::2]:
        assert world.cancel(msg_id) is State.CANCELLED


def test_what_was_delivered_or_never_sent_cannot_be_cancelled(world: World) -> None:
    timer, delay = world.put_timer(1_000), world.put_level(1)
    world.run_until(START_MS + 1_000)
    assert world.cancel(timer) is State.DELIVERED
    assert world.cancel(delay) is State.DELIVERED
    assert world.cancel("unknown") is None
    assert world.cancel(timer, "TopicB") is None
    world.restart()
    assert world.cancel(timer) is State.DELIVERED


def test_a_message_can_be_cancelled_before_it_is_indexed(world: World) -> None:
    msg_id = world.put_timer(1)
    assert world.cancel(msg_id) is State.WAITING
    world.run_until(START_MS + 1_000)
    assert world.ids() == []


def test_a_send_that_was_repeated_is_cancelled_as_a_whole(world: World) -> None:
    for _ in range(2):
        world.put_timer(5_000, UNIQ_KEY="same")
    assert world.cancel("same") is State.WAITING
    world.run_until(START_MS + 5_000)
    assert world.ids() == []


def test_a_client_of_rocketmq_5_cancels_with_a_message(world: World) -> None:
    """The record names its target by id only, and is never delivered itself."""
    timer, delay = world.put_timer(5_000), world.put_level(2)
    kept = world.put_timer(5_000)
    for msg_id in (timer, delay):
        world.put_timer(5_000, TIMER_DEL_UNIQKEY=msg_id)
    world.step()
    world.restart()
    world.run_until(START_MS + 6_000)
    assert world.ids() == [kept]
    assert len(world.messages(TIMER_TOPIC)) == 4


def test_without_the_key_index_the_delivery_time_finds_it(tmp_path: Path) -> None:
    world = World(tmp_path, index=False)
    timer, delay = world.put_timer(60_000), world.put_level(5)
    for n in range(500):
        world.put_timer(50_000 + 10 * n)
    world.step()
    for msg_id in (timer, delay):
        assert world.engine.lookup.by_id("TopicA", msg_id) == []
        (found,) = world.engine.lookup.by_id("TopicA", msg_id, START_MS + 60_000)
        assert found.waiting.unique_key == msg_id
    assert world.engine.lookup.by_id("TopicA", timer, START_MS + 10_000) == []


def test_everything_that_waits_is_listed_in_order(world: World) -> None:
    expected = []
    for n in range(60):
        due = (n * 7919) % 50_000 + 1
        expected.append((due, world.put_timer(due)))
        world.step()
    for level in (1, 2, 3, 4):
        for topic in ("TopicA", "%RETRY%g"):
            expected.append((world.settings.delay_levels_ms[level - 1], world.put_level(level, topic)))
    cancelled = expected[10][1]
    world.cancel(cancelled)
    found = [(one.spot.due_ms - START_MS, one.waiting.unique_key) for one in pages(world, 7)]
    assert sorted(found) == sorted(item for item in expected if item[1] != cancelled)
    assert [due for due, _ in found] == sorted(due for due, _ in found)
    world.run_until(START_MS + 20_000)
    found = [(one.spot.due_ms - START_MS, one.waiting.unique_key) for one in pages(world, 7)]
    assert sorted(found) == sorted(item for item in expected if item[1] != cancelled and item[0] > 20_000)
    world.restart()
    world.step()
    again = [(one.spot.due_ms - START_MS, one.waiting.unique_key) for one in pages(world, 50)]
    assert again == found


def pages(world: World, size: int) -> list:  # type: ignore[type-arg]
    """By pages of one size, each begun where the last one ended."""
    return list(world.engine.lookup.walk(Spot(-1, 0, -1), size))


def test_the_table_survives_its_own_form() -> None:
    table = Cancelled(most=3)
    for n in range(3):
        assert not table.full
        table.add(100 + n, 5_000 + n)
    assert table.full
    other = Cancelled()
    other.load(table.to_bytes() + b"cut off", 1_000)
    assert [n in other for n in (99, 100, 101, 102, 103)] == [False, True, True, True, False]
    other.forget_before(5_001 + 60_000, 0)
    assert [n in other for n in (100, 101, 102)] == [False, False, True]
    other.forget_before(0, 103)
    assert len(other) == 0
    other.load(table.to_bytes(), 101)
    assert [n in other for n in (100, 101, 102)] == [True, False, False]
