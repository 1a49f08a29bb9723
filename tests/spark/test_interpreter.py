"""Workers run the Python that runs us, and find the installed PySpark instead of its zipped copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from orbitmq.spark.interpreter import VARIABLES, prepare_python, zipped_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(pyspark.__file__).parent


def prepared(tmp_path: Path, *, local: bool = True, **given: str) -> dict[str, str]:
    env = {"XDG_CACHE_HOME": str(tmp_path), **given}
    prepare_python(local=local, environ=env)
    return env


def test_the_launcher_drops_sparks_places_and_nothing_else(tmp_path: Path) -> None:
    program = prepared(tmp_path)["PYSPARK_PYTHON"]
    shown = "import os, sys; print(os.environ.get('PYTHONPATH'), sys.argv[1:])"
    zipped = f"{HOME}/python/lib/pyspark.zip"

    def run(path: str) -> str:
        env = {**os.environ, "PYTHONPATH": path}
        return subprocess.check_output([program, "-c", shown, "a b", "*", ""], env=env, text=True).strip()

    assert run(f"{zipped}:/a b:{zipped}:/c*") == "/a b:/c* ['a b', '*', '']"
    assert run(zipped) == "None ['a b', '*', '']"


def test_it_is_this_python_with_its_packages(tmp_path: Path) -> None:
    program = prepared(tmp_path)["PYSPARK_DRIVER_PYTHON"]
    command = [program, "-c", "import sys, pyspark; print(sys.prefix, pyspark.__file__)"]
    env = {**os.environ, "PYTHONPATH": f"{HOME}/python/lib/pyspark.zip"}
    assert subprocess.check_output(command, env=env, text=True).split() == [sys.prefix, pyspark.__file__]


def test_what_somebody_chose_stays(tmp_path: Path) -> None:
    env = prepared(tmp_path, PYSPARK_PYTHON="/opt/python")
    assert env["PYSPARK_PYTHON"] == "/opt/python"
    assert env["PYSPARK_DRIVER_PYTHON"].startswith(str(tmp_path))


def test_other_machines_have_no_launcher(tmp_path: Path) -> None:
    env = prepared(tmp_path, local=False)
    assert [env[name] for name in VARIABLES] == [sys.executable] * 2
    env = prepared(tmp_path, local=True)
    prepare_python(local=False, environ=env)  # the next session of the same program is one on a cluster
    assert [env[name] for name in VARIABLES] == [sys.executable] * 2


def test_without_a_place_to_write_to_it_goes_on(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    assert prepared(taken)["PYSPARK_PYTHON"] == sys.executable


def test_another_spark_is_left_alone(tmp_path: Path) -> None:
    assert zipped_home({"SPARK_HOME": str(HOME)}) == HOME
    assert zipped_home({"SPARK_HOME": "/opt/spark"}) is None
    assert prepared(tmp_path, SPARK_HOME="/opt/spark")["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.parametrize("module", ["pyspark", "pyspark.daemon"])
def test_sparks_workers_do_not_read_the_zip(spark: SparkSession, module: str) -> None:
    def where(_: int) -> str:
        import importlib

        return str(importlib.import_module(module).__file__)

    (found,) = spark.sparkContext.parallelize([0], 1).map(where).collect()
    assert found.startswith(f"{HOME}/")
    assert ".zip" not in found
