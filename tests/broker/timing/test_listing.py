"""LIST_SCHEDULED: pages, filters, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orbitmq.broker.timing import listing
from orbitmq.net.errors import RequestError
from orbitmq.wire.codes import OrbitCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.recall import decode_handle
from tests.broker.timing.world import START_MS, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, flush_every=16)


def ask(world: World, **fields: str) -> dict[str, Any]:
    broker: Any = SimpleNamespace(config=SimpleNamespace(broker_name="broker-a"), store=world.store)
    answer = listing.list_scheduled(broker, world.engine, request(OrbitCode.LIST_SCHEDULED, fields))
    assert answer.code == ResponseCode.SUCCESS
    found: dict[str, Any] = json.loads(answer.body)
    return found


def every_page(world: World, size: int, **fields: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after = ""
    while True:
        page = ask(world, maxNum=str(size), after=after, **fields)
        assert len(page["messages"]) <= size
        rows += page["messages"]
        if "next" not in page:
            return rows
        after = page["next"]


def test_pages_hold_everything_once_and_in_order(world: World) -> None:
    for n in range(40):
        world.put_timer(1_000 + (n * 37) % 400, "TopicA" if n % 2 else "TopicB")
        world.step()
    for n in range(10):
        world.put_level(1 + n % 3, "%RETRY%g" if n % 2 else "TopicA")
    rows = every_page(world, 7)
    assert len({row["msgId"] for row in rows}) == len(rows) == 50
    assert [row["deliverTimestamp"] for row in rows] == sorted(row["deliverTimestamp"] for row in rows)
    assert {row["topic"] for row in every_page(world, 3, topic="TopicB")} == {"TopicB"}
    assert len(every_page(world, 3, topic="TopicB")) == 20
    summary = ask(world, maxNum="1")
    assert (summary["waitingByLevel"], summary["waitingByTime"], summary["cancelled"]) == (10, 40, 0)


def test_a_page_looks_at_a_bounded_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_LOOKED_AT", 10)
    for n in range(35):
        world.put_timer(1_000 + n, "Rare" if n == 30 else "TopicA")
    world.step()
    first = ask(world, topic="Rare")
    assert first["messages"] == [] and first["next"]
    assert [row["topic"] for row in every_page(world, 5, topic="Rare")] == ["Rare"]


def test_a_row_says_what_a_person_wants_to_know(world: World) -> None:
    msg_id = world.put_timer(60_000, TAGS="t", KEYS="k1 k2")
    (row,) = ask(world, topic="TopicA", msgId=msg_id)["messages"]
    assert row["deliverTimestamp"] == START_MS + 60_000
    assert (row["tags"], row["keys"], row["delayLevel"], row["retry"]) == ("t", "k1 k2", 0, False)
    assert decode_handle(row["recallHandle"]) == ("TopicA", "broker-a", START_MS + 60_000, msg_id)
    assert ask(world, topic="TopicB", msgId=msg_id)["messages"] == []


@pytest.mark.parametrize("after", ["x", "1:2", "1:2:3:4", "1:2:z", "9" * 40 + ":0:0"])
def test_a_place_that_is_none_is_refused(world: World, after: str) -> None:
    with pytest.raises(RequestError, match="no place in the list") as refused:
        ask(world, after=after)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


def test_an_id_alone_is_not_enough(world: World) -> None:
    with pytest.raises(RequestError, match="give the topic"):
        ask(world, msgId="x")


def test_silly_sizes_are_brought_to_sense(world: World) -> None:
    for n in range(3):
        world.put_timer(1_000 + n)
    world.step()
    assert len(ask(world, maxNum="-5")["messages"]) == 1
    assert len(ask(world, maxNum="2000000000")["messages"]) == 3
