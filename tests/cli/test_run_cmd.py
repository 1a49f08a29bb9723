"""`orbitmq run module:app`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orbitmq.cli.main import main
from orbitmq.cli.run_cmd import changes, load_app, snapshot
from orbitmq.testing import Server
from tests.support.server_process import SOURCE

PROGRAM = """
import orbitmq

app = orbitmq.App("127.0.0.1:1")

@app.on("orders", group="billing", start="first")
async def bill(text: str) -> None:
    print("GREETING", text, flush=True)

def make():
    return app

number = 3
"""


@contextmanager
def started(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    without = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        [sys.executable, "-m", "orbitmq", "run", *words],
        cwd=folder,
        env={**without, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def read_until(process: subprocess.Popen[str], words: str) -> list[str]:
    lines: list[str] = []
    assert process.stdout is not None
    # Who waits for a line of a silent process would wait for ever, and for one of its child's as well.
    too_late = threading.Timer(20, os.killpg, (process.pid, signal.SIGKILL))
    too_late.start()
    try:
        while line := process.stdout.readline():
            lines.append(line)
            if words in line:
                return lines
    finally:
        too_late.cancel()
    raise AssertionError(f"{words!r} was not printed: {lines}")


def test_it_runs_until_it_is_told_to_stop(orbitmq_server: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM.replace("GREETING", "got"))
    with orbitmq_server.connect() as mq:
        mq.producer("test").send("orders", b"one")
    with started(tmp_path, "shop:app", "-n", orbitmq_server.namesrv) as process:
        read_until(process, "OrbitMQ app ready  shop:app  groups billing (orders)")
        read_until(process, "got one")
        process.send_signal(signal.SIGINT)
        read_until(process, "OrbitMQ app stopped")
        assert process.wait(10) == 0
    offsets = orbitmq_server.inspect(
        lambda broker: [broker.offsets.query("billing", "orders", queue) for queue in range(4)]
    )
    assert sum(offsets) == 1


def test_it_starts_again_after_a_change(orbitmq_server: Server, tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    second_ns = 1_700_000_000 * 10**9

    def write(greeting: str, since_ns: int) -> None:
        """Of the same size, and within one second: bytecode of the one would be taken for that of the other."""
        draft = tmp_path / "draft"
        draft.write_text(PROGRAM.replace("GREETING", greeting))
        os.utime(draft, ns=(second_ns + since_ns, second_ns + since_ns))
        draft.replace(program)

    write("old", 1)
    with (
        orbitmq_server.connect() as mq,
        started(tmp_path, "shop:app", "-n", orbitmq_server.namesrv, "--reload") as process,
    ):
        read_until(process, "app ready")
        mq.producer("test").send("orders", b"one")
        read_until(process, "old one")
        write("new", 2)
        read_until(process, "changed: shop.py; starting again")
        read_until(process, "app ready")
        mq.producer("test").send("orders", b"two")
        read_until(process, "new two")
        process.send_signal(signal.SIGTERM)
        read_until(process, "OrbitMQ app stopped")
        assert process.wait(10) == 0


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "loadable_shop.py").write_text(PROGRAM)
    (tmp_path / "loadable_bad.py").write_text("import missing_library\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield
    sys.path[:] = before
    sys.modules.pop("loadable_shop", None)


def test_an_app_is_found_by_name_or_made_by_a_function(program: None) -> None:
    assert load_app("loadable_shop:app").handlers == {"billing": ["orders"]}
    assert load_app("loadable_shop:make") is load_app("loadable_shop:app")


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("shop", 2, "does not say where the app is"),
        ("nowhere_at_all:app", 3, "there is no module 'nowhere_at_all'"),
        ("loadable_shop:ap", 3, "has no 'ap'; apps there: app"),
        ("loadable_shop:number", 2, "is int, not an App"),
    ],
)
def test_mistakes_are_named(
    target: str, code: int, words: str, program: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", target]) == code
    printed = " ".join(capsys.readouterr().err.split())
    for part in words.split("; "):
        assert part in printed


def test_an_import_error_inside_the_program_is_shown_as_it_is(program: None) -> None:
    with pytest.raises(ModuleNotFoundError, match="missing_library"):
        load_app("loadable_bad:app")


def test_a_server_that_is_not_there_is_told_by_exit_code(
    program: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "loadable_shop:app"]) == 4
    assert "no name server answers" in capsys.readouterr().err


def test_changes_are_seen_and_folders_of_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "venv").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "venv" / "b.py").write_text("1")
    (tmp_path / ".hidden" / "c.py").write_text("1")
    (tmp_path / "notes.txt").write_text("1")
    before = snapshot([tmp_path])
    assert [path.name for path in before] == ["a.py"]
    os.utime(tmp_path / "a.py", ns=(1, 1))
    (tmp_path / "d.py").write_text("1")
    assert {path.name for path in changes(before, snapshot([tmp_path]))} == {"a.py", "d.py"}
