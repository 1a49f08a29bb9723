from __future__ import annotations

from pathlib import Path

from orbitmq.store import store_files
from orbitmq.store.faulty_disk import FaultyDisk
from orbitmq.store.store_files import COMMIT_LOG, LogReader, StoreFiles, segment_path

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "store"


def test_names_and_queues_are_listed_in_order() -> None:
    files = StoreFiles(FaultyDisk(), str(GOLDEN))
    assert files.bases(COMMIT_LOG) == [0, 1048576, 2097152]
    assert files.bases("consumequeue/GoldenBulk/0") == [0, 2000, 4000, 6000, 8000]
    queues = list(files.queue_directories())
    assert ("GoldenTags", 0) in queues
    delays = [queue_id for topic, queue_id in queues if topic == "SCHEDULE_TOPIC_XXXX"]
    assert delays == sorted(delays)
    assert files.names("absent", 20) == []
    files.close()


def test_few_maps_are_open_however_many_files_are_looked_at(tmp_path: Path) -> None:
    disk = FaultyDisk()
    files = StoreFiles(disk, str(tmp_path))
    for n in range(store_files._OPEN_MAPS + 50):
        disk.write_file(tmp_path / f"{n}", b"%d" % n)
        assert files.shared_map(f"{n}")[:] == b"%d" % n
    assert len(files._maps) == store_files._OPEN_MAPS
    first_kept = files.shared_map("60")
    assert files.shared_map("60") is first_kept
    disk.write_file(tmp_path / "empty", b"")
    assert files.shared_map("empty") == b""
    files.close()
    assert disk._paths == {}


def test_single_records_by_offset() -> None:
    files = StoreFiles(FaultyDisk(), str(GOLDEN))
    log = LogReader(files, 1048576)
    first = log.record(0, check_crc=True)
    assert first is not None
    second = log.record(first.size)
    assert second is not None
    assert second.offset == first.size
    assert log.record(1) is None
    assert log.record(1 << 40) is None
    assert log.record(-1) is None
    assert segment_path("a/b", 7) == "a/b/00000000000000000007"
    files.close()
