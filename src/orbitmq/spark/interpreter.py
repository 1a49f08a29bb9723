"""Which Python runs Spark's workers: the one that runs us and, on this machine, with the installed PySpark.

Spark puts `pyspark.zip` before everything else in PYTHONPATH. It holds no bytecode, so every process that Spark starts
compiles PySpark anew: a third of a second before each stream's first batch, in each planner, for each command. On one
machine a launcher of ours drops Spark's own places from the path, and the same sources are found where they are
installed. On a cluster it would not be there.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from orbitmq.spark.launchers import cache_directory, launcher_home, make_launcher

VARIABLES: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""Of the tasks' workers, and of those beside the driver that plan."""
_PROGRAM: Final = "python"
_SCRIPT: Final = """\
#!/bin/sh
# Spark puts its zipped sources first, which hold no bytecode: every process would compile them anew.
set -f
IFS=:
rest=
for place in $PYTHONPATH; do
    case $place in {home}/*) ;; *) rest=$rest${{rest:+:}}$place ;; esac
done
if [ -n "$rest" ]; then export PYTHONPATH="$rest"; else unset PYTHONPATH; fi
exec {python} "$@"
"""


def prepare_python(*, local: bool, environ: MutableMapping[str, str] | None = None) -> None:
    """Makes the next start of Spark in this process use this Python, unless somebody decided otherwise."""
    env = os.environ if environ is None else environ
    home = zipped_home(env)
    script = _SCRIPT.format(home=shlex.quote(str(home)), python=shlex.quote(sys.executable))
    launcher = str(launcher_home(_PROGRAM, script, cache_directory(env)) / "bin" / _PROGRAM)
    chosen = launcher if local and home is not None and _made(script, env) else sys.executable
    for name in VARIABLES:
        if env.get(name) in (None, "", launcher, sys.executable):
            env[name] = chosen


def zipped_home(environ: Mapping[str, str]) -> Path | None:
    """The installed PySpark, if it is this one whose zipped copy Spark would put before it."""
    found = importlib.util.find_spec("pyspark")
    if os.name != "posix" or found is None or found.origin is None:
        return None
    home = Path(found.origin).parent
    if (environ.get("SPARK_HOME") or str(home)) != str(home):
        return None
    return home if (home / "python" / "lib" / "pyspark.zip").is_file() else None


def _made(script: str, environ: Mapping[str, str]) -> bool:
    try:
        make_launcher(_PROGRAM, script, cache_directory(environ))
    except OSError:  # no place to write to: slower starts are all there is to it
        return False
    return True
