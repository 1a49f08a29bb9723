"""The servers as processes: ready lines, signals, refusals, and what survives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.server_process import (
    SOURCE,
    OrbitProcess,
    ServerProcess,
    free_broker_port,
    free_port,
)

SMALL = {"mappedFileSizeCommitLog": 16 * 1024 * 1024}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, how: signal.Signals) -> None:
    with ServerProcess(tmp_path, **SMALL) as server:
        (ready,) = [line for line in server.output if line.startswith("OrbitMQ ready")]
        assert str(server.namesrv_port) in ready
        assert str(server.port) in ready
        server.process.send_signal(how)
        assert server.wait_stopped(10) == 0
    assert "Traceback" not in server.printed


def test_messages_survive_a_restart_and_a_kill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ServerProcess(tmp_path, **SMALL) as server:
        orbitmq = Commands(capsys, server.namesrv)
        orbitmq.ok("topic", "create", "Kept", "--queues", "1")
        orbitmq.ok("send", "Kept", "one")
        server.restart()
        orbitmq.ok("send", "Kept", "two")
        server.kill()
        server.restart()
        orbitmq.ok("send", "Kept", "three")
        read = orbitmq.ok("tail", "Kept", "--from", "first", "--no-follow", "--json").json_lines
        assert [message["body"] for message in read] == ["one", "two", "three"]
        assert [message["queue_offset"] for message in read] == [0, 1, 2]


def test_a_second_server_on_the_same_directory_refuses(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, **SMALL) as server:
        second = ServerProcess(tmp_path, wait=False, **SMALL)
        assert second.wait_stopped() == 1
        assert "in use" in second.printed
        assert str(server.pid) in second.printed
        assert second.printed.count("\n") == 1
        assert server.running


def test_a_taken_port_is_told_in_one_line(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "first", **SMALL) as server:
        port = str(server.namesrv_port)
        second = OrbitProcess(
            ["namesrv", "--port", port, "--data", str(tmp_path / "ns")], ready="", wait=False
        )
        assert second.wait_stopped() == 1
        assert port in second.printed
        assert second.printed.count("\n") == 1


def test_unknown_settings_are_named_and_do_not_stop_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, noSuchSetting=1, **SMALL) as server:
        assert "noSuchSetting" in server.printed


def test_name_server_and_broker_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namesrv_port, port = free_port(), free_broker_port()
    addr = f"127.0.0.1:{namesrv_port}"
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=apart\nbrokerIP1=127.0.0.1\nmappedFileSizeCommitLog=16777216\n")
    namesrv_args = ["namesrv", "--port", str(namesrv_port), "--data", str(tmp_path / "ns")]
    broker_args = ["broker", "-n", addr, "--data", str(tmp_path / "b"), "--port", str(port), "-c", str(conf)]
    orbitmq = Commands(capsys, addr)
    with OrbitProcess(namesrv_args, ready="OrbitMQ name server ready") as namesrv:
        with OrbitProcess(broker_args, ready="OrbitMQ broker ready") as broker:
            (row,) = orbitmq.ok("cluster", "list", "--json").json
            assert (row["broker"], row["addr"]) == ("apart", f"127.0.0.1:{port}")
            orbitmq.ok("send", "Apart", "hello")
            assert broker.stop() == 0
        assert orbitmq.ok("cluster", "list", "--json").json == []
        assert namesrv.stop() == 0


def test_a_reader_that_has_seen_enough_ends_a_tail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServerProcess(tmp_path, **SMALL) as server:
        Commands(capsys, server.namesrv).ok("send", "Long", "x", "--count", "500")
        command = [sys.executable, "-m", "orbitmq", "tail", "Long", "--from", "first", "--no-follow"]
        env = {**os.environ, "PYTHONPATH": str(SOURCE), "NAMESRV_ADDR": server.namesrv}
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
            assert tail.stdout is not None
            assert tail.stderr is not None
            assert tail.stdout.readline()
            tail.stdout.close()
            assert tail.wait(20) == 0
            assert tail.stderr.read() == b""
