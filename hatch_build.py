"""Builds the accelerator beside its source, if there is a C compiler; without one the package is pure Python.

The accelerator is optional (docs/decisions/004-optional-accelerator.md), so nothing that goes wrong here stops an
install. ORBITMQ_NO_ACCEL=1 leaves it out.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/orbitmq/accel/_accel.c")


class AcceleratorHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.environ.get("ORBITMQ_NO_ACCEL") or sys.platform == "win32":
            return
        target = SOURCE.with_name("_accel" + str(sysconfig.get_config_var("EXT_SUFFIX")))
        problem = build(Path(self.root), target)
        if problem:
            self.app.display_warning(f"the accelerator was not built, plain Python is used: {problem}")
            return
        build_data["artifacts"].append(f"/{target.as_posix()}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def build(root: Path, target: Path) -> str:
    """Compiles the source; returns what went wrong, empty when nothing did."""
    compiler = shlex.split(os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc"))
    if shutil.which(compiler[0]) is None:
        compiler = (
            [found] if (found := shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")) else []
        )
    if not compiler:
        return "no C compiler was found"
    include = sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").exists():
        return "the headers of Python (Python.h) are not installed"
    link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    command = [*compiler, "-O3", "-fPIC", *link, f"-I{include}", str(root / SOURCE), "-o", str(root / target)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stderr.strip() if result.returncode else ""
