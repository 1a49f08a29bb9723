"""The list of open transactions."""

from __future__ import annotations

from typing import Any

import pytest

from orbitmq.broker.transaction import listing
from orbitmq.wire import fastjson
from orbitmq.wire.batch import MAX_HALF_BATCH
from orbitmq.wire.codes import OrbitCode
from orbitmq.wire.command import request
from tests.broker.transaction.world import (
    COMMIT,
    T0,
    World,
)


class TestListing:
    def ask(self, world: World, **fields: str) -> dict[str, Any]:
        reply = world.ask(request(OrbitCode.LIST_HALF_MESSAGES, fields))
        assert reply.code == 0, reply.remark
        data: dict[str, Any] = fastjson.loads(reply.body)
        return data

    def test_open_ones_with_everything_a_person_asks_for(self, world: World) -> None:
        world.prepare("T1", queue_id=3, TAGS="a", KEYS="k1 k2", group="g1")
        world.end(world.prepare("T2"), COMMIT)
        world.join("g1")
        world.round()
        found = self.ask(world)
        assert found["open"] == 1 and found["nextOffset"] == -1
        (row,) = found["halfMessages"]
        assert row["msgId"] == "T1" and row["topic"] == "TopicA" and row["queueId"] == 3
        assert row["producerGroup"] == "g1" and row["producersOnline"] == 1 and row["checkTimes"] == 1
        assert row["keys"] == "k1 k2" and row["tags"] == "a" and row["queueOffset"] == 2
        assert row["bornTimestamp"] == T0 and row["immunityTime"] == 6000

    def test_pages_and_filters(self, world: World) -> None:
        for i in range(5):
            world.prepare(f"T{i}", group=f"g{i % 2}", topic="TopicB" if i == 4 else "TopicA")
        first = self.ask(world, maxNum="2")
        assert [row["msgId"] for row in first["halfMessages"]] == ["T0", "T1"] and first["nextOffset"] == 2
        rest = self.ask(world, maxNum="9", fromOffset="2")
        assert [row["msgId"] for row in rest["halfMessages"]] == ["T2", "T3", "T4"] and rest[
            "nextOffset"
        ] == -1
        assert [row["msgId"] for row in self.ask(world, producerGroup="g1")["halfMessages"]] == ["T1", "T3"]
        assert [row["msgId"] for row in self.ask(world, topic="TopicB")["halfMessages"]] == ["T4"]
        assert self.ask(world, producerGroup="nobody")["halfMessages"] == []

    def test_a_page_ends_when_it_has_read_enough(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listing, "MAX_READ_BYTES", 2500)
        for i in range(5):
            world.prepare(f"T{i}", body=bytes(1000))
        first = self.ask(world)
        assert [row["msgId"] for row in first["halfMessages"]] == ["T0", "T1", "T2"]
        rest = self.ask(world, fromOffset=str(first["nextOffset"]))
        assert [row["msgId"] for row in rest["halfMessages"]] == ["T3", "T4"] and rest["nextOffset"] == -1

    def test_it_says_how_many_messages_may_come_in_one(self, world: World) -> None:
        reply = world.ask(request(OrbitCode.LIST_HALF_MESSAGES, {}))
        assert reply.ext["halfBatch"] == str(MAX_HALF_BATCH)
