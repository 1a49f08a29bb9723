from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from orbitmq.namesrv.kv_config import KvConfig


def test_what_is_put_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    kv = KvConfig(path)
    kv.load()
    assert kv.namespace("ORDER_TOPIC_CONFIG") is None
    kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4")
    kv.put("ORDER_TOPIC_CONFIG", "Ünï", "broker-a:1")
    kv.put("other", "T", "x")
    again = KvConfig(path)
    again.load()
    assert again.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4;broker-b:4"
    assert again.namespace("ORDER_TOPIC_CONFIG") == {"T": "broker-a:4;broker-b:4", "Ünï": "broker-a:1"}
    assert again.get("other", "nope") is None
    assert json.loads(path.read_bytes())["configTable"]["other"] == {"T": "x"}
    assert sorted(os.listdir(path.parent)) == ["kvConfig.json", "kvConfig.json.bak"]


def test_delete(tmp_path: Path) -> None:
    kv = KvConfig(tmp_path / "kv.json")
    kv.put("ns", "k", "v")
    assert kv.delete("ns", "k")
    assert not kv.delete("ns", "k")
    assert not kv.delete("no", "k")
    again = KvConfig(tmp_path / "kv.json")
    again.load()
    # As with Apache RocketMQ, an emptied namespace is still a known one.
    assert again.namespace("ns") == {}


def test_a_file_of_apache_rocketmq_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    path.write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}')
    kv = KvConfig(path)
    kv.load()
    assert kv.get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4"


@pytest.mark.parametrize("damage", [b'{"configTable":{"ns":', b"[]", b'{"configTable":{"ns":1}}', None])
def test_a_damaged_file_falls_back_to_the_copy_before_it(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kv.json"
    kv = KvConfig(path)
    kv.put("ns", "k", "old")
    kv.put("ns", "k", "new")
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    again = KvConfig(path)
    with caplog.at_level(logging.WARNING, "orbitmq.namesrv"):
        again.load()
    assert again.get("ns", "k") == "old"
    assert "restored" in caplog.text


def test_what_cannot_be_saved_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kv = KvConfig(tmp_path / "file" / "kv.json")
    with pytest.raises(OSError, match="file"):
        kv.put("ns", "k", "v")
    assert kv.get("ns", "k") is None


def test_without_a_path_nothing_is_written() -> None:
    kv = KvConfig(None)
    kv.load()
    kv.put("ns", "k", "v")
    assert kv.get("ns", "k") == "v"


def test_callers_get_copies(tmp_path: Path) -> None:
    kv = KvConfig(None)
    kv.put("ns", "k", "v")
    copy = kv.namespace("ns")
    assert copy is not None
    copy["k"] = "changed"
    assert kv.get("ns", "k") == "v"
