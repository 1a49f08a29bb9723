from __future__ import annotations

from orbitmq.store.errors import StoreClosed, StoreDamaged, StoreError, StoreLocked, WrongFileSize


def test_every_error_says_what_happened_and_what_to_do() -> None:
    errors = [
        StoreLocked("/data/store", 42),
        StoreLocked("/data/store", None),
        StoreDamaged("commitlog/0", 17, "the checksum is wrong"),
        StoreDamaged("checkpoint", None, "it is too short", "delete it"),
        WrongFileSize("index/1", 5, 10, "maxIndexNum"),
        StoreClosed("the commit log"),
    ]
    assert [str(error) for error in errors] == [
        "the store directory /data/store is in use by another broker (process 42); "
        "stop that broker first, or give this one its own storePathRootDir",
        "the store directory /data/store is in use by another broker (another process); "
        "stop that broker first, or give this one its own storePathRootDir",
        "commitlog/0 at byte 17: the checksum is wrong; run `orbitmq store verify` on the stopped store",
        "checkpoint: it is too short; delete it",
        "index/1 has 5 bytes, but 10 are expected from maxIndexNum; "
        "set maxIndexNum to the value this store was written with, or restore the file from a copy",
        "the commit log is closed; open the store before using it",
    ]
    assert all(isinstance(error, StoreError) for error in errors)
    assert str(StoreError("just this")) == "just this"
