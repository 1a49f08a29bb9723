"""Child processes that fail, die, hang, or outlive nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orbitmq import child_processes
from orbitmq.child_processes import ChildFailed, ChildProcesses, Spec
from tests.support.server_process import SOURCE

READY = "OrbitMQ name server ready"


@pytest.fixture(autouse=True)
def _source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))


def namesrv(name: str, directory: Path) -> Spec:
    return Spec(name, ("namesrv", "--port", "0", "--data", str(directory / name)), READY)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_that_fails_is_named_with_its_last_words_and_the_others_are_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        children = ChildProcesses(tmp_path, lambda text: None)
        (good,) = await children.start([namesrv("good", tmp_path)])
        pid = good.pid
        with pytest.raises(ChildFailed) as caught:
            await children.start([Spec("bad", ("namesrv", "--port", "no"), READY)])
        assert "bad ended with exit code 2 before it was ready" in caught.value.what
        assert "'no' is not a port number" in caught.value.last_words
        assert children.children == []
        assert not is_running(pid)

    asyncio.run(main())


def test_a_death_is_told_and_followed_by_a_new_start_if_wished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_processes, "RESTART_FIRST_S", 0.1)

    async def main() -> None:
        told: list[str] = []
        children = ChildProcesses(tmp_path, told.append, restart=True)
        one, two = await children.start([namesrv("one", tmp_path), namesrv("two", tmp_path)])
        children.watch()
        first, stopped = one.pid, two.pid
        os.kill(first, signal.SIGKILL)
        os.kill(stopped, signal.SIGTERM)  # somebody wanted that one to stop
        await until(lambda: one.pid != first and one.look())
        await until(lambda: len(told) == 3)
        (death,) = [text for text in told if "SIGKILL" in text]
        assert death.startswith(f"one (pid {first}) was killed by SIGKILL")
        assert READY in death  # the last lines of its log
        assert f"one is started again, pid {one.pid}" in told
        assert f"two (pid {stopped}) has stopped; the others go on" in told
        assert not two.running
        await children.stop()
        assert not is_running(one.pid)

    asyncio.run(main())


def test_one_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "STOP_LIMIT_S", 0.3)

    async def main() -> None:
        told: list[str] = []
        children = ChildProcesses(tmp_path, told.append)
        (frozen,) = await children.start([namesrv("frozen", tmp_path)])
        pid = frozen.pid
        os.kill(pid, signal.SIGSTOP)
        await children.stop()
        assert told == [f"frozen (pid {pid}) does not stop and is killed"]
        assert not is_running(pid)

    asyncio.run(main())


def test_children_of_a_killed_parent_stop(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys; from pathlib import Path; from orbitmq.child_processes import *\n"
        "async def main():\n"
        "    children = ChildProcesses(Path(sys.argv[1]), print)\n"
        "    args = ('namesrv', '--port', '0', '--data', sys.argv[1])\n"
        f"    (child,) = await children.start([Spec('n', args, {READY!r})])\n"
        "    print(child.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, "the child survives its parent"
        time.sleep(0.02)
    assert (tmp_path / "n.log").read_text().endswith("OrbitMQ stopped\n")
