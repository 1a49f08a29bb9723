"""What holds for engines in general, and for leadership by time."""

from __future__ import annotations

import asyncio
import sys

import pytest

from orbitmq.cluster.controller.engines import EngineFailed, Hold
from orbitmq.cluster.controller.engines.etcd import EtcdEngine
from orbitmq.cluster.controller.leadership import Leadership
from orbitmq.net.controller_turns import ControllerTurns


def test_the_etcd_engine_says_which_package_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aetcd", None)
    engine = EtcdEngine(["127.0.0.1:1"], "/p", 2000, lambda: 0.0)
    with pytest.raises(EngineFailed, match=r"pip install 'orbitmq\[etcd\]'"):
        asyncio.run(engine.open())


def test_leadership_lasts_as_long_as_the_engine_said() -> None:
    leadership = Leadership()
    assert not leadership.valid(0)
    leadership.observe(Hold(True, 100, "me:1"))
    assert leadership.valid(99) and not leadership.valid(100)
    leadership.observe(Hold(True, 90, "me:1"))
    assert leadership.valid(99), "an answer that comes late takes nothing away"
    leadership.observe(Hold(False, 0, "other:1"))
    assert not leadership.valid(0) and leadership.address == "other:1"
    leadership.observe(Hold(True, 500, "me:1"))
    leadership.give_up()
    assert not leadership.valid(0)


def test_every_controller_is_asked_once_the_named_one_first() -> None:
    turns = ControllerTurns(["a:1", "b:1", "c:1"], last="b:1")
    assert turns.next_address() == "b:1"
    turns.not_active("d:1")
    assert turns.next_address() == "d:1"
    turns.failed("no way to d:1")
    assert turns.next_address() == "a:1"
    turns.not_active("b:1")
    assert turns.next_address() == "c:1"
    turns.not_active("")
    assert turns.next_address() is None
    assert turns.problems == [
        "b:1 is not the active one",
        "no way to d:1",
        "a:1 is not the active one",
        "c:1 is not the active one",
    ]
