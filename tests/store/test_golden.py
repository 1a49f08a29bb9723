"""The store of a real Java broker: every message is read as its manifest says; what we rebuild is what Java wrote."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orbitmq.store.disk import Disk
from orbitmq.store.message_store import MessageStore
from orbitmq.wire.message import Message
from orbitmq.wire.topics import OP_TOPIC
from tests.support.stores import GOLDEN, Clock, golden_settings, read_all

MANIFEST: dict[str, Any] = json.loads((GOLDEN.parent / "manifest.json").read_text("utf-8"))
NOW = 1_800_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "store"))


def opened(root: Path) -> MessageStore:
    store = MessageStore(golden_settings(root), Disk(), Clock(NOW))
    store.open()
    return store


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def described(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.size,
        "msgId": message.properties.get("UNIQ_KEY"),
        "offsetMsgId": message.offset_msg_id,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_ms,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_ms,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_offset,
        "bodyCRC": message.body_crc,
        "bodySha256": sha256(message.decoded_body()),
        "storedBodySha256": sha256(message.body),
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
    }


def check_contents(store: MessageStore) -> None:
    found = read_all(store)
    ranges = {(q["topic"], q["queueId"]): (q["minOffset"], q["maxOffset"]) for q in MANIFEST["queues"]}
    read = {
        place: (messages[0].queue_offset, messages[-1].queue_offset + 1) for place, messages in found.items()
    }
    read.pop((OP_TOPIC, 0))  # no client may read it, so the manifest has its messages only
    assert read == ranges
    assert store.log.position == MANIFEST["commitLogEnd"]
    messages = {message.physical_offset: described(message) for queue in found.values() for message in queue}
    assert len(messages) == len(MANIFEST["messages"])
    for wanted in MANIFEST["messages"]:
        got = messages[wanted["commitLogOffset"]]
        for name in got.keys() & wanted.keys():
            assert got[name] == wanted[name], f"{name} of {wanted['topic']} {wanted['queueOffset']}"
    for lookup in MANIFEST["keyLookups"]:
        hits = store.query_keys(lookup["topic"], lookup["key"], 0, 1 << 62, 64)
        ids = [messages[hit]["offsetMsgId"] for hit in hits if holds(messages[hit], lookup)]
        assert sorted(ids) == sorted(lookup["offsetMsgIds"]), lookup


def holds(message: dict[str, Any], lookup: dict[str, Any]) -> bool:
    """The index knows hashes only; who asks compares."""
    keys = [message["msgId"] or "", *(message["keys"] or "").split()]
    return message["topic"] == lookup["topic"] and lookup["key"] in keys


def test_everything_in_it_is_read(root: Path) -> None:
    with closing(opened(root)) as store:
        check_contents(store)
    with closing(opened(root)) as store:
        check_contents(store)


def test_it_is_read_the_same_after_a_crash_of_java(root: Path) -> None:
    (root / "abort").touch()
    with closing(opened(root)) as store:
        check_contents(store)


def test_queues_and_index_made_anew_are_byte_for_byte_those_of_java(root: Path) -> None:
    for part in ("consumequeue", "index"):
        shutil.rmtree(root / part)
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    with closing(opened(root)) as store:
        check_contents(store)
    queue_files = [file for file in MANIFEST["files"] if file["path"].startswith("consumequeue/")]
    assert queue_files
    for file in queue_files:
        data = (root / file["path"]).read_bytes()
        # Java makes the next file of a queue ahead of time; an empty one holds nothing to compare.
        assert sha256(data) == file["sha256"], file["path"]
    made = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    javas = [path.read_bytes() for path in sorted((GOLDEN / "index").iterdir())]
    assert [sha256(data) for data in made] == [sha256(data) for data in javas]


def test_opening_and_closing_changes_no_message_file(root: Path) -> None:
    opened(root).close()
    for file in MANIFEST["files"]:
        if file["path"].startswith(("commitlog/", "consumequeue/", "index/")):
            assert sha256((root / file["path"]).read_bytes()) == file["sha256"], file["path"]
