"""The delay levels on a virtual clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbitmq.broker.timing.engine import SOURCE_BATCH
from orbitmq.store.consume_queue import UNIT
from orbitmq.store.inner_message import InnerMessage
from orbitmq.wire.properties import encode_properties
from orbitmq.wire.topics import HALF_TOPIC, SCHEDULE_TOPIC
from tests.broker.timing.world import START_MS, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_all_eighteen_levels_deliver_at_their_moment(world: World) -> None:
    sent = {world.put_level(level): level for level in range(18, 0, -1)}
    world.run_until(START_MS + 7_200_000)
    late = {
        msg_id: world.delivered_at()[msg_id] - world.settings.delay_levels_ms[level - 1]
        for msg_id, level in sent.items()
    }
    assert set(late.values()) == {0}
    assert list(world.waiting()) == []


def test_nothing_comes_a_millisecond_early(world: World) -> None:
    world.put_level(1)
    world.run_until(START_MS + 999)
    assert world.messages() == []
    world.run_until(START_MS + 1_000)
    assert len(world.messages()) == 1


def test_the_delivered_record_is_the_waiting_one_under_another_topic(world: World) -> None:
    draft = world.draft(body=b"hello", DELAY="1", TAGS="t", KEYS="k1 k2", mine="x")
    draft.queue_id, draft.flag, draft.sys_flag, draft.reconsume_times = 3, 7, 0x301, 2
    world.put(draft)
    (waiting,) = world.messages(SCHEDULE_TOPIC)
    queue = world.store.queue(SCHEDULE_TOPIC, 0)
    unit = queue.unit(0)
    assert unit is not None and unit[2] == waiting.store_ms + 1_000
    world.run_until(START_MS + 1_000)
    (message,) = world.messages(queue_id=3)
    assert message.properties == {
        "UNIQ_KEY": "ID00000001",
        "DELAY": "1",
        "TAGS": "t",
        "KEYS": "k1 k2",
        "mine": "x",
        "REAL_TOPIC": "TopicA",
        "REAL_QID": "3",
    }
    same = (
        "body",
        "flag",
        "sys_flag",
        "reconsume_times",
        "born_ms",
        "born_host",
        "store_host",
        "properties_raw",
    )
    for name in same:
        assert getattr(message, name) == getattr(waiting, name), name
    assert message.prepared_offset == 0
    found = world.store.queue("TopicA", 3).unit(0)
    assert found is not None and found[2] == 116  # the hash of its tag, not a time
    assert world.store.query_keys("TopicA", "k2", 0, 1 << 62, 10) == [message.physical_offset]


def test_a_time_further_ahead_than_the_level_allows_is_due(world: World) -> None:
    """The clock was set back, or the level was made shorter."""
    world.put_level(3)
    world.clock.now_ms -= 3_600_000
    world.step()
    assert len(world.messages()) == 1


def test_half_messages_and_records_without_a_target_are_dropped(world: World) -> None:
    for properties in (
        {"REAL_TOPIC": HALF_TOPIC, "REAL_QID": "0"},
        {"REAL_TOPIC": SCHEDULE_TOPIC, "REAL_QID": "0"},
        {"REAL_TOPIC": "TopicA"},
        {"REAL_QID": "0"},
        {"REAL_TOPIC": "../x", "REAL_QID": "0"},
    ):
        text = encode_properties({"DELAY": "1", **properties})
        world.store.put(InnerMessage(SCHEDULE_TOPIC, 0, b"x", text, delay_ms=1_000))
    good = world.put_level(1)
    world.run_until(START_MS + 1_000)
    assert world.ids() == [good]
    assert world.store.find_queue(HALF_TOPIC, 0) is None
    assert world.engine.levels[0].positions == (6, 6)


def test_the_offset_moves_after_the_put_and_reaches_the_table(world: World) -> None:
    world.put_level(1)
    world.put_level(3)
    world.run_until(START_MS + 1_000)
    assert world.offsets.table == {1: 1}
    world.stop()
    assert world.offsets.table == {1: 1}


def test_a_start_goes_on_where_the_last_one_stopped(world: World) -> None:
    first, second = world.put_level(1), world.put_level(2)
    world.run_until(START_MS + 1_000)
    world.restart()
    world.run_until(START_MS + 5_000)
    assert world.ids() == [first, second]


def test_the_table_of_another_broker_that_came_further_counts(world: World) -> None:
    world.put_level(1)
    world.put_level(1)
    world.stop()
    world.offsets.put(1, 1)
    world.clock.now_ms += 10_000
    world.start()
    world.step()
    assert world.ids() == ["ID00000002"]


@pytest.mark.parametrize("offset", [-5, 99])
def test_an_impossible_offset_is_moved_into_the_queue(world: World, offset: int) -> None:
    world.put_level(1)
    world.stop()
    world.offsets.put(1, offset)
    world.start()
    assert world.engine.levels[0].positions == ((0, 0) if offset < 0 else (1, 1))


def test_retries_and_delays_do_not_wait_for_each_other(world: World) -> None:
    """A thousand retries are due before one delay of a user, and the other way round on another level."""
    count = SOURCE_BATCH * 20
    for level, many, one in ((1, "%RETRY%g", "TopicA"), (2, "TopicB", "%RETRY%h")):
        for _ in range(count):
            world.put_level(level, many)
        world.put_level(level, one)
    world.clock.now_ms += 5_000
    rounds = 0
    while not (world.messages("TopicA") and world.messages("%RETRY%h")):
        rounds += 1
        assert world.engine.step(world.clock(), Budget(40))
    assert len(world.messages("%RETRY%g")) < count / 2
    assert len(world.messages("TopicB")) < count / 2
    world.restart()
    world.step()
    for topic, expected in (("%RETRY%g", count), ("TopicB", count), ("TopicA", 1), ("%RETRY%h", 1)):
        assert len(world.ids(topic)) == len(set(world.ids(topic))) == expected
    assert world.engine.levels[0].positions == (count + 1, count + 1)


class Budget:
    """Out of time after so many questions."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_backlog_of_one_level_does_not_hold_up_another(world: World) -> None:
    for _ in range(5_000):
        world.put_level(1)
    quick = world.put_level(2, "TopicB")
    world.clock.now_ms += 5_000
    world.engine.step(world.clock(), Budget(100))
    assert world.ids("TopicB") == [quick]
    assert len(world.messages()) < 5_000


def test_damaged_records_are_left_out_and_the_rest_comes(world: World) -> None:
    ids = [world.put_level(1) for _ in range(3)]
    queue = world.store.queue(SCHEDULE_TOPIC, 0)
    unit = queue.unit(1)
    assert unit is not None
    series = world.store.log.series
    world.disk.pwrite(series.fd(0), b"?", unit[0] + 88)  # the first byte of the body
    world.run_until(START_MS + 1_000)
    assert world.ids() == [ids[0], ids[2]]
    assert UNIT.size == 20


def test_deliveries_pause_while_the_store_refuses_and_go_on_after(world: World) -> None:
    world.put_level(1)
    world.store.refuse_writes("the disk is fuller than diskSpaceWarningLevelRatio (95%)")
    world.run_until(START_MS + 60_000)
    assert world.messages() == []
    world.store.try_to_heal()
    world.step()
    assert len(world.messages()) == 1
