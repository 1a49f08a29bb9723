"""A write that fails halfway leaves nothing behind that a recovery could take for messages."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from orbitmq.store.faulty_disk import Fault, FaultyDisk
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.message_store import MessageStore
from tests.support.stores import T0, open_small, read_all, small_settings


def message(body: bytes) -> InnerMessage:
    return InnerMessage("Alpha", 0, body, b"UNIQ_KEY\x01" + body[:20]).index_properties()


@pytest.mark.parametrize("keep_bytes", [0, 1, 130, 300, 700, 1200])
@pytest.mark.parametrize("big", [20, 6000])
def test_torn_records_never_come_back(tmp_path: Path, keep_bytes: int, big: int) -> None:
    """All in one millisecond, so that no store time tells the torn records from those written over them."""
    disk = FaultyDisk()
    store = MessageStore(small_settings(tmp_path / "store"), disk, lambda: T0)
    store.open()
    for number in range(3):
        store.put(message(b"kept %d" % number))
    # The larger ones go over the end of the first file, so part of them is whole on the disk when the rest fails.
    after = 1 if big > 1000 else 0
    disk.inject(Fault("pwrite", "commitlog", after=after, error=errno.ENOSPC, keep_bytes=keep_bytes))
    for number in range(8):
        store.stage_inner(message(b"torn %d " % number + bytes(big)))
    with pytest.raises(OSError, match="No space"):
        store.commit_staged()
    store.try_to_heal()
    store.put(message(b"kept 3"))
    shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    store.close()
    for name in ("crashed", "store"):
        again = open_small(tmp_path / name)
        assert [m.body for m in read_all(again)["Alpha", 0]] == [b"kept %d" % n for n in range(4)]
        assert again.put(message(b"new")).queue_offset == 4
        again.close()
