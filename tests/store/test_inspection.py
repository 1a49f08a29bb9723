from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orbitmq.store.errors import StoreError
from orbitmq.store.inspection import inspect_record, summarize_store

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())
MESSAGES = MANIFEST["messages"]


def test_the_summary_agrees_with_the_manifest() -> None:
    found = {(queue.topic, queue.queue_id): queue for queue in summarize_store(GOLDEN / "store")}
    for queue in MANIFEST["queues"]:
        summary = found[queue["topic"], queue["queueId"]]
        records = [m for m in MESSAGES if (m["topic"], m["queueId"]) == (queue["topic"], queue["queueId"])]
        records.sort(key=lambda message: message["queueOffset"])
        assert (summary.min_offset, summary.max_offset) == (queue["minOffset"], queue["maxOffset"])
        assert summary.records == len(records)
        assert summary.record_bytes == sum(message["storeSize"] for message in records)
        if records:
            assert summary.first_ms == records[0]["storeTimestamp"]
            assert summary.last_ms == records[-1]["storeTimestamp"]


def test_a_record_is_shown_from_any_of_its_bytes() -> None:
    for message in MESSAGES[::200]:
        offset = message["commitLogOffset"]
        for asked in (offset, offset + 1, offset + message["storeSize"] - 1):
            found = inspect_record(GOLDEN / "store", asked)
            assert found.start == offset
            assert found.message is not None
            assert found.message.offset_msg_id == message["offsetMsgId"]
            assert found.in_queue is True
            assert found.note == ("a record begins here" if asked == offset else "inside this record")


def test_places_without_a_record_are_explained() -> None:
    blank = MANIFEST["blanks"][0]
    assert "blank marker" in inspect_record(GOLDEN / "store", blank["offset"] + 3).note
    behind = inspect_record(GOLDEN / "store", MANIFEST["commitLogEnd"] + 100)
    assert behind.message is None
    assert behind.note == f"nothing is written here: the log ends at {MANIFEST['commitLogEnd']}"
    assert "too old" in inspect_record(GOLDEN / "store", 1 << 40).note
    assert "too old" in inspect_record(GOLDEN / "store", -1).note


def test_damage_is_shown_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(GOLDEN / "store", store)
    first, second = sorted(MESSAGES, key=lambda message: message["commitLogOffset"])[:2]
    log = store / "commitlog" / f"{0:020d}"
    log.chmod(0o644)
    content = bytearray(log.read_bytes())
    content[89] ^= 1
    log.write_bytes(bytes(content))
    found = inspect_record(store, 0)
    assert found.message is not None
    assert found.message.topic == first["topic"]
    assert found.note == "the record that begins here is damaged"
    content[0] ^= 1
    log.write_bytes(bytes(content))
    found = inspect_record(store, 10)
    assert found.message is None
    assert found.note.endswith(f"the next record is at {second['commitLogOffset']}")


def test_a_directory_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no directory"):
        summarize_store(tmp_path / "absent")
    assert summarize_store(tmp_path) == []
