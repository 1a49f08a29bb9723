"""Who has saved which table, and who hears of it."""

from __future__ import annotations

import pytest

from orbitmq.cluster.tables import TableFeed
from orbitmq.wire import fastjson

TIMEOUT = 100


class World:
    def __init__(self) -> None:
        self.now = 0
        self.feed = TableFeed(lambda: self.now, TIMEOUT)
        self.heard: list[tuple[str, bool]] = []

    def wait_for(self, who: str, name: str, seq: int, *replicas: int) -> None:
        self.feed.when_saved(name, seq, replicas, lambda outcome: self.heard.append((who, outcome)))


@pytest.mark.parametrize("data", [{"a": {0: 5}}, b'{"a":{0:5}}', b'{\n\t"a":{0:5\n\t}\n}'])
def test_a_frame_holds_number_name_and_table(data: bytes | dict[str, object]) -> None:
    feed = TableFeed(lambda: 0, TIMEOUT)
    feed.put("topics", b"{}")
    assert feed.put("offsets", data) == 2
    frame = feed.since(1)[0]
    assert (frame.seq, frame.name) == (2, "offsets")
    assert fastjson.loads(frame.body) == {"seq": 2, "table": "offsets", "data": {"a": {0: 5}}}


def test_only_the_newest_of_a_table_is_sent_in_the_order_of_the_changes() -> None:
    feed = TableFeed(lambda: 0, TIMEOUT)
    for name in ("topics", "groups", "topics", "offsets"):
        feed.put(name, {})
    assert [(frame.seq, frame.name) for frame in feed.since(0)] == [
        (2, "groups"),
        (3, "topics"),
        (4, "offsets"),
    ]
    assert [frame.seq for frame in feed.since(3)] == [4]


def test_one_hears_when_everybody_has_saved_the_table_or_a_later_one() -> None:
    world = World()
    early = world.feed.put("topics", {})
    world.wait_for("early", "topics", early, 2, 3)
    late = world.feed.put("topics", {})
    world.wait_for("late", "topics", late, 2, 3)
    world.feed.saved(2, "topics", late)
    world.feed.saved(3, "topics", early)
    world.feed.look((2, 3))
    assert world.heard == [("early", True)]
    world.feed.saved(3, "topics", late)
    world.feed.look((2, 3))
    assert world.heard == [("early", True), ("late", True)]


def test_another_table_with_a_later_number_says_nothing_about_this_one() -> None:
    world = World()
    topics = world.feed.put("topics", {})
    groups = world.feed.put("groups", {})
    world.wait_for("topics", "topics", topics, 2)
    world.feed.saved(2, "groups", groups)
    world.feed.look((2,))
    assert world.heard == []
    assert not world.feed.has_all(2)
    world.feed.saved(2, "topics", topics)
    assert world.feed.has_all(2)


def test_whoever_left_is_not_waited_for_and_whoever_came_is() -> None:
    world = World()
    seq = world.feed.put("topics", {})
    world.wait_for("change", "topics", seq, 2)
    world.feed.look((2, 3))
    world.feed.saved(3, "topics", seq)
    world.feed.look((2, 3))
    assert world.heard == []
    world.feed.look((3,))
    assert world.heard == [("change", True)]


def test_without_anybody_else_nobody_waits() -> None:
    world = World()
    world.wait_for("alone", "topics", world.feed.put("topics", {}))
    assert world.heard == [("alone", True)]


def test_it_does_not_take_for_ever() -> None:
    world = World()
    world.wait_for("change", "topics", world.feed.put("topics", {}), 2)
    world.now += TIMEOUT - 1
    world.feed.look((2,))
    assert world.heard == []
    world.now += 1
    world.feed.look((2,))
    assert world.heard == [("change", False)]
    world.wait_for("last", "topics", 1, 2)
    world.feed.close()
    assert world.heard[1:] == [("last", False)]


def test_a_new_connection_starts_from_nothing() -> None:
    world = World()
    seq = world.feed.put("topics", {})
    world.feed.saved(2, "topics", seq)
    world.feed.begins(2)
    assert not world.feed.has_all(2)
