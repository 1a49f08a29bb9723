"""`orbitmq server --brokers N`, and brokers that start over by themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orbitmq.wire.codes import OrbitCode, ResponseCode
from tests.support.commands import Commands
from tests.support.raw_client import RawClient
from tests.support.server_process import OrbitProcess, ServerProcess, free_port

SMALL = {"mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 100_000}


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"not within 20 s: {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_several_brokers_in_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    ports = ["--namesrv-port", "0", "--port", "0", "--console-port", "0"]
    command = ["server", "--data", str(tmp_path / "data"), "--brokers", "2", *ports, *sets]
    with OrbitProcess([*command, "--set", "brokerName=core"], ready="OrbitMQ ready") as server:
        ready = next(line for line in server.output if line.startswith("OrbitMQ ready")).split()
        namesrv = ready[ready.index("namesrv") + 1]
        addresses = ready[ready.index("broker") + 1].split(";")
        orbitmq = Commands(capsys, namesrv)
        rows = orbitmq.ok("cluster", "list", "--json").json
        assert {(row["broker"], row["addr"]) for row in rows} == {
            ("core", addresses[0]),
            ("core-2", addresses[1]),
        }
        # A topic made by one message is on both: producers use both from then on.
        orbitmq.ok("send", "Everywhere", "hello")

        def brokers_of_topic() -> set[str]:
            ended = orbitmq("topic", "route", "Everywhere", "--json")
            return {share["broker"] for share in ended.json["brokers"]} if ended.code == 0 else set()

        eventually(lambda: brokers_of_topic() == {"core", "core-2"}, "the topic is on both brokers")
        pid = int((tmp_path / "data" / "broker-2" / "lock.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: "was killed by SIGKILL" in server.printed, "the death is told")
        assert f"broker-2 (pid {pid})" in server.printed
        orbitmq.ok("send", "Everywhere", "still there", "--broker", "core")
        server.process.send_signal(signal.SIGINT)
        assert server.wait_stopped(20) == 0


def test_the_other_brokers_stop_with_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, start=False, **SMALL) as server:
        server.args += ["--brokers", "3"]
        server.start()
        pids = [int((server.data / name / "lock.pid").read_text()) for name in ("broker-2", "broker-3")]
        assert all(map(is_running, pids))
        assert server.stop() == 0
        eventually(lambda: not any(map(is_running, pids)), "all are gone")


def stop_request(addr: str, body: bytes) -> tuple[int, str]:
    async def work() -> tuple[int, str]:
        async with RawClient(addr) as client:
            answer = await client.ask(OrbitCode.STOP_BROKER, {}, body)
            return answer.code, answer.remark or ""

    return asyncio.run(work())


def test_a_broker_starts_over_in_its_own_process_and_stops_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServerProcess(tmp_path, **SMALL) as server:
        orbitmq = Commands(capsys, server.namesrv)
        options = ["-n", server.namesrv, "--data", str(tmp_path / "other"), "--port", "0"]
        sets = {"brokerName": "other", "brokerIP1": "127.0.0.1", **SMALL}
        assigned = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        with OrbitProcess(["broker", *options, *assigned], ready="OrbitMQ broker ready") as broker:
            address = broker.output[-1].split()[4]
            orbitmq.ok("topic", "create", "Kept", "--queues", "1", "--broker", "other")
            orbitmq.ok("send", "Kept", "before", "--broker", "other")
            for nonsense in (b"[]", b'{"restart":"soon"}'):
                assert stop_request(address, nonsense)[0] == ResponseCode.SYSTEM_ERROR
            pid = broker.pid
            assert stop_request(address, b'{"restart":true}') == (ResponseCode.SUCCESS, "")
            eventually(lambda: broker.printed.count("OrbitMQ broker ready") == 2, "it is ready a second time")
            assert (broker.pid, broker.running) == (pid, True)
            assert broker.output[-1].split()[4] == address  # a port that the system chose stays
            orbitmq.ok("send", "Kept", "after", "--broker", "other")
            read = orbitmq.ok("tail", "Kept", "--from", "first", "--no-follow", "--json").json_lines
            assert [message["body"] for message in read] == ["before", "after"]
            assert stop_request(address, b"") == (ResponseCode.SUCCESS, "")
            assert broker.wait_stopped(20) == 0
            assert broker.printed.endswith("OrbitMQ stopped\n")


def test_a_broker_that_waits_for_its_controller_can_be_stopped(tmp_path: Path) -> None:
    sets = ["--set", "enableControllerMode=true", "--set", f"controllerAddr=127.0.0.1:{free_port()}"]
    options = ["-n", f"127.0.0.1:{free_port()}", "--data", str(tmp_path), "--port", "0"]
    broker = OrbitProcess(["broker", *options, *sets], ready="never", wait=False)
    eventually(lambda: "no controller answers" in broker.printed, "it says what it waits for")
    assert broker.stop() == 0
    assert broker.printed.endswith("OrbitMQ stopped before it was ready\n")
