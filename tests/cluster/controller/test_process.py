"""`orbitmq controller` as a user gets it: its start, its file, its end, and the tools that ask it."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from orbitmq.cli.main import main
from orbitmq.wire.codes import OrbitCode
from orbitmq.wire.command import request
from orbitmq.wire.controller_bodies import LEAVING, MASTER
from scripts.serving import OrbitProcess, free_port
from tests.support.commands import Commands
from tests.support.controller_process import ControllerProcess, Puppet, ended, until_mastered
from tests.support.raw_client import RawClient


def test_it_starts_serves_and_stops_in_order(tmp_path: Path) -> None:
    with ControllerProcess(tmp_path, lease_ms=1500) as controller:
        line = controller.output[-1]
        assert f"controller {controller.addr}  engine sqlite {tmp_path}" in line
        assert "lease 1500 ms  active" in line
        puppet = Puppet("t1", [controller.addr])
        asyncio.run(puppet.beat())
        assert (puppet.role, puppet.epoch) == (MASTER, 1)
        assert controller.stop() == 0
        assert controller.output[-1] == "OrbitMQ stopped\n"
        assert "Traceback" not in controller.printed


def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    """Each restart of the only replica is an election; whatever was answered must never be answered again."""
    rng = random.Random(7)
    controller = ControllerProcess(tmp_path, lease_ms=600)
    puppet = Puppet("t1", [controller.addr])

    async def elections(count: int) -> None:
        async with asyncio.timeout(30):
            for _ in range(count):
                puppet.role = LEAVING
                await puppet.beat()
                puppet.restart()
                while puppet.role != MASTER:
                    await puppet.beat()

    async def one_more_unheard() -> None:
        """An election is asked for, and the controller is killed at some point of it."""
        puppet.role = LEAVING
        await puppet.beat()
        puppet.restart()
        async with RawClient(controller.addr) as client:
            client.write([request(OrbitCode.CONTROLLER_HEARTBEAT, body=puppet.heartbeat())])
            await client.writer.drain()
            await asyncio.sleep(rng.uniform(0, 0.004))
            controller.kill()

    with ended(controller):
        asyncio.run(until_mastered([puppet]))
        for _ in range(4):
            before = puppet.epoch
            asyncio.run(elections(rng.randrange(1, 4)))
            assert puppet.epoch > before
            asyncio.run(one_more_unheard())
            controller.start()
            asyncio.run(until_mastered([puppet]))
        assert puppet.served == sorted(set(puppet.served)), "every epoch once, and growing"
        assert controller.stop() == 0


def test_two_controllers_on_one_file_are_one_too_many(tmp_path: Path) -> None:
    with ControllerProcess(tmp_path) as controller:
        second = subprocess.run(
            [sys.executable, "-m", "orbitmq", "controller", "--port", "0", "--data", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert second.returncode == 1
        assert "another controller runs on it" in second.stderr and "--etcd" in second.stderr
        assert controller.state() is not None


def test_a_name_server_can_have_it_in_its_process(tmp_path: Path) -> None:
    port, own = free_port(), free_port()
    args = [
        "namesrv",
        "--port",
        str(port),
        "--data",
        str(tmp_path),
        "--controller",
        "--controller-port",
        str(own),
    ]
    with OrbitProcess(args, ready="OrbitMQ name server ready") as server:
        assert f"namesrv 127.0.0.1:{port}  controller 127.0.0.1:{own}" in server.output[-1]
        puppet = Puppet("t1", [f"127.0.0.1:{own}"])
        puppet_answer = asyncio.run(puppet.beat())
        assert puppet_answer is not None
        assert (tmp_path / "controller" / "controller.db").exists()
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--lease-ms", "50"], "controllerLeaseMs=50: expected a whole number, 200 or more"),
        (["--port", "70000"], "'70000' is not a port number"),
        (["--what"], "unrecognized arguments: --what"),
    ],
)
def test_wrong_options_are_refused_by_name(
    args: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["controller", *args]) == 2
    assert why in capsys.readouterr().err


def test_one_process_for_everything_has_nobody_to_fail_over_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["server", "--data", str(tmp_path), "--set", "enableControllerInNamesrv=true"]) == 2
    assert "use it with `orbitmq namesrv`" in capsys.readouterr().err


def test_tools_show_groups_and_hand_them_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orbitmq = Commands(capsys)

    async def hand_over(*args: str) -> tuple[int, str]:
        """The command runs beside two brokers that go on beating."""
        command = asyncio.create_task(asyncio.to_thread(orbitmq, "controller", "hand-over", "b", *args))
        while not command.done():
            for puppet in puppets:
                await puppet.beat()
            await asyncio.sleep(0.02)
        ended = await command
        return ended.code, ended.out + ended.err

    async def prepare() -> None:
        master = await until_mastered(puppets)
        await master.alter(1, 2)

    with ControllerProcess(tmp_path) as controller:
        empty = orbitmq.ok("controller", "show", controller.addr)
        assert "no broker group is known" in empty.out
        puppets = [Puppet(token, [controller.addr]) for token in ("t1", "t2")]
        asyncio.run(prepare())
        table = orbitmq.ok("controller", "show", f"127.0.0.1:1;{controller.addr}").out
        assert "MASTER" in table and "t2:1" in table and controller.addr in table
        shown = orbitmq.ok("controller", "show", controller.addr, "--json").json
        (group,) = shown["groups"]
        assert (group["broker"], group["master"], group["inSync"]) == ("b", 1, [1, 2])
        assert [replica["address"] for replica in group["replicas"]] == ["t1:1", "t2:1"]
        code, said = asyncio.run(hand_over("--to", "2", controller.addr))
        assert code == 0, said
        assert "b: replica 2 is master of epoch 2" in said
        code, said = asyncio.run(hand_over("--to", "2", controller.addr, "--json"))
        assert code == 0 and json.loads(said)["master"] == 2, "it is already"
        code, said = asyncio.run(hand_over(controller.addr))
        assert code == 1 and "nobody else is alive and in sync" in said
        assert orbitmq("controller", "hand-over", "nobody", controller.addr).code == 3
    assert orbitmq("controller", "show", controller.addr).code == 4
