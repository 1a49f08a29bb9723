from __future__ import annotations

from pathlib import Path

from orbitmq.broker.timing.checkpoint import CheckpointFile, Progress
from orbitmq.store.disk import Disk


def progress(file: CheckpointFile, log_end: int) -> Progress:
    return Progress(file.next_number(), log_end, (log_end, 0), log_end, levels={"1": (log_end, 2)})


def reopened(path: Path, log_end: int) -> Progress:
    file = CheckpointFile(Disk(), str(path))
    found = file.load(log_end)
    file.close()
    return found


def test_the_newest_state_that_the_log_holds_counts(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(Disk(), str(path))
    assert file.load(1 << 60) == Progress()
    first, second, third = (progress(file, end) for end in (10, 20, 30))
    file.write(first, durable=False)
    file.write(second, durable=False)
    file.write(third, durable=False)
    # The older ones reach the device later, and are then written again.
    file.write(first, durable=True)
    file.write(second, durable=True)
    assert reopened(path, 30) == third
    assert reopened(path, 29) == second
    assert reopened(path, 19) == first
    assert reopened(path, 9) == Progress()


def test_a_torn_write_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(Disk(), str(path))
    first, second = progress(file, 10), progress(file, 20)
    file.write(first, durable=True)
    file.write(second, durable=False)
    file.sync()
    data = bytearray(path.read_bytes())
    for cut in range(len(data)):
        if data[cut] == 0x7B:  # the first brace of the newest state
            data[cut + 1] ^= 1
            break
    path.write_bytes(bytes(data))
    assert reopened(path, 99) == first


def test_numbers_go_on_after_a_start(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(Disk(), str(path))
    file.write(progress(file, 10), durable=True)
    file.close()
    file = CheckpointFile(Disk(), str(path))
    file.load(99)
    newer = progress(file, 20)
    file.write(newer, durable=False)
    assert reopened(path, 99) == newer


def test_garbage_is_no_state(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"\xff" * 50_000)
    assert reopened(path, 99) == Progress()
