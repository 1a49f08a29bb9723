"""Opening a store again: what must not be lost, trusted or brought back."""

from __future__ import annotations

import shutil
import struct
from contextlib import closing
from pathlib import Path

import pytest

from orbitmq.store import mark, recovery
from orbitmq.store.checkpoint import Checkpoint
from orbitmq.store.disk import Disk
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.mark import RecoveryMark
from orbitmq.store.message_store import MessageStore
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.message import encode_record
from tests.store.test_deleting import SlowRunner
from tests.support.stores import T0, Clock, fill, make_clean, open_small, read_all, small_settings, told


def message(body: bytes, topic: str = "Alpha", sys_flag: int = 0) -> InnerMessage:
    return InnerMessage(topic, 0, body, b"UNIQ_KEY\x01" + body, sys_flag=sys_flag).index_properties()


def bodies(store: MessageStore, topic: str = "Alpha") -> list[bytes]:
    return [m.body for m in read_all(store)[topic, 0]]


@pytest.mark.parametrize("kind", [SysFlag.TX_PREPARED, SysFlag.TX_ROLLBACK, SysFlag.TX_COMMIT])
def test_no_type_of_message_leaves_a_hole_in_its_queue(tmp_path: Path, kind: int) -> None:
    """Whoever rebuilds a queue skips prepared and rolled back records, so none may have been given a place in it."""
    with closing(open_small(tmp_path / "store")) as store:
        for body, sys_flag in ((b"1", 0), (b"2", kind), (b"3", 0)):
            store.put(message(body, sys_flag=sys_flag))
        shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    shutil.rmtree(tmp_path / "crashed" / "consumequeue", ignore_errors=True)
    with told() as lines, closing(open_small(tmp_path / "crashed")) as store:
        assert bodies(store) == [b"1", b"2", b"3"]
    assert not [line for line in lines if "damaged" in line]


