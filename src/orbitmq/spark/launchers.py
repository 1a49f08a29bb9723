"""Small programs of ours that stand before another one: Spark starts them, they mend what it starts with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".cache"
    )
    return Path(base) / "orbitmq"


def launcher_home(program: str, script: str, cache: Path) -> Path:
    """A directory whose `bin` has this script under this name: always the same one for the same script."""
    return cache / f"{program}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"


def make_launcher(program: str, script: str, cache: Path) -> Path:
    """The directory, with the script in it. Several processes may make it at once."""
    home = launcher_home(program, script, cache)
    made = home / "bin" / program
    if made.is_file() and os.access(made, os.X_OK):
        return home
    made.parent.mkdir(parents=True, exist_ok=True)
    draft = made.with_name(f"{program}.{os.getpid()}")
    draft.write_text(script, "utf-8")
    draft.chmod(0o755)
    draft.replace(made)
    return home
