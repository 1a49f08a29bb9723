"""The tutorial, done by the book: its files are written, its commands run, its output compared.

In `docs/tutorial.md` a block of Python that begins with `# name.py` is that file. A `console` block holds commands
after `$` and what they print; `…` stands for anything. A block that ends with `^C` shows a program that serves
until it is interrupted. Every block runs where the one before left things, as for somebody who reads along.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
LIMIT_S = 60
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\w+\.py)\n")
# The reader starts the server in a terminal of its own; here it runs already.
STARTS_THE_SERVER = "make up"


@dataclass
class Command:
    line: str
    expected: list[str]
    serves: bool


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(TUTORIAL.read_text("utf-8"))


def files_of_the_tutorial() -> dict[str, str]:
    return {
        name[1]: block for kind, block in blocks() if kind == "python" and (name := FILE_NAME.match(block))
    }


def commands(block: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, rest = part.partition("\n")
        shown = rest.splitlines()
        serves = bool(shown) and shown[-1] == "^C"
        yield Command(line, shown[:-1] if serves else shown, serves)


def matches(shown: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in shown.split("…"))
    return re.fullmatch(pattern, printed) is not None


def environment(namesrv: str) -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join((programs, os.environ["PATH"]))
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "NAMESRV_ADDR": namesrv} | {
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }


def run_to_the_end(command: Command, folder: Path, env: dict[str, str]) -> None:
    done = subprocess.run(
        shlex.split(command.line), cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    report = f"$ {command.line} ended with {done.returncode} and printed\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, report
    assert len(printed) == len(command.expected), f"{report}\nshown were\n" + "\n".join(command.expected)
    for shown, line in zip(command.expected, printed, strict=True):
        assert matches(shown, line), f"{report}\nshown was {shown!r}, not {line!r}"


def run_until_interrupted(command: Command, folder: Path, env: dict[str, str]) -> None:
    """The lines may come in any order, among others: several handlers print what they print."""
    process = subprocess.Popen(
        shlex.split(command.line),
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    open_lines, printed = list(command.expected), []
    give_up = signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.alarm(LIMIT_S)
    try:
        while open_lines and (line := process.stdout.readline()):
            printed.append(line)
            found = next((shown for shown in open_lines if matches(shown, line.rstrip())), None)
            if found is not None:
                open_lines.remove(found)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=LIMIT_S)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, give_up)
        process.kill()
        process.wait(LIMIT_S)
    report = f"$ {command.line} ended with {process.returncode} and printed\n{''.join(printed)}{rest}"
    assert not open_lines, f"{report}\nmissing were\n" + "\n".join(open_lines)
    assert process.returncode in (0, 130), report


def test_every_command_of_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    with ServerProcess(tmp_path) as server:
        env = environment(server.namesrv)
        for kind, block in blocks():
            if kind == "python" and (name := FILE_NAME.match(block)):
                (folder / name[1]).write_text(block, "utf-8")
            for command in commands(block) if kind == "console" else ():
                if command.line == STARTS_THE_SERVER:
                    continue
                (run_until_interrupted if command.serves else run_to_the_end)(command, folder, env)


def test_every_file_of_the_tutorial_is_run_and_every_run_shows_something() -> None:
    files = files_of_the_tutorial()
    run = [one for kind, block in blocks() if kind == "console" for one in commands(block)]
    lines = " ".join(command.line for command in run)
    assert len(files) >= 12
    assert [name for name in files if name not in lines and f"{name[:-3]}:" not in lines] == []
    assert [one.line for one in run if not one.expected and one.line != STARTS_THE_SERVER] == []


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [("a … c", "a b c", True), ("a … c", "a b d", False), ("(1)", "(1)", True), ("…", "", True)],
)
def test_an_ellipsis_stands_for_anything(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same
