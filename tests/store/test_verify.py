from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq.store.errors import StoreError
from orbitmq.store.verify import verify_store
from orbitmq.store.verify_report import MAX_FINDINGS_OF_A_KIND, StoreSizes, VerifyReport

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())
LOG_BYTES = MANIFEST["config"]["mappedFileSizeCommitLog"]
MESSAGES: list[dict[str, Any]] = sorted(MANIFEST["messages"], key=lambda message: message["commitLogOffset"])
RELAXED = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def copy_golden(target: Path) -> Path:
    shutil.copytree(GOLDEN / "store", target)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One copy for all: every test puts back what it changes."""
    return copy_golden(tmp_path_factory.mktemp("verify") / "store")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return copy_golden(tmp_path / "store")


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def flipped(content: bytes, at: int, mask: int) -> bytes:
    return content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]


def texts(report: VerifyReport) -> str:
    return "\n".join(str(finding) for finding in report.findings)


def log_place(store: Path, offset: int) -> tuple[Path, int]:
    return store / "commitlog" / f"{offset - offset % LOG_BYTES:020d}", offset % LOG_BYTES


def test_the_golden_store_is_clean_and_counted_as_its_manifest_says() -> None:
    seen: list[tuple[int, int]] = []
    report = verify_store(GOLDEN / "store", progress=lambda done, total: seen.append((done, total)))
    assert report.findings == []
    assert report.ok
    assert report.sizes == StoreSizes(1048576, 2000, 500, 400)
    assert report.log_end == MANIFEST["commitLogEnd"]
    assert report.records == len(MESSAGES)
    assert report.blanks == len(MANIFEST["blanks"])
    assert report.last_ms == MESSAGES[-1]["storeTimestamp"]
    assert seen[-1] == (3, 3)
    found = {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in report.queues}
    for queue in MANIFEST["queues"]:
        assert found.pop((queue["topic"], queue["queueId"])) == (queue["minOffset"], queue["maxOffset"])
    # The queue of transaction ends cannot be pulled, so the manifest does not list it.
    assert set(found) == {("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)}
    for queue_summary in report.queues:
        assert queue_summary.records == queue_summary.max_offset - queue_summary.min_offset


def test_sizes_may_be_given() -> None:
    report = verify_store(GOLDEN / "store", StoreSizes(1048576, 2000, 500, 400))
    assert report.findings == []
    report = verify_store(GOLDEN / "store", StoreSizes(commit_log=1 << 30))
    assert not report.ok


# Byte ranges of the fixed part that some check covers; flags, hosts and born times carry no redundancy.
CHECKED_FIELDS = [(0, 16), (20, 36), (84, 88)]


@RELAXED
@given(data=st.data())
def test_a_changed_byte_of_a_record_is_found(shared: Path, data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(MESSAGES))
    path, start = log_place(shared, message["commitLogOffset"])
    content = path.read_bytes()
    size = message["storeSize"]
    (body_bytes,) = struct.unpack_from(">i", content, start + 84)
    ranges = [*CHECKED_FIELDS, (88, 88 + body_bytes + 1 + len(message["topic"]) + 2)]
    # Queues of the schedule topic know the delivery time instead of the tag.
    tags = [] if message["topic"] == "SCHEDULE_TOPIC_XXXX" else ["TAGS"]
    for value in (message["properties"].get(name, "") for name in ["UNIQ_KEY", "KEYS", *tags]):
        at = content.find(value.encode(), start + ranges[-1][1], start + size) - start
        if value and at > 0:
            ranges.append((at, at + len(value.encode())))
    low, high = data.draw(st.sampled_from(ranges))
    at = start + data.draw(st.integers(low, high - 1))
    with changed(path, flipped(content, at, data.draw(st.integers(1, 255)))):
        report = verify_store(shared)
    assert list(report.of("error")), f"byte {at - start} of record {message['commitLogOffset']}"


@RELAXED
@given(data=st.data())
def test_zeros_in_the_log_are_found(shared: Path, data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(MESSAGES))
    path, start = log_place(shared, message["commitLogOffset"])
    content = path.read_bytes()
    length = data.draw(st.integers(24, 5000))
    first = start + data.draw(st.integers(0, 12))
    after = content[:first] + bytes(length) + content[first + length :]
    with changed(path, after[: len(content)]):
        report = verify_store(shared)
    assert not report.ok


@RELAXED
@given(data=st.data())
def test_a_changed_byte_of_a_queue_unit_is_found(shared: Path, data: st.DataObject) -> None:
    queue = data.draw(st.sampled_from([queue for queue in MANIFEST["queues"] if queue["maxOffset"]]))
    index = data.draw(st.integers(queue["minOffset"], queue["maxOffset"] - 1))
    directory = shared / "consumequeue" / queue["topic"] / str(queue["queueId"])
    at = index * 20 + data.draw(st.integers(0, 19))
    path = directory / f"{at - at % 2000:020d}"
    with changed(path, flipped(path.read_bytes(), at % 2000, data.draw(st.integers(1, 255)))):
        report = verify_store(shared)
    assert [finding for finding in report.findings if finding.severity != "info"]
    if queue["topic"] != "SCHEDULE_TOPIC_XXXX":
        assert not report.ok


@RELAXED
@given(data=st.data())
def test_a_changed_byte_of_the_index_is_found(shared: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted((shared / "index").iterdir())))
    content = path.read_bytes()
    (count,) = struct.unpack_from(">i", content, 36)
    entries_at = 40 + 500 * 4 + 20
    at = data.draw(
        st.one_of(
            st.integers(0, 39),
            st.integers(40, 2039),
            st.integers(entries_at, entries_at + (count - 1) * 20 - 1),
        )
    )
    with changed(path, flipped(content, at, data.draw(st.integers(1, 255)))):
        report = verify_store(shared, StoreSizes(index_slots=500, index_entries=400))
    assert [finding for finding in report.findings if finding.severity != "info"], f"byte {at} of {path.name}"


@settings(RELAXED, max_examples=50)
@given(data=st.data())
def test_no_damage_makes_it_crash(shared: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(path for path in shared.rglob("*") if path.is_file())))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 6))):
        if content:
            at = data.draw(st.integers(0, len(content) - 1))
            noise = data.draw(st.one_of(st.binary(min_size=1, max_size=40), st.just(bytes(200))))
            content[at : at + len(noise)] = noise
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    abort = shared / "abort"
    if data.draw(st.booleans()):
        abort.touch()
    try:
        with changed(path, bytes(content)):
            verify_store(shared)
    finally:
        abort.unlink(missing_ok=True)


def test_damage_names_what_is_lost_and_what_is_kept(store: Path) -> None:
    victim = next(m for m in MESSAGES if m["topic"] == "GoldenBulk" and m["queueOffset"] == 200)
    path, at = log_place(store, victim["commitLogOffset"])
    path.write_bytes(flipped(path.read_bytes(), at + 90, 1))
    report = verify_store(store)
    (damage,) = report.damage
    assert (damage.start, damage.end - damage.start) == (victim["commitLogOffset"], victim["storeSize"])
    in_file = [m for m in MESSAGES if m["commitLogOffset"] // LOG_BYTES == damage.start // LOG_BYTES]
    assert damage.good_after == sum(m["commitLogOffset"] > damage.start for m in in_file)
    assert report.records == len(MESSAGES) - 1
    queue = f"GoldenBulk/{victim['queueId']}"
    assert f"consumequeue/{queue}: no record in the log for queue offsets 200 to 200" in texts(report)
    assert f"unit 200 points at {damage.start}, where the log is damaged" in texts(report)
    assert all(finding.fix for finding in report.of("error"))


def test_a_lost_last_record_is_missed_by_its_queue(store: Path) -> None:
    last = MESSAGES[-1]
    path, at = log_place(store, last["commitLogOffset"])
    content = path.read_bytes()
    path.write_bytes(flipped(content, at + 90, 1))
    report = verify_store(store)
    assert not report.ok
    assert report.log_end == last["commitLogOffset"]
    path.write_bytes(content[:at] + bytes(len(content) - at))
    report = verify_store(store)
    assert f"points at {last['commitLogOffset']}, the log ends at {last['commitLogOffset']}" in texts(report)
    assert "physicMsgTimestamp" in texts(report) or MESSAGES[-2]["storeTimestamp"] == last["storeTimestamp"]


def test_an_unfinished_tail_of_a_running_broker_is_no_error(store: Path) -> None:
    (store / "abort").touch()
    path, end = log_place(store, MANIFEST["commitLogEnd"])
    content = bytearray(path.read_bytes())
    content[end : end + 30] = content[0:30]
    path.write_bytes(bytes(content))
    queue = max(MANIFEST["queues"], key=lambda queue: queue["maxOffset"])
    units = sorted((store / "consumequeue" / queue["topic"] / str(queue["queueId"])).iterdir())[-1]
    at = queue["maxOffset"] * 20 % 2000 or 2000
    data = bytearray(units.read_bytes())
    data[at - 20 : at] = bytes(20)
    units.write_bytes(bytes(data))
    report = verify_store(store)
    assert report.ok
    assert not report.clean_stop
    assert "an unfinished write of" in texts(report)
    assert "not written yet" in texts(report)


def test_a_file_prepared_for_what_comes_next_is_fine(store: Path) -> None:
    (store / "commitlog" / f"{3 * LOG_BYTES:020d}").write_bytes(bytes(LOG_BYTES))
    assert verify_store(store).findings == []


def test_left_over_records_behind_the_end_are_told_from_damage(store: Path) -> None:
    path, end = log_place(store, MANIFEST["commitLogEnd"])
    content = bytearray(path.read_bytes())
    (size,) = struct.unpack_from(">i", content, 0)
    old = bytearray(content[:size])
    struct.pack_into(">q", old, 28, MANIFEST["commitLogEnd"] + 300)
    content[end : end + 10] = b"0123456789"
    content[end + 300 : end + 300 + size] = old
    path.write_bytes(bytes(content))
    report = verify_store(store)
    assert report.ok
    assert "from before an earlier recovery" in texts(report)
    assert report.records == len(MESSAGES)


def test_missing_and_short_files_are_named(store: Path) -> None:
    (store / "commitlog" / f"{LOG_BYTES:020d}").unlink()
    queue = store / "consumequeue" / "GoldenBulk" / "0"
    (queue / f"{4000:020d}").unlink()
    with (queue / f"{6000:020d}").open("r+b") as file:
        file.truncate(1990)
    index = sorted((store / "index").iterdir())
    index[2].unlink()
    with index[4].open("r+b") as file:
        file.truncate(100)
    report = verify_store(store)
    found = texts(report)
    assert f"the files for offsets {LOG_BYTES} to {2 * LOG_BYTES - 1} are missing" in found
    assert "the file(s) between 2000 and 6000 are missing" in found
    assert "has 1990 bytes" in found
    assert "has 100 bytes" in found
    assert len(report.findings) < 200
    assert report.suppressed
    assert max(report._counts.values()) > MAX_FINDINGS_OF_A_KIND


def test_a_deleted_topic_is_a_note_a_lost_queue_an_error(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "GoldenTags")
    assert "records of topic GoldenTags in the log have no queue" in texts(verify_store(store))
    assert not verify_store(store).ok
    topics = json.loads((store / "config" / "topics.json").read_text())
    del topics["topicConfigTable"]["GoldenTags"]
    (store / "config" / "topics.json").write_text(json.dumps(topics))
    report = verify_store(store)
    assert report.ok
    assert "the topic was deleted" in texts(report)


def test_config_files_fall_back_to_their_copy(store: Path) -> None:
    topics = store / "config" / "topics.json"
    topics.write_text('{"topicConfigTable":{')
    report = verify_store(store)
    assert report.ok
    assert "the broker takes the .bak" in texts(report)
    (store / "config" / "topics.json.bak").write_bytes(b"")
    assert "nor is its .bak of use" in texts(verify_store(store))


def test_a_group_ahead_of_its_queue_is_told(store: Path) -> None:
    path = store / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"GoldenBulk@g":{0:451,1:450},"Gone@g":{0:5},"odd":7}}')
    report = verify_store(store)
    assert [finding.text for finding in report.findings] == [
        "GoldenBulk@g queue 0 is at 451, the queue ends at 450"
    ]


def test_checkpoint_and_index_may_be_missing(store: Path) -> None:
    (store / "checkpoint").unlink()
    shutil.rmtree(store / "index")
    report = verify_store(store)
    assert report.ok
    assert "there is no key index" in texts(report)
    assert "reads the whole log" in texts(report)
    (store / "checkpoint").write_bytes(b"short")
    assert not verify_store(store).ok


def test_a_log_whose_old_files_are_gone_is_fine(store: Path) -> None:
    (store / "commitlog" / f"{0:020d}").unlink()
    report = verify_store(store)
    assert [finding for finding in report.findings if finding.severity != "info"] == []
    assert report.log_start == LOG_BYTES
    bulk = next(queue for queue in report.queues if (queue.topic, queue.queue_id) == ("GoldenBulk", 0))
    first = min(
        message["queueOffset"]
        for message in MESSAGES
        if (message["topic"], message["queueId"]) == ("GoldenBulk", 0)
        and message["commitLogOffset"] >= LOG_BYTES
    )
    assert (bulk.min_offset, bulk.max_offset) == (first, 450)


def test_an_empty_directory_is_an_empty_store(tmp_path: Path) -> None:
    report = verify_store(tmp_path)
    assert report.ok
    assert report.records == 0
    with pytest.raises(StoreError, match="is no directory"):
        verify_store(tmp_path / "absent")


def test_nothing_is_changed_by_looking(store: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")}
    verify_store(store)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")} == before
