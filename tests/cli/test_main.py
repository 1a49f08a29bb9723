"""The entry point: which way a command goes, and how its end is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orbitmq import __version__
from orbitmq.cli.main import main
from tests.support.commands import Commands
from tests.support.server_process import free_port

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def orbitmq(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def test_a_server_starts_without_the_other_commands_libraries() -> None:
    script = (
        "import sys; from orbitmq.cli.main import main; main(['server', '--help']); "
        "from orbitmq.cli.server_cmd import parse_server; parse_server(['--set', 'brokerName=a']); "
        "heavy = {'typer', 'rich', 'numpy', 'pydantic', 'click', 'orbitmq.client', 'orbitmq.broker'}; "
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr


def test_python_m_orbitmq_is_the_same_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "orbitmq", "--version"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (0, f"orbitmq {__version__}\n")


def test_the_help_lists_every_noun_and_the_exit_codes(orbitmq: Commands) -> None:
    out = orbitmq.ok("--help").out
    for word in (
        "server",
        "namesrv",
        "broker",
        "topic",
        "group",
        "message",
        "cluster",
        "send",
        "tail",
        "store",
    ):
        assert word in out
    assert "3 not found" in " ".join(out.split())


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["topic", "nonsense"],
        ["topic", "list", "--nonsense"],
        ["topic", "create"],
        ["topic", "create", "T", "--queues", "many"],
        ["topic", "update", "T"],
        ["send", "T"],
        ["send", "T", "body", "--delay-level", "-1"],
        ["send", "T", "body", "--property", "novalue"],
        ["send", "T", "body", "--from-file", "f"],
        ["send", "T", "--from-file", "no-such-file"],
        ["tail", "T", "--from", "middle"],
        ["topic", "list", "-n", "not an address:x"],
        ["message", "show", "not-an-id"],
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(orbitmq: Commands, args: list[str]) -> None:
    ended = orbitmq(*args)
    assert ended.code == 2
    assert ended.err.startswith("orbitmq: ")
    assert ended.err.count("\n") == 1
    as_json = orbitmq(*args, "--json")
    assert as_json.code == 2
    assert set(as_json.error) == {"error", "hint", "exit_code"}


def test_a_noun_without_verb_shows_its_help(orbitmq: Commands) -> None:
    ended = orbitmq("topic")
    assert ended.code == 2
    assert "create" in ended.out + ended.err


def test_no_cluster_is_exit_code_4(orbitmq: Commands) -> None:
    addr = f"127.0.0.1:{free_port()}"
    for args in (
        ["topic", "list"],
        ["group", "list"],
        ["cluster", "list"],
        ["send", "T", "x"],
        ["tail", "T"],
    ):
        ended = orbitmq(*args, "-n", addr)
        assert ended.code == 4
        assert addr in ended.err
        assert "orbitmq server" in ended.err
    assert orbitmq("topic", "list", "-n", addr, "--json").error["exit_code"] == 4


@pytest.mark.parametrize("variable", ["NAMESRV_ADDR", "ORBITMQ_NAMESRV"])
def test_the_environment_names_the_name_server(
    orbitmq: Commands, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    addr = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv(variable, addr)
    assert addr in orbitmq("topic", "list").err


def test_something_destructive_is_not_done_without_a_yes(orbitmq: Commands) -> None:
    for args in (["topic", "delete", "T"], ["group", "delete", "g"]):
        ended = orbitmq(*args, "-n", f"127.0.0.1:{free_port()}")
        assert ended.code == 2
        assert "--yes" in ended.err


def test_cheat_sheets_name_commands_that_exist(orbitmq: Commands) -> None:
    sheets = json.loads(orbitmq.ok("cheat", "--json").out)
    for lines in sheets.values():
        for line in lines:
            words = line.split()
            assert words[0] == "orbitmq"
            path = words[1:3] if words[1] in ("topic", "group", "message", "store") else words[1:2]
            assert main([*path, "--help"]) == 0
    assert orbitmq("cheat", "nonsense").code == 3
