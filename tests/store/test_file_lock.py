from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orbitmq.store import file_lock
from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreLocked

# What Java's FileChannel.tryLock(0, 1) does: a POSIX record lock on the first byte.
JAVA_LIKE = """
import fcntl, sys
file = open(sys.argv[1], "r+b" if len(sys.argv) > 2 else "w+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_the_lock_excludes_and_comes_back(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "lock"
    lock = disk.lock_file(path)
    assert lock.held
    assert path.read_bytes() == b"lock"
    with pytest.raises(StoreLocked) as refused:
        disk.lock_file(path)
    assert str(tmp_path) in str(refused.value)
    assert f"process {os.getpid()}" in str(refused.value)
    assert refused.value.pid == os.getpid()
    lock.release()
    lock.release()
    assert not lock.held
    assert os.listdir(tmp_path) == ["lock"]
    disk.lock_file(path).release()


def test_a_pid_file_gone_meanwhile_does_not_matter(tmp_path: Path) -> None:
    lock = Disk().lock_file(tmp_path / "lock")
    (tmp_path / "lock.pid").unlink()
    with pytest.raises(StoreLocked, match="another process"):
        Disk().lock_file(tmp_path / "lock")
    lock.release()
    assert not lock.held


def test_a_java_broker_holding_the_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    arguments = [sys.executable, "-c", JAVA_LIKE, str(path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(StoreLocked) as refused:
            Disk().lock_file(path)
        assert refused.value.pid == holder.pid
        holder.communicate("", timeout=20)
    Disk().lock_file(path).release()


def test_a_java_broker_is_refused_while_we_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = Disk().lock_file(path)
    # Closing another descriptor of the file would drop a POSIX lock.
    path.read_bytes()
    arguments = [sys.executable, "-c", JAVA_LIKE, str(path), "existing"]
    done = subprocess.run(arguments, input="", capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "refused\n"
    lock.release()
    done = subprocess.run(arguments, input="", capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "locked\n"


def test_looking_tells_whether_a_lock_is_held_and_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not file_lock.is_held(str(path))
    assert not path.exists()
    held = file_lock.acquire(str(path))
    assert file_lock.is_held(str(path))
    held.release()
    assert not file_lock.is_held(str(path))
