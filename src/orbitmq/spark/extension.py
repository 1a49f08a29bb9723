"""Our part of Spark's Java side, `jvm/*.java`: tables of ours are read in columns, and only those that a query needs.

It is compiled on first use, by the compiler that Spark brings along for its own generated code, against the Spark that
is installed; nothing else is needed and no jar has to fit. Without it everything works, in rows: decision 020.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orbitmq.spark.errors import SourceError
from orbitmq.spark.java import Java
from orbitmq.spark.launchers import cache_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("orbitmq.spark")

EXTENSION: Final = "orbitmq.spark.Extension"
SETTING: Final = "spark.orbitmq.inColumns"
"""`false` leaves Spark's Java side as it is; in a session that runs, for tables that are loaded from then on."""
KNOWN: Final = "4.2."
"""Spark's inner classes, which it talks to, may differ in other versions."""
SOURCES: Final = Path(__file__).with_name("jvm")

IN_PLAN: Final = "(Python, in columns)"
_CLASS_VERSION: Final = 17
_JAVA_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_LAUNCHED: Final = "PYSPARK_GATEWAY_PORT"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def extension_settings(java: Java, given: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """What a new session needs to have it, beside the jars and extensions that the user gives; empty without it."""
    if str(given.get(SETTING, True)).lower() == "false" or not _can_be_loaded(environ):
        return {}
    jar = extension_jar(java, environ)
    if jar is None:
        return {}
    wanted = {"spark.jars": str(jar), "spark.sql.extensions": EXTENSION}
    theirs = _defaults(environ) | {name: str(value) for name, value in given.items()}
    return {name: ",".join(filter(None, (theirs.get(name), ours))) for name, ours in wanted.items()}


def extension_jar(java: Java, environ: Mapping[str, str]) -> Path | None:
    """The jar for the Spark that would be started, made if it is not there; None, with a warning, if it cannot be."""
    jars = _spark_jars(environ)
    if jars is None:
        return None
    sources = sorted(SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources))
    digest.update(next(jars.glob("spark-sql_*.jar")).name.encode())
    jar = cache_directory(environ) / f"spark-extension-{digest.hexdigest()[:12]}.jar"
    if jar.is_file():
        return jar
    try:
        jar.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=jar.parent) as made:
            compile_classes(java, jars, sources, Path(made))
            _pack(Path(made), jar)
    except Exception as error:  # whatever it is, Spark works without
        log.warning("Spark reads our tables in rows, which is slower: its Java part was not made: %s", error)
        return None
    return jar


def is_in_columns(table: DataFrame) -> bool:
    """Whether this table of ours, as it was loaded, is read in columns."""
    plan: Any = table._jdf.queryExecution()
    return IN_PLAN in plan.executedPlan().toString()


def compile_classes(java: Java, jars: Path, sources: list[Path], into: Path) -> None:
    """In a Java process of its own, for a second."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
    from py4j.protocol import Py4JJavaError

    port, token, process = launch_gateway(
        classpath=str(jars / "*"),
        jarpath=str(next(jars.glob("py4j-*.jar"))),
        javaopts=list(_JAVA_OPTIONS),
        java_path=str(java.home / "bin" / "java"),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    try:
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        compiler = gateway.jvm.org.codehaus.janino.CompilerFactory().newCompiler()
        compiler.setClassPath(_files(gateway, sorted(jars.glob("*.jar"))))
        compiler.setTargetVersion(_CLASS_VERSION)
        compiler.setDebugLines(True)
        compiler.setDebugSource(True)
        compiler.setDestinationDirectory(gateway.jvm.java.io.File(str(into)), False)
        try:
            compiler.compile(_files(gateway, sources))
        except Py4JJavaError as error:  # it can be asked what it says as long as that process is there
            raise SourceError(_deepest(error.java_exception)) from None
        finally:
            gateway.shutdown()
    finally:
        process.stdin.close()  # it ends with its input
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _deepest(error: Any) -> str:
    while (cause := error.getCause()) is not None:
        error = cause
    return str(error.getMessage())


def _files(gateway: Any, paths: list[Path]) -> Any:
    made = gateway.new_array(gateway.jvm.java.io.File, len(paths))
    for number, path in enumerate(paths):
        made[number] = gateway.jvm.java.io.File(str(path))
    return made


def _pack(classes: Path, jar: Path) -> None:
    """Whole or not at all; several processes may do it at once."""
    draft = jar.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(classes.rglob("*.class")):
            packed.writestr(zipfile.ZipInfo(path.relative_to(classes).as_posix(), _EPOCH), path.read_bytes())
    draft.replace(jar)


def _home(environ: Mapping[str, str]) -> Path | None:
    """Of the Spark that would be started."""
    found = importlib.util.find_spec("pyspark")
    installed = str(Path(found.origin).parent) if found and found.origin else None
    home = environ.get("SPARK_HOME") or installed
    return Path(home) if home else None


def _spark_jars(environ: Mapping[str, str]) -> Path | None:
    """If it is a Spark that we know."""
    home = _home(environ)
    if home is None:
        return None
    jars = home / "jars"
    known = any(jars.glob(f"spark-sql_*-{KNOWN}*.jar")) and any(jars.glob("py4j-*.jar"))
    return jars if known else None


def _defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Settings that Spark takes from its file where nobody gives others."""
    place = environ.get("SPARK_CONF_DIR") or str(_home(environ) or "") + "/conf"
    try:
        text = (Path(place) / "spark-defaults.conf").read_text("utf-8")
    except OSError:
        return {}
    lines = (re.split(r"[\s=:]+", line.strip(), maxsplit=1) for line in text.splitlines())
    return {found[0]: found[1] for found in lines if len(found) == 2 and not found[0].startswith("#")}


def _can_be_loaded(environ: Mapping[str, str]) -> bool:
    """A Java process that runs already has it only if it was started with it."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return _LAUNCHED not in environ  # set by `spark-submit`, which has started Java before us
    jvm: Any = gateway.jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(EXTENSION)
    except Exception:
        return False
    return True
