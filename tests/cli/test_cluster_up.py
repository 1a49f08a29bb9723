"""`orbitmq cluster up`: real processes in the foreground, from the ready line to the last one gone."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orbitmq.cli.main import main
from tests.support.commands import Commands
from tests.support.server_process import SOURCE
from tests.support.steady_load import SteadyLoad

ROW = re.compile(r"^(\S+) +(\S+) +(127\.0\.0\.1:\d+) +pid (\d+)$")
SMALL = ["--set", "mappedFileSizeCommitLog=4194304", "--set", "mappedFileSizeConsumeQueue=100000"]


class Up:
    """One `orbitmq cluster up`, with what it printed so far."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orbitmq", "cluster", "up", str(directory), *options, *SMALL],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def ready(self, processes: int) -> list[tuple[str, str, str, int]]:
        """Role, name, address and pid of each process."""
        eventually(lambda: len(self.rows()) == processes or not self.running, "all are ready", 60)
        assert self.running, self.lines
        assert self.lines[0] == "OrbitMQ ready"
        assert self.lines[1].startswith("namesrv ")
        return self.rows()

    def rows(self) -> list[tuple[str, str, str, int]]:
        found = [match.groups() for line in self.lines if (match := ROW.match(line))]
        return [(role, name, address, int(pid)) for role, name, address, pid in found]

    @property
    def namesrv(self) -> str:
        return self.lines[1].removeprefix("namesrv ")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(10)
        return code

    def close(self) -> None:
        if self.running:
            self.end(signal.SIGKILL)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def up() -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(directory: Path, *options: str) -> Up:
        started.append(Up(directory, *options))
        return started[-1]

    yield start
    for each in started:
        each.close()


def eventually(condition: Callable[[], bool], what: str, limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_cluster_lives_and_ends_as_one(
    tmp_path: Path, up: Callable[..., Up], capsys: pytest.CaptureFixture[str]
) -> None:
    shape = [
        "--masters",
        "1",
        "--slaves",
        "1",
        "--controllers",
        "0",
        "--namesrvs",
        "2",
        "--replication",
        "sync",
    ]
    first = up(tmp_path, *shape)
    rows = first.ready(4)
    assert [(role, name) for role, name, _, _ in rows] == [
        ("name-server", "namesrv-1"),
        ("name-server", "namesrv-2"),
        ("master", "broker-a-1"),
        ("slave", "broker-a-2"),
    ]
    assert first.namesrv == ";".join(address for role, _, address, _ in rows if role == "name-server")
    saved = json.loads((tmp_path / "cluster.json").read_text())
    assert [row["pid"] for row in saved["processes"]] == [pid for *_, pid in rows]
    orbitmq = Commands(capsys, first.namesrv)
    orbitmq.ok("send", "Kept", "hello")
    assert main(["cluster", "up", str(tmp_path)]) == 1
    assert "is running already" in capsys.readouterr().err

    # One that dies is named with its last words, and the others go on.
    slave = rows[3][3]
    os.kill(slave, signal.SIGKILL)
    eventually(lambda: any("killed by SIGKILL" in line for line in first.lines), "the death is told")
    told = next(line for line in first.lines if "SIGKILL" in line)
    assert f"broker-a-2 (pid {slave})" in told
    assert str(tmp_path / "broker-a-2.log") in told
    eventually(lambda: "OrbitMQ broker ready" in first.lines[-1], "its last lines are shown")
    orbitmq.ok("send", "Kept", "again")
    assert first.end(signal.SIGINT) == 0
    assert first.lines[-1] == "OrbitMQ stopped"
    assert not any(is_running(pid) for *_, pid in rows)

    # The same command brings it back, at the same addresses and with its messages.
    second = up(tmp_path, *shape, "--restart")
    again = second.ready(4)
    assert [row[:3] for row in again] == [row[:3] for row in rows]
    read = orbitmq.ok("tail", "Kept", "--from", "first", "--no-follow", "--json").json_lines
    assert sorted(message["body"] for message in read) == ["again", "hello"]
    os.kill(again[0][3], signal.SIGKILL)
    eventually(lambda: any("namesrv-1 is started again" in line for line in second.lines), "a new start")
    assert json.loads((tmp_path / "cluster.json").read_text())["processes"][0]["pid"] != again[0][3]

    # Nobody survives a parent that was killed.
    assert second.end(signal.SIGKILL) == -signal.SIGKILL
    eventually(lambda: not any(is_running(pid) for *_, pid in again), "the children stop by themselves")


def test_with_a_controller_the_slave_takes_over(
    tmp_path: Path, up: Callable[..., Up], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = up(tmp_path, "--masters", "1", "--namesrvs", "1", "--lease-ms", "1500")
    rows = cluster.ready(4)
    roles = {role: (address, pid) for role, _, address, pid in rows}
    assert set(roles) == {"name-server", "controller", "master", "slave"}
    orbitmq = Commands(capsys, cluster.namesrv)
    orbitmq.ok("topic", "create", "Safe", "--queues", "1")
    orbitmq.ok("send", "Safe", "before")
    with SteadyLoad(cluster.namesrv, "Safe") as load:
        load.until(lambda: len(load.acked) > 10)
        restarted = orbitmq.ok("cluster", "restart", "--yes", "--json").json
        count = len(load.acked)
        load.until(lambda: len(load.acked) > count)
        load.finish()
    assert {row["addr"] for row in restarted} == {roles["master"][0], roles["slave"][0]}
    # The one that was master handed over before; on a machine that stands still for a lease, both may have been.
    assert [row for row in restarted if row["was_master"]]
    assert all(row["handed_over"] for row in restarted if row["was_master"])
    assert all(is_running(pid) for *_, pid in rows)  # each process is the one it was

    def master_pid() -> int:
        known = orbitmq.ok("cluster", "list", "--json").json
        addrs = [row["addr"] for row in known if row["broker_id"] == 0]
        return next((pid for _, _, addr, pid in rows if addr in addrs), 0)

    eventually(lambda: orbitmq("send", "Safe", "between").code == 0, "a master takes messages")
    eventually(lambda: master_pid() > 0, "there is a master")
    os.kill(master_pid(), signal.SIGKILL)
    eventually(lambda: orbitmq("send", "Safe", "after").code == 0, "the other takes over")
    read = orbitmq.ok("tail", "Safe", "--from", "first", "--no-follow", "--json").json_lines
    assert {"before", "between", "after"} <= {message["body"] for message in read}
    assert cluster.end(signal.SIGTERM) == 0


def test_what_cannot_start_is_told(
    tmp_path: Path, up: Callable[..., Up], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "up", "--controllers", "3", str(tmp_path)]) == 2
    assert "pass --etcd HOST:PORT" in capsys.readouterr().err
    assert main(["cluster", "up", "--set", "nonsense", str(tmp_path)]) == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (tmp_path / "cluster.json").write_text(json.dumps({"ports": {"namesrv-1": taken.getsockname()[1]}}))
        failed = up(tmp_path, "--controllers", "0", "--namesrvs", "1")
        assert failed.process.wait(30) == 1
        failed._reader.join(10)
        assert any("another server running" in line for line in failed.lines)
        assert "namesrv-1 ended with exit code 1 before it was ready" in failed.lines[-1]