@pytest.mark.parametrize("what", ["directory", "last file", "zeroed end"])
def test_a_queue_that_lost_its_end_is_made_anew_from_the_log(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are older than what an ordinary start reads again: only the note about its length tells."""
    monkeypatch.setattr(recovery, "RECHECK_BYTES", 10_000)
    make_clean(tmp_path / "store")
    home = tmp_path / "store" / "consumequeue" / "Idle" / "0"
    files = sorted(home.iterdir())
    if what == "directory":
        shutil.rmtree(home)
    elif what == "last file":
        files[-1].write_bytes(b"")
    else:
        data = files[-1].read_bytes()
        files[-1].write_bytes(data[:20] + bytes(len(data) - 20))
    with told() as lines, closing(open_small(tmp_path / "store", clock=Clock(T0 + 10**9))) as store:
        assert bodies(store, "Idle") == [b"idle %d" % n for n in range(25)]
        assert store.put(message(b"new", "Idle")).queue_offset == 25
    assert any("whole log was read" in line for line in lines)


def test_an_ordinary_start_reads_only_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "RECHECK_BYTES", 10_000)
    make_clean(tmp_path / "store")
    store = MessageStore(small_settings(tmp_path / "store"), Disk(), Clock(T0 + 10**9))
    with told() as lines, closing(store):
        report = store.open()
        assert 0 < report.records < 100
        assert report.log_end - report.scanned_from < 10_000 + 2 * 32 * 1024
    assert lines == []


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_damaged_checkpoint_does_not_set_the_clock(tmp_path: Path, which: int) -> None:
    make_clean(tmp_path / "store")
    path = tmp_path / "store" / "checkpoint"
    times = list(struct.unpack(">qqq", path.read_bytes()[:24]))
    times[which] = 1 << 62
    path.write_bytes(struct.pack(">qqq", *times) + path.read_bytes()[24:])
    with closing(open_small(tmp_path / "store", clock=Clock(T0 + 10**9))) as store:
        assert store.put(message(b"new")).store_ms < T0 + 2 * 10**9


def test_a_record_from_the_future_does_not_set_the_clock(tmp_path: Path) -> None:
    with closing(open_small(tmp_path / "store")) as store:
        place = store.put(message(b"1")).position
        store.put(message(b"2"))
    path = next((tmp_path / "store" / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[place + 56] ^= 0x20  # of its store time
    path.write_bytes(data)
    with closing(open_small(tmp_path / "store", clock=Clock(T0 + 10**9))) as store:
        assert store.put(message(b"3")).store_ms < T0 + 2 * 10**9
        assert bodies(store)[1:] == [b"2", b"3"]


def test_the_note_is_made_although_somebody_always_waits_for_a_flush(tmp_path: Path) -> None:
    """Under load there is no quiet moment; without the note, a recovery would read everything since the start."""
    runner = SlowRunner()
    store = open_small(tmp_path / "store", sync_flush=True, runner=runner)
    for number in range(400):
        store.put(message(b"%d" % number))
        store.tick()
        if number % 3 == 0:
            store.put(message(b"also %d" % number))
            job, done = runner.jobs.pop(0)
            job()
            done(None)
    noted = RecoveryMark.load(Disk(), str(tmp_path / "store" / "recovery.json"))
    assert noted.safe_offset > 0
    assert noted.checkpoint_ms == Checkpoint.load(Disk(), tmp_path / "store" / "checkpoint").physic_ms
    # What it says about the queues is true of the log up to there, no more and no less.
    before = [r for r in read_all(store)["Alpha", 0] if r.physical_offset < noted.safe_offset]
    assert noted.queue_ends == {"Alpha": {0: len(before)}}
    runner.work()
    store.close()


def test_restarting_changes_nothing(tmp_path: Path) -> None:
    make_clean(tmp_path / "store")

    def files() -> dict[str, bytes]:
        names = ("commitlog", "consumequeue", "index")
        found = [path for name in names for path in (tmp_path / "store" / name).rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in found}

    before = files()
    for _ in range(3):
        open_small(tmp_path / "store", clock=Clock(T0 + 10**9)).close()
        assert files() == before


def test_a_crash_without_a_note_falls_back_to_the_checkpoint(tmp_path: Path) -> None:
    make_clean(tmp_path / "running")
    with closing(open_small(tmp_path / "running", clock=Clock(T0 + 10**9))) as store:
        fill(store, 50, seed=9)
        wanted = read_all(store)
        shutil.copytree(tmp_path / "running", tmp_path / "crashed")
    (tmp_path / "crashed" / "recovery.json").unlink()
    with closing(open_small(tmp_path / "crashed", clock=Clock(T0 + 2 * 10**9))) as store:
        assert read_all(store) == wanted


def test_a_record_hidden_in_a_body_is_never_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer can guess where in the log its message will lie, and put there what looks like another message."""
    monkeypatch.setattr(mark, "BORDER_BYTES", 1000)
    with closing(open_small(tmp_path / "store")) as store:
        for number in range(20):
            store.put(message(b"before %d" % number))
            store.tick()
        body_at = store.log.position + 88
        forged = encode_record(
            topic="Alpha", body=b"forged", queue_offset=20, physical_offset=body_at + 500, store_ms=T0 + 1000
        )
        store.put(message(bytes(500) + forged + bytes(2000), "Beta"))
        for number in range(20):
            store.put(message(b"after %d" % number, "Beta"))
            store.tick()
    # Wherever the check of the end begins, it begins with a record.
    for back in range(100, 6000, 250):
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        monkeypatch.setattr(recovery, "RECHECK_BYTES", back)
        with told() as lines, closing(open_small(tmp_path / "copy", clock=Clock(T0 + 10**9))) as store:
            assert bodies(store) == [b"before %d" % number for number in range(20)]
        assert lines == []
        shutil.rmtree(tmp_path / "copy")
